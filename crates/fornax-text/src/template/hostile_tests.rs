//! Templates that would take all memory, all time or the whole stack.

use super::*;

/// Makes a namespace that keeps a text and a list.
const NAMESPACE: &str = "{% set ns = namespace(l=[1], s='x') %}";

/// Repeats `body` often enough to double something beyond all bounds.
fn often(body: &str) -> String {
    format!("{NAMESPACE}{{% for i in range(100) %}}{body}{{% endfor %}}")
}

fn refused(source: &str) {
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
}
