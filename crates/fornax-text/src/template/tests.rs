//! Templates with a small vocabulary: markers, the end of a turn, errors.

use serde_json::json;

use super::*;
use crate::sample::Sample;

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::from_source("test.jinja", source, Some(&Sample::default().tokenizer())).unwrap()
}

fn request() -> Json {
    json!({"messages": [{"role": "user", "content": "Hello"}]})
}

fn failure(source: &str, request: &Json) -> String {
    template(source).render(request).unwrap_err().to_string()
}

#[test]
fn cycles_divisions_sums_and_batches_are_those_of_python() {
    let source = "{% for x in [1, 2, 3] %}{{ loop.cycle('a', 'b') }}{{ loop.cycle(*['c', 'd']) }} {% endfor %}\
                  {{ 4 is divisibleby 2 }} {{ 5 is divisibleby(2) }} {{ 4.5 is divisibleby 1.5 }} {{ true is divisibleby -1 }} \
                  {{ ([{'n': 1, 'b': 2, 'c': 3}] * 6000) | sum(attribute='n') }} {{ [1, 2, 3] | batch(2, 123456789) | list }}";
    let text = template(source).render(&request()).unwrap();
    assert_eq!(
        text,
        "ac bd ac True False True True 6000 [[1, 2], [3, 123456789]]"
    );
}

#[test]
fn markers_come_from_the_vocabulary_and_requests_override() {
    let mut sample = Sample::default();
    sample.numbers = vec![
        ("ggml.bos_token_id", sample.id("<bos>")),
        ("ggml.eos_token_id", sample.id("<eos>")),
        ("ggml.padding_token_id", sample.id("[PAD]")),
    ];
    sample.texts = vec![(
        "chat_template",
        "{{ bos_token }}{{ tools }}{{ more }}{{ eos_token }}{{ pad_token }}{{ unk_token }}",
    )];
    let gguf = sample.gguf();
    let template = ChatTemplate::from_gguf(&gguf, &sample.tokenizer()).unwrap();
    assert_eq!(template.render(&request()).unwrap(), "<bos>None<eos>[PAD]");
    let mut request = request();
    request["more"] = json!(7);
    request["bos_token"] = json!("^");
    assert_eq!(template.render(&request).unwrap(), "^None7<eos>[PAD]");
}

#[test]
fn line_ends_of_any_kind_are_one_as_in_python() {
    let source = "a\r\n{% if true %}\r\nB\r\n{% endif %}\rc\n{{ 'd\r\ne' }}\r\n";
    let template = ChatTemplate::from_source("lines", source, None).unwrap();
    // _compile_jinja_template(source).render()
    assert_eq!(template.render(&request()).unwrap(), "a\nB\nc\nd\ne");
}

#[test]
fn jumps_that_the_engine_loses_its_way_by_are_refused() {
    for (body, part) in [
        (
            "{% with v = x %}{% continue %}{% endwith %}",
            "continue cannot leave",
        ),
        ("{% set v %}a{% break %}{% endset %}", "break cannot leave"),
        (
            "{% filter upper %}{% if x %}{% break %}{% endif %}{% endfilter %}",
            "break cannot",
        ),
    ] {
        let source = format!("first\n{{% for x in [1] %}}{body}{{% endfor %}}");
        let error = ChatTemplate::from_source("test.jinja", &source, None).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(part) && error.contains("line 2"), "{error}");
    }
    for (source, part) in [
        ("{% if true %}{% continue %}{% endif %}", "inside a loop"),
        (
            "{% for x in [] %}{% else %}{% break %}{% endfor %}",
            "break stands outside",
        ),
        (
            "{% for x in [1] recursive %}{% break %}{% else %}no{% endfor %}",
            "recursive",
        ),
    ] {
        let error = ChatTemplate::from_source("test.jinja", source, None).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let inner = "{% for x in [1] %}{% with v = x %}{% for y in [1] %}{% continue %}{% endfor %}{% endwith %}a{% endfor %}";
    assert_eq!(template(inner).render(&request()).unwrap(), "a");
}

#[test]
fn what_python_would_answer_otherwise_is_refused() {
    for (source, part) in [
        ("{{ messages[0].keys()[0] }}", "no items by number"),
        ("{{ range(2) + [1] }}", "cannot be added"),
        ("{{ [1] + messages[0].keys() }}", "cannot be added"),
    ] {
        let error = failure(source, &request());
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_template_for_tools_is_used_where_there_are_tools() {
    let sample = Sample {
        texts: vec![
            ("chat_template", "plain"),
            (
                "chat_template.tool_use",
                "{% for tool in tools %}{{ tool.name }}{% endfor %}",
            ),
        ],
        ..Sample::default()
    };
    let template = ChatTemplate::from_gguf(&sample.gguf(), &sample.tokenizer()).unwrap();
    let mut request = request();
    assert_eq!(template.render(&request).unwrap(), "plain");
    request["tools"] = Json::Null;
    assert_eq!(template.render(&request).unwrap(), "plain");
    request["tools"] = json!([{"name": "clock"}]);
    assert_eq!(template.render(&request).unwrap(), "clock");
}

#[test]
fn a_file_without_a_template_says_so() {
    let sample = Sample::default();
    let error = ChatTemplate::from_gguf(&sample.gguf(), &sample.tokenizer()).unwrap_err();
    assert!(matches!(&error, Error::NoChatTemplate { file } if file == "sample.gguf"));
    assert!(
        error.to_string().contains("sample.gguf: no chat template"),
        "{error}"
    );
}

#[test]
fn the_control_token_behind_an_answer_ends_a_turn() {
    let mut sample = Sample::default();
    sample.numbers = vec![("ggml.eos_token_id", sample.id("<eos>"))];
    let tokenizer = sample.tokenizer();
    let (eos, end) = (sample.id("<eos>"), sample.id("<end>"));
    let turns = |turn: &str| format!("{{% for m in messages %}}{turn}{{% endfor %}}");
    for (source, expected) in [
        (
            turns("<bos>{{ m.role }}: {{ m.content }}<end>\n"),
            vec![eos, end],
        ),
        (turns("{{ m.content | trim }} \n <end>"), vec![eos, end]),
        (turns("{{ m.content }}{{ eos_token }}"), vec![eos]),
        (turns("{{ m.content }}<think>"), vec![eos]),
        (turns("{{ m.role }}: {{ m.content }}\n"), vec![eos]),
        (turns("{{ m.content[0].text }}<end>"), vec![eos, end]),
        (
            "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}"
                .to_owned()
                + &turns("{{ m.content }}<end>"),
            vec![eos, end],
        ),
        ("{{ raise_exception('never') }}".to_owned(), vec![eos]),
    ] {
        assert_eq!(
            template(&source).stop_tokens(&tokenizer),
            expected,
            "{source}"
        );
    }
}

#[test]
fn what_a_template_looks_at_is_known() {
    let template =
        template("{% if enable_thinking is defined %}{% set own = 1 %}{{ own }}{% endif %}");
    assert!(template.uses("enable_thinking"));
    assert!(!template.uses("own"));
    assert!(!template.uses("tools"));
}

#[test]
fn a_template_that_cannot_be_read_names_its_line() {
    let tokenizer = Sample::default().tokenizer();
    let read = |source: &str| ChatTemplate::from_source("test.jinja", source, Some(&tokenizer));
    for source in ["a\n{% if %}", "a\n{% fly %}", "a\n{{ 'open }}"] {
        let error = read(source).unwrap_err().to_string();
        assert!(
            error.starts_with("test.jinja, line 2: syntax error"),
            "{error}"
        );
    }
}

#[test]
fn a_failure_says_what_where_and_what_to_do() {
    let error = failure("a\n{{ messages[0].missing.deeper }}", &request());
    assert!(
        error.contains("test.jinja, line 2: undefined value"),
        "{error}"
    );
    assert!(error.contains("messages[0].missing"), "{error}");
    let error = failure(
        "a\nb\n{{ raise_exception('No ' ~ messages[0].role ~ 's.') }}",
        &request(),
    );
    assert!(
        error.contains("refuses this conversation: No users. (test.jinja, line 3)"),
        "{error}"
    );
    let error = failure(
        "{% macro m() %}\n{{ raise_exception('deep') }}{% endmacro %}\n{{ m() }}",
        &request(),
    );
    assert!(error.contains("refuses this conversation: deep"), "{error}");
    let error = failure("{{ undefined_name | tojson }}", &request());
    assert!(
        error.contains("tojson: undefined cannot be written as JSON"),
        "{error}"
    );
}

/// It came from somebody's template and took the program with it.
#[test]
fn what_the_engine_cannot_do_is_an_error() {
    let source = "{{ 'a' | indent(9223372036854775807) }}";
    let error = template(source).render(&request()).unwrap_err();
    assert!(matches!(error, Error::TemplateFailed { .. }), "{error}");
}

#[test]
fn a_request_that_is_none_is_refused_by_its_place() {
    for (request, place) in [
        (json!([]), "the request is not an object"),
        (json!({}), "messages is not a list"),
        (json!({"messages": "hi"}), "messages is not a list"),
        (
            json!({"messages": [{"role": "user"}, "hi"]}),
            "messages[1] is not an object",
        ),
        (
            json!({"messages": [{"content": "hi"}]}),
            "messages[0].role is not a text",
        ),
    ] {
        let error = failure("", &request);
        assert!(error.contains(place), "{error:?} does not say {place:?}");
    }
}

/// A renderer that mends requests on the sly could not be compared with any other.
#[test]
fn a_request_is_rendered_as_it_is_and_mended_only_on_demand() {
    let call = r#"{% for m in messages %}{{ m.content }}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}"#;
    let template = template(call);
    let mut request = serde_json::json!({ "messages": [{
        "role": "assistant",
        "content": null,
        "tool_calls": [{ "function": { "name": "f", "arguments": "{\"x\": 1}" } }],
    }] });
    let plain = template.render(&request).unwrap();
    assert_eq!(plain, r#"None"{\"x\": 1}""#);
    from_wire(&mut request);
    assert_eq!(template.render(&request).unwrap(), r#"{"x": 1}"#);
}

/// As Jinja2 renders them.
#[test]
fn filters_that_the_engine_lacks_are_there() {
    for (source, expected) in [
        ("'ab'|center(5)", "  ab "),
        ("'abc'|center(6)", " abc  "),
        ("'abc'|center(2)", "abc"),
        ("7|center(width=4)", " 7  "),
        ("'ünïcode word_1, x-y'|wordcount", "4"),
        ("[3, 1]|wordcount", "2"),
        ("' 1.5 '|float", "1.5"),
        ("'x'|float", "0.0"),
        ("'x'|float(2.5)", "2.5"),
        ("true|float", "1.0"),
        ("[1]|float(default=0.5)", "0.5"),
        ("'1e3'|float", "1000.0"),
        ("'<a>&'|forceescape", "&lt;a&gt;&amp;"),
    ] {
        let template = template(&format!("{{{{ {source} }}}}"));
        assert_eq!(template.render(&request()).unwrap(), expected, "{source}");
    }
    let error = failure("{{ 'a'|center(1001) }}", &request());
    assert!(error.contains("width"), "{error}");
}

#[path = "hostile_tests.rs"]
mod hostile;

#[test]
fn what_no_prompt_can_have_is_refused_by_its_name() {
    for (source, told) in [
        ("{{ [1, 2] | random }}", "random: not supported"),
        ("{{ 'a.b' | urlize }}", "urlize: not supported"),
        ("{% set x = [1] %}{{ x.append(2) }}", "cannot change a list"),
        (
            "{% set x = {'a': 1} %}{{ x.update(x) }}",
            "cannot change a dictionary",
        ),
        (
            "{{ 'a' | wordwrap(0) }}",
            "wordwrap: the width is to be one or more",
        ),
        (
            "{{ 'a' | truncate('x') }}",
            "truncate: length is to be a whole number, not a string",
        ),
    ] {
        let error = failure(source, &request());
        assert!(error.contains(told), "{source}: {error}");
    }
    // Only where it is asked for.
    let spared = template("{% if none %}{{ [1] | random }}{% endif %}x");
    assert_eq!(spared.render(&request()).unwrap(), "x");
}

#[test]
fn none_has_no_items_and_what_is_undefined_has_nothing_in_it() {
    // `TypeError: 'NoneType' object is not iterable`, or `has no len()`.
    for source in [
        "{% for tool in tools %}{{ tool }}{% endfor %}",
        "{% for tool in tools if tool %}{% else %}none{% endfor %}",
        "{{ 'a' in tools }}",
        "{{ 1 < 2 in tools }}",
        "{{ tools|length }}",
        "{{ tools|first }}",
        "{{ tools|join(',') }}",
        "{{ tools|list|tojson }}",
    ] {
        let error = failure(source, &request());
        assert!(error.contains("None has no items"), "{source}: {error}");
    }
    // _compile_jinja_template(source).render(messages=messages, tools=None)
    for (source, expected) in [
        ("{% for x in nothing %}{% else %}none{% endfor %}", "none"),
        (
            "{{ nothing|length }}{{ nothing|count }}{{ 1 in nothing }}",
            "00False",
        ),
        (
            "[{{ nothing|first }}{{ nothing|last }}{{ nothing|join }}]",
            "[]",
        ),
        (
            "{{ nothing|items|list }}{{ messages[0]|items|first }}",
            "[]('role', 'user')",
        ),
        (
            "{{ tools|map('upper')|list }}{{ tools|select|list }}",
            "[][]",
        ),
    ] {
        assert_eq!(
            template(source).render(&request()).unwrap(),
            expected,
            "{source}"
        );
    }
}
