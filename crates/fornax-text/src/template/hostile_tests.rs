//! Templates that would take all memory, all time or the whole stack.

use super::*;

/// Makes a namespace that keeps a text and a list.
const NAMESPACE: &str = "{% set ns = namespace(l=[1], s='x') %}";

/// Repeats `body` often enough to double something beyond all bounds.
fn often(body: &str) -> String {
    format!("{NAMESPACE}{{% for i in range(100) %}}{body}{{% endfor %}}")
}

/// What is said against it.
fn refused(source: &str) -> String {
    let start: String = source.chars().take(120).collect();
    let error = match ChatTemplate::from_source("test.jinja", source, None) {
        Ok(template) => template.render(&request()).expect_err(&start),
        Err(error) => error,
    };
    let known = matches!(
        error,
        Error::TemplateFailed { .. } | Error::TemplateSyntax { .. }
    );
    assert!(known, "{start}: {error}");
    error.to_string()
}

#[test]
fn a_template_without_end_is_stopped() {
    let many = "{% for a in range(100000) %}";
    let end = "{% endfor %}";
    refused(&format!("{many}{many}{end}{end}"));
    refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}");
    refused("{% block b %}{{ self.b() }}{% endblock %}");
    refused("{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}");
}

/// A caller's stack may be small, and the engine's frames are large where it was not optimised.
#[test]
fn a_template_without_end_needs_nothing_of_the_caller() {
    let small = std::thread::Builder::new().stack_size(192 << 10);
    let render = || refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    let thread = small.spawn(render).expect("a thread");
    thread.join().expect("an error, and no panic");
}

#[test]
fn what_doubles_is_stopped() {
    for body in [
        "{% set ns.s = ns.s ~ ns.s %}",
        "{% set ns.s = ns.s + ns.s %}",
        "{% set ns.s = ns.s * 2 %}",
        "{% set ns.s = [ns.s, ns.s] | join %}",
        "{% set ns.s = ns.s | replace('x', 'xx') %}",
        "{% set ns.s = ns.s.replace('x', 'xx') %}",
        "{% set ns.s = ns.s.join(['a', 'b', ns.s]) %}",
        "{% set ns.s = '%s%s' | format(ns.s, ns.s) %}",
        "{% set ns.s = '%s%s' % (ns.s, ns.s) %}",
        "{% set ns.s = '{0}{0}'.format(ns.s) %}",
        "{% set ns.s = ns.s | tojson | tojson %}",
        "{% set ns.s = ns.s | e ~ '&' | e ~ ns.s %}",
        "{% set t %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = t %}",
        "{% macro m() %}{{ ns.s }}{{ ns.s }}{% endmacro %}{% set ns.s = m() %}",
        "{% set ns.l = ns.l + ns.l %}",
        "{% set ns.l = [ns.l, ns.l] %}",
        "{% set ns.l = {'a': ns.l, 'b': ns.l} %}",
        "{% set ns.l = dict(a=ns.l, b=ns.l) %}",
        "{% set ns.l = ns.l * 2 %}",
        "{% set ns.l = [ns.l] * 3 %}",
        "{% set ns.l = ns.l | zip(ns.l) | list + ns.l %}",
    ] {
        refused(&often(body));
    }
}

#[test]
fn what_is_large_at_once_is_refused() {
    let big = "{% set b = 'xy' * 10000000 %}";
    for body in [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 'x' * 99999999 }}",
        "{{ [1] * 10 ** 9 }}",
        "{{ ([1] * 99999999) | length }}",
        "{{ range(10 ** 9) | list }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '%1000000000d' % 1 }}",
        "{% for i in range(100000) %}{% set a = range(100000) ~ '' %}{% endfor %}",
        "{{ '%*d' | format(1000000000, 1) }}",
        "{{ '%.1000000000f' | format(1) }}",
        "{{ '{:1000000000d}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ b | replace('x', b) }}",
        "{{ b.replace('x', b) }}",
        "{{ b | join(b) }}",
        "{{ b.join(range(1000)) }}",
        "{{ range(100000) | map('replace', '1', b) | list | length }}",
        "{{ range(100000) | map('center', 1000) | map('replace', ' ', '12345678') | list | length }}",
        "{{ range(100000) | select('in', b) | list | length }}",
        "{{ range(100000) | join([['x' * 1000000]]) }}",
        "{{ range(100000) | join(d=['x' * 1000000]) }}",
        "{{ range(3) | slice(18446744073709551615) | list }}",
        "{{ [1] | slice(9223372036854775808) | list }}",
        "{{ [1] | batch(18446744073709551615, 0) | list }}",
        "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
        "{{ ([{'a': [1] * 1000}] * 1000) | sum(attribute='a', start=[]) | length }}",
        "{{ ([{'a': [1] * 80}] * 5000) | sum('a', []) | length }}",
        "{{ [[[b]]] | tojson(indent=b) }}",
        "{% set ns = namespace(a=[]) %}{% for i in range(180) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a | tojson(indent='x' * 1000000) }}",
        "{% set ns = namespace(a=1) %}{% for i in range(180) %}{% set ns.a = {'k': ns.a} %}{% endfor %}{{ ns.a | tojson(separators=[',', 'x' * 9000000]) }}",
        "{{ [1] | batch(10 ** 9, 0) }}",
        "{{ [1] | slice(10 ** 9, 0) }}",
        "{{ ['a'] | sum(start='') }}",
        "{{ ('x' * 9999999) | indent(1000) | indent(1000) ~ (('\n' * 999999) | indent(1000, true, true)) }}",
        "{{ strftime_now('%Y' * 1000) }}",
        "{% for i in range(100000) %}{% set a = b[1:] %}{% endfor %}",
        "{% for i in range(100000) %}{% set a = b[-1] %}{% endfor %}",
        "{% for i in range(100000) %}{% set a = b == b ~ 'x' %}{% endfor %}",
        "{% for i in range(100000) %}{% set a = 'z' in b %}{% endfor %}",
        "{% for i in range(100000) %}{% set a = b is startingwith b %}{% endfor %}",
        "{% for i in range(100000) %}{% set a = b.count('z') %}{% endfor %}",
        "{% for i in range(100000) %}{% set a = b | upper %}{% endfor %}",
        "{% for i in range(100000) %}{{ b }}{% endfor %}",
    ] {
        refused(&format!("{big}{body}"));
    }
    let raw = "x".repeat(100_000);
    refused(&format!(
        "{{% for i in range(100000) %}}{raw}{{% endfor %}}"
    ));
}

/// Where the engine would divide by nothing, and panic.
#[test]
fn what_divides_by_nothing_is_refused() {
    for body in [
        "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}",
        "{% for x in [1] %}{{ loop.cycle(*[]) }}{% endfor %}",
        "{% for x in [1] %}{{ loop.cycle(**{}) }}{% endfor %}",
        "{{ 1 is divisibleby 0 }}",
        "{{ 1.5 is divisibleby 0 }}",
        "{{ (-170141183460469231731687303715884105727 - 1) is divisibleby -1 }}",
    ] {
        let told = refused(body);
        assert!(!told.contains("gave up"), "{told}");
    }
}

/// Widths, ends and what stands between lines are the template's to choose, as is what fills a line.
#[test]
fn what_widths_make_is_charged() {
    let big = "{% set b = 'xy' * 2000000 %}{% set tabs = '\t' * 9999999 %}";
    for body in [
        "{{ tabs.expandtabs(1000) }}",
        "{{ '\t'.expandtabs(10 ** 15) }}",
        "{{ '\t'.expandtabs(tabsize=99999999) }}",
        "{{ 'x'.ljust(10 ** 15) }}",
        "{{ 'x'.rjust(9999, b) }}",
        "{{ 'x'.center(9999, b) }}",
        "{{ '1'.zfill(10 ** 15) }}",
        "{{ b.translate({120: b}) }}",
        "{{ b | wordwrap(1) }}",
        "{{ ('x ' * 1000000) | wordwrap(1, true, 'x' * 1000) }}",
        "{{ ('\n' * 1000000) | wordwrap(1, true, 'x' * 1000) }}",
        "{{ ('a-' * 2999999) | wordwrap(10 ** 15) }}",
        "{{ (('\u{a0}' * 999999) ~ 'x') | wordwrap(1) }}",
        "{{ (b | urlencode) ~ (('é' * 9999999) | urlencode) }}",
        "{{ {'x' * 99999: [1] * 9999} | pprint }}",
        "{{ ('\n' * 9999999) | pprint }}",
        "{{ tabs.splitlines() ~ ('\n' * 9999999).splitlines() }}",
        "{{ b.split('x') | length }}",
    ] {
        refused(&format!("{big}{body}"));
    }
}

/// What is short to write and makes nothing may still go through all of a text.
#[test]
fn what_only_looks_is_charged() {
    let often = "{% for i in range(100000) %}";
    let big = "{% set b = 'é' * 4000000 %}{% set d = {'a': 1} %}";
    for body in [
        "{% set a = b | length %}",
        "{% set a = b | count %}",
        "{% set a = d[b] %}",
        "{% set a = d.get(b) %}",
        "{% set a = d | attr(b) %}",
        "{% set a = messages[0][b] %}",
        "{% set a = loop.changed(b) %}",
        "{% for c in b %}{% break %}{% endfor %}",
    ] {
        refused(&format!("{big}{often}{body}{{% endfor %}}"));
    }
    let again = "{% for x in r recursive %}{% if x is string %}{% break %}{% endif %}{{ loop(b) }}";
    refused(&format!(
        "{big}{{% set r = range(100000) %}}{again}{{% endfor %}}"
    ));
    let literal = format!("'{}'", "x".repeat(60_000));
    for body in [
        format!("{{% set a = b == {literal} %}}"),
        format!("{{% set a = d[{literal}] %}}"),
    ] {
        let again = "{% for j in range(100) %}";
        let end = "{% endfor %}{% endfor %}";
        refused(&format!(
            "{{% set b = {literal} %}}\n{big}{{% set b = {literal} %}}\n{often}{again}{body}{end}"
        ));
    }
}

/// A character to strip is looked up, however many there are.
#[test]
fn stripping_takes_time_in_proportion_to_both_texts() {
    let source = "{% set most = 'ab' * 2000000 %}{% set other = '0123456789' * 200000 %}\
                  {{ most.strip(other ~ 'ab') ~ (most | trim(other ~ 'ab')) | length }}";
    let template = ChatTemplate::from_source("test.jinja", source, None).expect("nothing amiss");
    assert_eq!(template.render(&request()).expect("two empty texts"), "0");
}

/// A value that contains itself would be gone through without end, and never be freed.
#[test]
fn nothing_contains_itself() {
    for body in [
        "{% set ns.l = ns %}{{ ns }}",
        "{% set ns.l = [ns] %}{{ ns | tojson }}",
        "{% set ns.l = {'a': [ns]} %}",
        "{% macro m() %}{{ ns.s }}{% endmacro %}{% set ns.l = m %}",
        "{% set ns.l = range %}",
        "{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{% for i in range(1000) %}{% set ns.l = ns.l | batch(1) | list %}{% endfor %}",
    ] {
        refused(&format!("{NAMESPACE}{body}"));
    }
    refused(&"{% set a = namespace(a=a) %}".repeat(1000));
}

/// The engine counts columns and arguments in 16 bits, and gives up beyond.
#[test]
fn what_is_too_wide_is_refused() {
    let wide = "x".repeat(70_000);
    refused(&format!("{{{{ '{wide}"));
    refused(&format!("{{{{ 1 {wide} 1 }}}}"));
    refused(&format!("{{{{ dict({}) }}}}", "1,\n".repeat(70_000)));
    refused(&format!("{{{{ [{}] | first }}}}", "1,\n".repeat(70_000)));
    refused(&format!("{{{{ x | join({}) }}}}", "1,\n".repeat(70_000)));
    let lines = "x".repeat(60_000) + "\n";
    let source = format!(
        "{lines}{lines}{{{{ [{}] | length }}}}",
        "1,\n".repeat(9_000)
    );
    let template = ChatTemplate::from_source("test.jinja", &source, None).expect("nothing amiss");
    assert!(
        template
            .render(&request())
            .expect("a list")
            .ends_with("9000")
    );
}

/// The engine recurses for these; a stack of 2 MiB, as threads have, must do.
#[test]
fn what_nests_is_refused() {
    for (before, part, after) in [
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ a", "|upper", " }}"),
        ("{{ a", ".b", " }}"),
        ("{{ a", "[0]", " }}"),
        ("{{ a", "()", " }}"),
        ("{{ ", "not ", "a }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "(", "1 }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", "<1", " }}"),
        ("{{ 1", " if a else 1", " }}"),
        ("{{ 1", " is defined", " }}"),
        ("{% if a %}", "{% elif a %}", "{% endif %}"),
        ("", "{% if a %}", ""),
        ("", "{% for a in b %}", ""),
        ("", "{% set a %}", ""),
    ] {
        refused(&format!("{before}{}{after}", part.repeat(30_000)));
        // What is let through is read, used and freed.
        for count in [100, 390] {
            let source = format!("{before}{}{after}", part.repeat(count));
            if let Ok(template) = ChatTemplate::from_source("test.jinja", &source, None) {
                let _either = template.render(&request());
            }
        }
    }
    refused(&"x".repeat((1 << 20) + 1));
    let source = format!("a\n{{{{ 1{} }}}}", "+1".repeat(401));
    let error = ChatTemplate::from_source("test.jinja", &source, None).unwrap_err();
    let told = error.to_string();
    assert!(
        told.contains("test.jinja, line 2") && told.contains("400 operators"),
        "{told}"
    );
}

/// Templates grown at random: they render or fail with a message, and end.
#[test]
fn whatever_grows_at_random_ends() {
    let mut random = Random(1);
    let mut rendered = 0;
    for case in 0..1500 {
        let mut source = format!("{NAMESPACE}{{% set x = 'ab' %}}");
        for _ in 0..3 {
            let value = expression(&mut random, case % 4);
            source += &random.pick(&STATEMENTS).replace('V', &value);
        }
        if let Ok(template) = ChatTemplate::from_source("test.jinja", &source, None) {
            rendered += usize::from(template.render(&request()).is_ok());
        }
    }
    assert!(
        (20..1400).contains(&rendered),
        "{rendered} of 1500 rendered"
    );
}

const STATEMENTS: [&str; 8] = [
    "{{ V }}",
    "{% set x = V %}",
    "{% set ns.s = V %}",
    "{% set ns.l = V %}",
    "{% for x in V %}{{ loop.index }}{% set ns.s = ns.s ~ x %}{% endfor %}",
    "{% if V %}{{ x }}{% endif %}",
    "{% set x %}{{ V }}{{ x }}{% endset %}",
    "{% macro m(x) %}{{ x }}{{ V }}{% endmacro %}{{ m(x) }}",
];

const ATOMS: [&str; 10] = [
    "x",
    "x",
    "ns.s",
    "ns.l",
    "messages",
    "'ab'",
    "7",
    "range(99)",
    "none",
    "ns",
];

const SHAPES: [&str; 32] = [
    "(A ~ B)",
    "(A + B)",
    "(A * B)",
    "(A == B)",
    "(A in B)",
    "(A < B)",
    "[A, B]",
    "(A, B)",
    "{'a': A, 'b': B}",
    "A | join(B)",
    "A | list",
    "A | tojson(indent=2)",
    "A | string",
    "A | replace('a', B)",
    "A | map('string') | list",
    "A | sort",
    "A | sum(start=B)",
    "A | batch(3, B) | list",
    "A.split('a')",
    "A.join(B)",
    "'%s{}'.format(A)",
    "A[1:]",
    "A[-1]",
    "A | indent(7, true)",
    "A | wordwrap(2, true, B)",
    "A | truncate(9, true, B)",
    "A | urlencode",
    "A | striptags",
    "A | pprint",
    "{'a': A} | xmlattr",
    "A.expandtabs(B)",
    "A.ljust(9, B)",
];

fn expression(random: &mut Random, depth: usize) -> String {
    if depth == 0 {
        return random.pick(&ATOMS).to_owned();
    }
    let [a, b] = [(); 2].map(|()| format!("({})", expression(random, depth - 1)));
    // Names within are lower case.
    random.pick(&SHAPES).replace('A', &a).replace('B', &b)
}

/// Linear congruence, Knuth's MMIX.
struct Random(u64);

impl Random {
    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        from[(self.0 >> 33) as usize % from.len()]
    }
}
