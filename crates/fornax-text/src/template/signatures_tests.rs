//! Filters with arguments by position and by name; what is expected is what Jinja wrote.

use serde_json::json;

use crate::template::{ChatTemplate, trial};

/// _compile_jinja_template(source).render()
#[test]
fn filters_take_the_names_of_jinja() {
    for (expression, expected) in [
        ("nothing|default(default_value='x')", "x"),
        ("''|default('x',boolean=true)", "x"),
        ("''|d('x',true)", "x"),
        ("'xxaxx'|trim(chars='x')", "a"),
        ("'aaa'|replace(old='a',new='b',count=2)", "bba"),
        ("'aaa'|replace('a','b',count=1)", "baa"),
        (
            "[1,2,3]|batch(linecount=2,fill_with=0)|list",
            "[[1, 2], [3, 0]]",
        ),
        ("[1,2,3]|batch(2,fill_with='x')|list", "[[1, 2], [3, 'x']]"),
        ("[1,2,3]|slice(slices=2)|list", "[[1, 2], [3]]"),
        ("[1,2,3]|slice(2,fill_with=0)|list", "[[1, 2], [3, 0]]"),
        ("{'b':1,'A':2}|dictsort(true)", "[('A', 2), ('b', 1)]"),
        ("{'b':1,'A':2}|dictsort(by='value')", "[('b', 1), ('A', 2)]"),
        (
            "{'b':1,'A':2}|dictsort(false,'value',true)",
            "[('A', 2), ('b', 1)]",
        ),
        (
            "{'b':1,'A':2}|dictsort(case_sensitive=true,reverse=true)",
            "[('b', 1), ('A', 2)]",
        ),
        ("'a\\nb'|indent(width=2,first=true)", "  a\n  b"),
        ("'a\\nb'|indent(2,blank=true)", "a\n  b"),
        ("'x'|int(default=7)", "7"),
        ("'ff'|int(0,base=16)", "255"),
        ("'ff'|int(base=16)", "255"),
        ("'x'|float(default=1.5)", "1.5"),
        ("3.14159|round(precision=2)", "3.14"),
        ("3.7|round(method='floor')", "3.0"),
        ("3.14159|round(2,method='ceil')", "3.15"),
        ("[3,1,2]|sort(true)", "[3, 2, 1]"),
        ("['b','A','c']|sort(false,true)", "['A', 'b', 'c']"),
        (
            "[{'k':2},{'k':1}]|sort(attribute='k')",
            "[{'k': 1}, {'k': 2}]",
        ),
        (
            "[{'k':2},{'k':1}]|sort(false,false,'k')",
            "[{'k': 1}, {'k': 2}]",
        ),
        ("[1,2]|join(d='-')", "1-2"),
        ("[{'k':2},{'k':1}]|join('-',attribute='k')", "2-1"),
        ("[{'k':2},{'k':1}]|join(attribute='k',d='+')", "2+1"),
        ("'ab'|center(width=4)", " ab "),
        (
            "[{'k':2},{'k':1},{}]|groupby('k',default=0)|list",
            "[(0, [{}]), (1, [{'k': 1}]), (2, [{'k': 2}])]",
        ),
        (
            "[{'k':'a'},{'k':'A'}]|groupby('k',none,true)|list",
            "[('A', [{'k': 'A'}]), ('a', [{'k': 'a'}])]",
        ),
        (
            "[{'k':'a'},{'k':'A'}]|groupby(attribute='k')|list",
            "[('a', [{'k': 'a'}, {'k': 'A'}])]",
        ),
        ("['a','A']|unique(true)|list", "['a', 'A']"),
        ("['a','A']|unique(case_sensitive=false)|list", "['a']"),
        ("[{'k':2},{'k':2}]|unique(attribute='k')|list", "[{'k': 2}]"),
        ("['b','A']|min(true)", "A"),
        ("['a','B']|max(case_sensitive=true)", "a"),
        ("[{'k':2},{'k':3}]|max(attribute='k')", "{'k': 3}"),
        ("[{'k':2},{'k':3}]|max(false,'k')", "{'k': 3}"),
        ("[{'k':2},{'k':3}]|sum('k')", "5"),
        ("[{'k':2},{'k':3}]|sum(attribute='k',start=10)", "15"),
        ("[1,2]|sum(start=3)", "6"),
        (
            "[{\"a\":1}]|map(\"tojson\",indent=2)|list",
            "['{\\n  \"a\": 1\\n}']",
        ),
        (
            "[nothing,'',1]|map(\"default\",\"x\",boolean=true)|list",
            "['x', 'x', 1]",
        ),
        (
            "['aa','a']|map(\"replace\",\"a\",\"b\",count=1)|list",
            "['ba', 'b']",
        ),
        ("[1.234,2]|map(\"round\",precision=2)|list", "[1.23, 2]"),
        ("[[1,2],[3]]|map(\"join\",d=\"-\")|list", "['1-2', '3']"),
        ("[{'a':1},{}]|map(attribute='a',default=0)|list", "[1, 0]"),
        (
            "[{'a':1},{}]|map(attribute='a',default=none)|list",
            "[1, Undefined]",
        ),
        ("[{'a':{'b':1}}]|map(attribute='a.b')|list", "[1]"),
        ("[' a ']|map('trim')|list", "['a']"),
        ("['b']|map('upper')|list", "['B']"),
        ("'%(a)s-%(b)d'|format(a='x',b=2)", "x-2"),
        ("'%s-%s'|format('x','y')", "x-y"),
        ("{'a':1}|attr('a')", ""),
        ("'\\x1c a \\x1f'|trim", "a"),
        (
            "none|trim ~ true|trim ~ 12|trim ~ nothing|trim",
            "NoneTrue12",
        ),
    ] {
        assert_eq!(
            trial::expression(expression).as_deref(),
            Ok(expected),
            "{expression}"
        );
    }
}

#[test]
fn macros_that_collect_arguments_are_refused() {
    for name in ["varargs", "kwargs"] {
        let source =
            format!("a\n{{% macro m() %}}\n{{{{ {name} }}}}{{% endmacro %}}{{{{ m(1) }}}}");
        let error = ChatTemplate::from_source("test.jinja", &source, None).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("line 3") && error.contains(name), "{error}");
    }
    // _compile_jinja_template(source).render()
    let source = "{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(kwargs=1) }}{{ varargs }}";
    let template = ChatTemplate::from_source("test.jinja", source, None).unwrap();
    assert_eq!(template.render(&json!({"messages": []})).unwrap(), "1");
}

/// Where Python has a TypeError or a FilterArgumentError.
#[test]
fn other_names_are_refused() {
    for (expression, part) in [
        ("'x'|upper(a=1)", "upper has no parameter a"),
        ("'x'|default('a', b=1)", "default has no parameter b"),
        ("'x'|trim(char='x')", "trim has no parameter char"),
        (
            "[1]|map('round', prec=1)|list",
            "round has no parameter prec",
        ),
        ("'a'|replace('a')", "replace needs new"),
        (
            "'a'|replace('a', 'b', old='c')",
            "replace is given old twice",
        ),
        ("[1]|sort(key=1)", "sort has no parameter key"),
        ("[1]|first(1)", "too many arguments"),
        ("[1]|map()|list", "filter name is required"),
        ("[1]|map(attribute='a', b=1)|list", "b"),
        ("{'a': 1}|dictsort(by='x')", "dictsort: by is"),
        ("'%s'|format(1, a=2)", "not both"),
        ("strftime_now()", "strftime_now"),
        ("strftime_now(form='%Y')", "form"),
    ] {
        let error = trial::expression(expression).unwrap_err();
        assert!(error.contains(part), "{expression}: {error}");
    }
    assert_eq!(
        trial::expression("strftime_now(format='%%')").as_deref(),
        Ok("%")
    );
}
