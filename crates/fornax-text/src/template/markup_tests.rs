//! What is added to texts that are marked safe; what is expected is what Jinja wrote.

use crate::template::trial;

/// _compile_jinja_template(source).render()
#[test]
fn what_is_added_to_markup_is_escaped() {
    for (source, expected) in [
        // As the functionary template writes a tool.
        (
            "{% set t = {\"name\": \"f\", \"description\": \"<d> & 'q'\"} %}{{ \"Use '\"|safe + t[\"name\"] + \"' to '\"|safe + t[\"description\"] + \"'\\n\"|safe + t | tojson() }}",
            "Use 'f' to '&lt;d&gt; &amp; &#39;q&#39;'\n{&#34;name&#34;: &#34;f&#34;, &#34;description&#34;: &#34;&lt;d&gt; &amp; &#39;q&#39;&#34;}",
        ),
        ("{{ \"…\"|safe + '<' }}", "…&lt;"),
        ("{{ '<' + (\"…\"|safe) }}", "&lt;…"),
        ("{{ (\"<\"|e)|e }}", "&lt;"),
        ("{{ \"<\"|e + \"&\" }}", "&lt;&amp;"),
        ("{{ \"&\" + \"<\"|e }}", "&amp;&lt;"),
        ("{{ \"<\"|e|forceescape }}", "&amp;lt;"),
        ("{{ \"<\"|forceescape|e }}", "&lt;"),
        ("{{ \"<\"|e ~ \"&\" }}", "&lt;&"),
        ("{{ (\"<\"|e)~\"&\"|e }}", "&lt;&amp;"),
        ("{{ (\"%s\"|safe)|format('<') }}", "&lt;"),
        ("{{ (\"%s\"|safe) % '<' }}", "&lt;"),
        ("{{ (\"<\"|safe)|upper + '<' }}", "<&lt;"),
        ("{{ (\"<\"|safe)|lower + '<' }}", "<&lt;"),
        ("{{ (\" < \"|safe)|trim + '<' }}", "<&lt;"),
        ("{{ (\"<\"|safe)|string + '<' }}", "<&lt;"),
        ("{{ (\"<\"|safe)|capitalize + '<' }}", "<&lt;"),
        ("{{ (\"<\"|safe)|title + '<' }}", "<<"),
        ("{{ (\"<a\"|safe)|replace('a','b') + '<' }}", "<b<"),
        ("{{ (\"<a\"|safe)[1:] + '<' }}", "a&lt;"),
        ("{{ [\"<\"|safe]|join + '<' }}", "<<"),
        ("{{ [\"<\"|e]|first + '<' }}", "&lt;&lt;"),
        ("{{ (\"<a\"|safe)|default('x') + '<' }}", "<a&lt;"),
        ("{{ (\"<a\"|safe).upper() + '<' }}", "<A&lt;"),
        ("{{ (\"<a\"|safe).strip() + '<' }}", "<a&lt;"),
        ("{{ (\"<a\"|safe)|indent + '<' }}", "<a&lt;"),
        (
            "{% set x %}<{% endset %}{{ x + '<' }}{{ ('<'|e) + x }}",
            "<<&lt;&lt;",
        ),
        (
            "{% macro m() %}<{% endmacro %}{{ m() + '<' }}{{ ('<'|e) + m() }}",
            "<<&lt;&lt;",
        ),
        ("{{ 1 + 2.5 }}", "3.5"),
        ("{{ [1] + [2] }}", "[1, 2]"),
        ("{{ (1,) + (2,) }}", "(1, 2)"),
        ("{{ 1 + true }}", "2"),
        ("{% autoescape false %}{{ '<' }}{% endautoescape %}", "<"),
    ] {
        assert_eq!(trial::template(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn what_markup_cannot_do_here_is_refused() {
    for (source, part) in [
        ("{{ ('<'|safe) + 1 }}", "cannot be added"),
        ("{{ nothing + 'a' }}", "undefined"),
        (
            "{{ ('a b'|safe).split() }}",
            "split of a text that is marked safe",
        ),
        (
            "{{ ('a'|safe).replace('a', '<') }}",
            "replace of a text that is marked safe",
        ),
        (
            "a\n{% autoescape true %}{{ '<' }}{% endautoescape %}",
            "line 2",
        ),
        (
            "a\n{% autoescape x %}{{ '<' }}{% endautoescape %}",
            "autoescape is not supported",
        ),
    ] {
        let error = trial::template(source).unwrap_err();
        assert!(error.contains(part), "{source}: {error}");
    }
}
