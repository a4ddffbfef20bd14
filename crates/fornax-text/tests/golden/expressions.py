"""What templates write between braces, each line evaluated alone by make_templates.py with the
variables that are given."""

GIVEN = {
    "text": "  Héllo, wörld\n\n\u2028two\x1clines\r\nend \t",
    "row": ["b", "a", "C", "b", 3, 1.5, None, True],
    "tree": {"b": {"y": [1, {"x": "é\n'\""}]}, "a": "it's", "C": None, "d": 1e-5, "e": [], "f": {}},
    "odd": {"small": 3e-05, "large": 1e16, "text": ["\u2028\x7f", "a'\\"]},
    "people": [
        {"name": "Zoë", "age": 41, "tags": ["x"]},
        {"name": "bob", "age": 7},
        {"name": "Al", "age": 41, "tags": []},
    ],
}
EXPRESSIONS = """
text | indent
text | indent(2, true)
text | indent(width=3, first=true, blank=true)
"a\\nb\\n" | indent("> ")
"a\\n\\nb\\n\\n" | indent(1)
text.splitlines()
"a\\nb\\n".splitlines(true)
text.split()
text.split(None, 1)
text.split("\\n")
"a,b,,c,".split(",", 2)
"a,b,,c,".rsplit(",", 2)
text.strip() | length
text | trim
"xxaxx" | trim("x")
text.lower() ~ text.upper() ~ text.title() ~ text.capitalize()
"ẞß ǆ İ ŉ ﬁ" | upper
"ẞß ǅ İ Σ ΑΣ" | lower
"they're bill's friends" | title
"they're bill's friends".title()
"o'neil mc-donald" | capitalize
"aXbX".swapcase()
"abc".startswith("b", 1) ~ "abc".endswith("b", 0, 2)
"abc".startswith("x") ~ "abc".endswith(("x", "c"))
"abcabc".find("c", 3) ~ "abcabc".rfind("a") ~ "é€b".find("b") ~ "abc".find("z")
"abcabc".count("bc") ~ "aaaa".count("aa")
"a-b-c".replace("-", "+") ~ "a-b-c".replace("-", "+", 1) ~ "ab".replace("", "-")
"a-b-c" | replace("-", "+", 1)
"{} is {}".format("x", 3) ~ "{0}{1}{0}".format("a", "b") ~ "{n}".format(n=5)
"%s is %d, %.2f" | format("x", 3, 2.5)
"abc".isalpha() ~ "12".isdigit() ~ "1a".isalnum() ~ " ".isspace() ~ "ab".islower() ~ "AB".isupper() ~ "".isdigit()
"½".isnumeric() ~ "²".isdigit() ~ "1.5".isdecimal()
"-".join("abc") ~ ", ".join(["x"]) ~ "".join([])
"a=b=c".partition("=") ~ "abc".rpartition("-")
"abc"[1] ~ "abc"[-1] ~ "abcdef"[1:4] ~ "abcdef"[::2] ~ "abcdef"[-2:] ~ "abcdef"[:-2] ~ "abcdef"[::-1]
[1, 2, 3, 4][::-1]
[1, 2, 3, 4][-3:-1]
row[1:3] + ["z"]
(1, 2) + (3,)
[1] * 3
"ab" * 3
row
tree
tree | string
row | string | length
[none, true, false, 1, 1.0, -0.5, 1e100, "a'b", 'a"b', "a'b\\"c", "\\n\\t\\\\"]
["é", "\u200b", "\x7f", "\U0001f600", "\xa0", "\u0301"]
{"a": {"b": (1, 2), 3: [none]}}
tree | tojson
tree | tojson(indent=2)
tree | tojson(indent=0)
tree | tojson(indent="\t")
tree | tojson(sort_keys=true, separators=(",", ":"))
tree | tojson(ensure_ascii=true, indent=1, sort_keys=true)
tree | tojson(true, 1, none, true)
text | tojson
"</script>&'\\u007f" | tojson
[1.0, 1e16, 1e-7, 0.1, -0.0, 12345678901234567890, 1e22] | tojson
{"1": 1, 2: 2, none: 3, true: 4} | tojson
[[], {}, [[]], [{}]] | tojson(indent=2)
row | reject("none") | reject("boolean") | select("string") | list
row | select("number") | list
row | map("string") | join("|")
["b", "a", "C"] | sort
["b", "a", "C"] | sort(case_sensitive=true)
["b", "a", "C"] | sort(reverse=true)
people | sort(attribute="age") | map(attribute="name") | list
people | sort(attribute="age,name") | map(attribute="name") | list
people | map(attribute="tags", default="none") | list
people | selectattr("age", "gt", 10) | map(attribute="name") | join(", ")
people | selectattr("tags") | list | length
people | rejectattr("age", "equalto", 41) | list
people | selectattr("name", "in", ["bob"]) | map(attribute="age") | first
people | map(attribute="age") | sum
people | sum(attribute="age")
people | groupby("age") | map("first") | list
people | map(attribute="name") | map("lower") | unique | list
people | join(", ", attribute="name")
[3, 1, 2] | min ~ [3, 1, 2] | max
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3, 4, 5] | batch(2, "-") | list
[1, 2, 3, 4, 5] | slice(2) | list
[1, 2, 3] | reverse | list
"abc" | reverse
"abc" | list
{"b": 1, "a": 2} | list
{"b": 1, "a": 2} | dictsort
{"b": 1, "a": 2} | dictsort(by="value")
{"b": 1, "a": 2} | items | list
{"b": 1, "a": 2}.values() | list
{"b": 1}.get("z") ~ {"b": 1}.get("z", 2) ~ {"b": 1}.get("b")
"b" in {"b": 1} and "z" not in {"b": 1}
tree.b.y[1].x ~ tree["b"]["y"][0]
tree.missing is defined
tree.items() | map("first") | join(",")
dict(a=1, b="x")
dict(a=1) | tojson
namespace(a=1).a
range(3) | list ~ range(5, 0, -2) | list
row | length ~ row | count ~ tree | length
row | first ~ row | last
[] | first is defined
none | default("x") ~ (none | default("x", true)) ~ ("" | default("x", true)) ~ (missing | default("x"))
missing | d("y")
missing is undefined
missing ~ "|" ~ none ~ "|" ~ true
1 / 2 ~ "|" ~ 4 / 2 ~ "|" ~ 7 // 2 ~ "|" ~ -7 // 2 ~ "|" ~ -7 % 3 ~ "|" ~ 2 ** 10 ~ "|" ~ 2 ** -1 ~ "|" ~ 7.5 // 2
(1 + 2.0) ~ "|" ~ (0.1 + 0.2) ~ "|" ~ 1e3 ~ "|" ~ 10000000000000000000000
"12" | int ~ "x" | int ~ "x" | int(7) ~ "3.7" | int ~ 3.9 | int ~ "0x1F" | int(0, 16) ~ true | int
"2.5" | float ~ "x" | float(1.5) ~ 3 | float
2.5 | round ~ 2.567 | round(2) ~ 2.1 | round(0, "ceil") ~ 25 | round
-5 | abs ~ 5.5 | abs
not true or false and true
1 < 2 < 3
"a" < "b" and [1, 2] < [1, 3]
1 == 1.0 and "1" != 1 and true == 1 and none != false
"yes" if row else "no"
"x" if false
3 is odd ~ 4 is even ~ 9 is divisibleby(3) ~ "x" is string ~ 1 is number ~ 1.5 is float ~ 1 is integer ~ true is integer ~ true is boolean ~ none is none ~ [] is sequence ~ {} is mapping ~ {} is iterable ~ "a" is sequence ~ 1 is iterable
true is number ~ 1 is boolean ~ true is true ~ false is false ~ 1 is true
"a" is in("abc") ~ 1 is eq(1) ~ 1 is ne(2) ~ 2 is gt(1) ~ 2 is ge(2) ~ 1 is lt(2) ~ 1 is lessthan(2) ~ "a" is lower ~ "A" is upper ~ row is sameas(row)
"<a href='x'>&amp;" | escape
"<a>" | safe
[1, [2, 3]] | string
(1,)
()
[(1, "a"), (2, "b")]
row.index("C") ~ row.count("b")
tree.keys() | list
"a" ~ 1 ~ 1.0 ~ none ~ true ~ [1] ~ {"a": "b"}
"\\u00e9\\x41\\101\\n"
'single "quoted"' ~ "double 'quoted'"
"concat" "enated"
[1, 2, 3,]
{"a": 1,}
"abc" | upper | lower | title
("a", "b") | join
"x" | string | length
"a\\r\\nb" | replace("\\r\\n", "\\n")
"tuple: %s" | format((1, 2) | string)
"abc" | first ~ "abc" | last
cycler("a", "b").next()
joiner(", ")() ~ "x"
"abc".removeprefix("a").removesuffix("c").upper()
"ab" in "cabd" and not ("z" in "ab")
people | tojson | length
people[0]["name"] ~ people[-1].name
people | map(attribute="name") | list | tojson
people | selectattr("tags", "defined") | map(attribute="tags") | list
"%05.1f|%x|%5s|%-5s|" | format(3.14159, 255, "ab", "cd")
odd ~ "|" ~ odd.small ~ "|" ~ odd.large ~ "|" ~ odd.text
odd | upper
odd.small | lower ~ odd.large | trim ~ odd.small | title ~ odd.large | capitalize ~ odd.text | safe
[odd.small, odd.large, odd.text, odd] | join("; ")
[odd, {"text": none}] | join(", ", attribute="text")
[odd] | join(",", attribute="text.0")
people | join(1, "age")
[odd.small, odd.text] | map("upper") | list
odd.text + [odd.small]
odd.text * 2
odd.text[:2]
[missing, {"a": missing}, (missing,)]
missing is sequence
"%s" % "x" ~ "%d %s" % (3, odd.small) ~ "%.1f" % 2.25 ~ "%s" % odd.text ~ "%s|%5s|%%" % ("a", "b")
"%s and %s" % ("one",)
"%4d|%-3s|%s" % (7, "a", odd.large)
"%s %s" | format(odd, odd.large)
7 % 3 ~ "|" ~ -7 % 3 ~ "|" ~ 7 % -3 ~ "|" ~ 7.5 % 2 ~ "|" ~ -7.5 % 2 ~ "|" ~ 6 % -3.0 ~ "|" ~ true % 2
1 % 0
none % 2
[1] % 2
strftime_now("%d %B %Y %H:%M:%S %j %a %b %-d %y %p")
"foo bar baz qux" | truncate(9) ~ "|" ~ "foo bar baz qux" | truncate(9, true) ~ "|" ~ "foo bar baz qux" | truncate(11) ~ "|" ~ "foo bar baz qux" | truncate(11, false, "...", 0)
("wörld " * 60) | truncate ~ "|" ~ ("ö" * 300) | truncate(length=20, end="…") ~ "|" ~ ("é è " * 9) | truncate(10, leeway=0, killwords=true, end="")
"abc" | truncate(2)
"abc" | truncate(5, leeway=-1)
5 | truncate
"The quick brown fox-like, well-known x-y-z e-mail -- jumped---over 3-4 lazy--dogs' \\"state-of-the-art\\" tails." | wordwrap(12)
"The quick brown fox-like, well-known x-y-z e-mail -- jumped---over 3-4 lazy--dogs' \\"state-of-the-art\\" tails." | wordwrap(7, wrapstring="|")
"The quick brown fox-like, well-known x-y-z e-mail -- jumped---over 3-4 lazy--dogs' tails." | wordwrap(5, false, "/", false)
"The quick brown fox-like, well-known x-y-z e-mail -- jumped---over 3-4 lazy--dogs' tails." | wordwrap(1)
"aaaa bb-cccccc-dddddd ------- e" | wordwrap(4, true, "|") ~ "~" ~ "abc  defgh\\u00a0 \\u00a0ij" | wordwrap(4, true, "|") ~ "~" ~ "   x   y" | wordwrap(3, true, "|")
"aaaa bb-cccccc-dddddd ------- e" | wordwrap(4, break_long_words=false) ~ "~" ~ "Łódź-Wrocław — naïve-café日本語-テキスト" | wordwrap(6, wrapstring="|")
text | wordwrap(5) ~ "|" ~ "" | wordwrap ~ "|" ~ "a\\n\\n\\nb\\n" | wordwrap ~ "|" ~ text | wordwrap(width=3, wrapstring="\u2028é")
("lorem ipsum dolor-sit amet, " * 12) | wordwrap
"abc" | wordwrap(0)
" <p class='x'>Main &raquo;\\t<em>About</em> <!-- <b> --> a<b c>d &lt;i&gt; AT&T &amp;amp; &notit; &notin; &#65;&#x42 &#128; &#0; &#xD800; &#1; &bogus; &; &#; &#x; " | striptags
"a < b <!-- open <i>x</i>" | striptags ~ "|" ~ "<!--><b>-->x" | striptags ~ "|" ~ tree | striptags ~ "|" ~ "&acE; &NotEqualTilde;&hellip &copyé &ampx&&lt;&nosuchnamethatisverylongindeedforsure;" | striptags
"a b/c?d=é&ü~-._+%" | urlencode ~ "|" ~ 1.5 | urlencode ~ "|" ~ none | urlencode ~ "|" ~ "日本" | urlencode
{"a b": "c/d", "é": 3, "n": none} | urlencode ~ "|" ~ [("x", 1), ["y", "ü z"], "ab"] | urlencode ~ "|" ~ missing | urlencode ~ "|" ~ [] | urlencode
["abc"] | urlencode
0 | filesizeformat ~ "|" ~ 1 | filesizeformat ~ "|" ~ 999 | filesizeformat ~ "|" ~ 1000 | filesizeformat ~ "|" ~ 1536 | filesizeformat(true) ~ "|" ~ "123456789" | filesizeformat ~ "|" ~ 1e30 | filesizeformat ~ "|" ~ 1e24 | filesizeformat(binary=true) ~ "|" ~ 13500.5 | filesizeformat ~ "|" ~ true | filesizeformat ~ "|" ~ -1.5 | filesizeformat ~ "|" ~ 1e24 | filesizeformat ~ "|" ~ 1e27 | filesizeformat
"x" | filesizeformat
none | filesizeformat
tree | pprint ~ "|" ~ row | pprint ~ "|" ~ "it's" | pprint ~ "|" ~ missing | pprint ~ "|" ~ 1e-5 | pprint
people * 2 | pprint
(people * 2) | pprint
{"a long key that is long": people * 2, 3: {"z": (people[0], people[1]), "y": ("a tuple of one item that is very much longer than eighty columns of a page are" * 1,)}, none: "the quick brown fox jumps over the lazy dog " * 4, 2.5: [[["x" * 70, ["y" * 80]]]], true: "é" * 90} | pprint
("the quick  brown\\tfox\\njumps over the 'lazy' dog " * 4) | pprint
("\\n" * 50) | pprint ~ ("word " * 16) | pprint ~ "x" * 100 | pprint
[("w" * 76 ~ " "), "a b c", ""] | pprint ~ ("x" * 90) | pprint ~ {} | pprint ~ [] | pprint ~ (1,) | pprint
{"class": "a<b", "missing": none, "id": 3, "u": missing} | xmlattr ~ "|" ~ {"a": "'"} | xmlattr(false) ~ "|" ~ {} | xmlattr
{"a b": 1} | xmlattr
"ẞßﬁŉΐıİςΣ ꭰᏸᎠ µſ".casefold() ~ "|" ~ "ǆ ǅ Ǆ ﬁn ßa ŉ ΐ ᾳ ᾲ ᾷ ᾀ ა և ὈΔΥΣΣΕΎΣ Σ".title() ~ "|" ~ "ǆ ΑΣ Σ".capitalize() ~ "|" ~ "ßa ὈΣ".capitalize()
"ΑΣ ας ǅ ßİ aΣ".swapcase() ~ "|" ~ "ΑΣ. ΑΣΑ".lower() ~ "|" ~ "ﬁ ŉ ß".upper() ~ "|" ~ "".capitalize()
"a\\tbc\\td\\n\\té\\t".expandtabs() ~ "|" ~ "a\\tbc\\t\\r\\td".expandtabs(4) ~ "|" ~ "a\\tb".expandtabs(0) ~ "|" ~ "a\\tb".expandtabs(tabsize=-3) ~ "|" ~ "é\\t日\\t|".expandtabs(3)
"abc".ljust(6) ~ "|" ~ "é".rjust(4, "ö") ~ "|" ~ "-7".zfill(5) ~ "|" ~ "+é".zfill(4) ~ "|" ~ "ab".center(7, "*") ~ "|" ~ "abc".center(6, "日") ~ "|" ~ "abc".ljust(2) ~ "|" ~ "".zfill(2)
"a".ljust(3, "xy")
"a".rjust(3, "")
"abcabc".rindex("b") ~ "abcabc".index("c", 3) ~ "日本日".rindex("日") ~ "日本日".count("日", 1) ~ "aaa".count("") ~ "".count("") ~ "abc".count("", 4) ~ "abc".count("", 2, 1) ~ "abc".count("", 3) ~ "abc".count("b", -2, -1)
"abc".rindex("x")
["é".isalpha(), "a1".isalpha(), "ि".isalpha(), "Ⅷ".isalpha(), "ªºʰ日".isalpha(), "".isalpha(), "_".isalnum(), "日1½一".isalnum(), "ⓐ".isalnum()]
["²".isdigit(), "½".isdigit(), "٣".isdigit(), "①".isdigit(), "一".isnumeric(), "Ⅷ".isnumeric(), "½".isnumeric(), "-1".isnumeric(), "٣".isdecimal(), "²".isdecimal(), "x".isnumeric()]
["\\x1c \\u2003".isspace(), "\u200b".isspace(), "".isspace(), "ǅ".islower(), "ǅ".isupper(), "aª1".islower(), "Aǅ".isupper(), "A1".isupper(), "1".isupper(), "ⓐ".islower()]
["Ab Cd".istitle(), "ab".istitle(), "ABc".istitle(), "ǅa 1B".istitle(), "1".istitle(), "".istitle(), "They'Re".istitle(), "a\\n".isprintable(), "".isprintable(), "é\u200b".isprintable(), "aé".isascii(), "".isascii()]
["a1_".isidentifier(), "1a".isidentifier(), "é".isidentifier(), "a-b".isidentifier(), "".isidentifier(), "_".isidentifier(), "℘·".isidentifier(), "aำ".isidentifier(), "ำ".isidentifier(), "日本".isidentifier(), "aͺ".isidentifier(), "class".isidentifier()]
"a,b,c".split(",", maxsplit=1) ~ "a b c".split(maxsplit=1) ~ "a,b,c".split(sep=",") ~ "a b c".rsplit(maxsplit=1) ~ "a\\nb".splitlines(keepends=true) ~ "a b".split(sep=none)
"a,b".split(separator=",")
"héllo".translate({104: "H", 233: 101, 108: none, "o": "0"}) ~ "abc".translate({97: "日本"})
"abc".translate({97: 1.5})
[1, 2, 1, 3].index(1, 1) ~ [1, 2, 1].index(1, -1) ~ [1, 2, 1].count(1) ~ (1, 2).index(2) ~ [1, [2]].copy() ~ ["é"].index("é", 0, 1)
[1, 2].index(1, 1)
[1, 2].index(2, 0, 1)
(1, 2).copy()
{"b": 1, "a": [2]}.copy() ~ {"a": 1}.copy().get("a")
[1].append(2)
[1].pop()
[2, 1].sort()
{"a": 1}.update({"b": 2})
{"a": 1}.pop("a")
{"a": 1}.setdefault("b", 2)
range(3)
range(1, 3) ~ range(0, 10, 2) ~ range(5, 0, -1) ~ range(1, 3, 1) ~ range(0)
[range(3), {"a": range(2), "b": {}.keys()}]
range(3) | string | length
"%s" | format(range(3))
range(2) | upper
range(3) | pprint
range(3) | tojson
range(3)[1] ~ range(3)[-1] ~ range(3)[3] ~ range(5).start ~ range(1, 9, 2).step ~ range(9).stop
range(3) == range(3) ~ (2 in range(3)) ~ (7 in range(0, 10, 2))
[range(2)] == [range(0, 2, 1)]
range(3) | reverse | list ~ range(3) | first ~ range(3) | last ~ range(3) | sum ~ range(3) | sort
[range(3) is sequence, range(3) is iterable, range(3) is mapping]
range(5).index(2) ~ range(5).count(2)
[range(2), range(1, 4, 2)] | join("-")
range(100001)
range(1, 2, 0)
range(3) + [1]
range("a")
tree.keys() ~ tree.values() ~ odd.items()
[odd.keys()]
{}.keys() ~ {}.values() ~ {}.items()
odd.items() | list
odd.keys() | length ~ odd.items() | first ~ odd.keys() | last ~ odd.keys() | sort ~ odd.keys() | reverse | list
odd.keys() | tojson
odd.items() | tojson
odd.items() | list | tojson
odd.keys() | pprint
odd.keys() | join(",") ~ odd.items() | join("|")
[odd.keys() is sequence, odd.keys() is iterable, odd.items() is mapping]
odd.keys() == odd.keys()
odd.keys() + ["c"]
["small" in odd.keys(), "none" in odd.keys(), 1e16 in odd.values()]
odd.keys() | map("upper") | list ~ odd.items() | map("first") | list ~ odd.items() | map(attribute=0) | list
"yes" if {}.keys() else "no"
people | groupby("age")
(people | groupby("age"))[0]
[(people | groupby("age"))[1].grouper, (people | groupby("age"))[1].list]
people | groupby("age") | tojson
people | groupby("age") | first | length
people | groupby(attribute="age") | map(attribute="grouper") | list
people | groupby("tags", default=[]) | length
people | groupby("none")
(people | groupby("age"))[0] is sequence
people | groupby("age") | pprint
namespace(b=1, a="x") ~ namespace() ~ namespace({"z": 1}, y=[2])
[namespace(a={"b": 1})]
namespace(a=1).a ~ namespace(a=1)["a"] ~ namespace(a=1).b
namespace(a=1) | string ~ namespace(x=range(2), y={}.items())
namespace(a=1) | tojson
namespace(a=1) | length
namespace(a=1) | list
namespace(a=1).items()
namespace(a=1) is mapping
namespace(a=1) | pprint
namespace(1)
namespace(a=1) == namespace(a=1)
"""
