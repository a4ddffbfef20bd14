//! Chat templates against Python: byte for byte what `golden/make_templates.py` wrote.

mod shared;

use std::path::Path;

use fornax_text::{ChatTemplate, Clock, Error, Special, from_wire};
use serde_json::Value as Json;

fn golden() -> Json {
    let text = include_str!("golden/templates.json");
    serde_json::from_str(text).expect("what the script wrote is JSON")
}

/// Renders every conversation with every template of a folder, and compares.
fn compare(golden: &Json, folder: &str, directory: &Path) -> usize {
    let clock = Clock::Fixed {
        unix_seconds: golden["unix_seconds"].as_i64().expect("a number"),
    };
    let templates = golden["templates"].as_array().expect("a list").iter();
    let mut compared = 0;
    for made in templates.filter(|made| made["folder"] == folder) {
        let name = made["name"].as_str().expect("a name");
        let source = std::fs::read_to_string(directory.join(format!("{name}.jinja")));
        let source = source.expect("a template that was there when the goldens were made");
        let template = ChatTemplate::from_source(name, &source, None)
            .expect("a template that can be read")
            .with_clock(clock);
        for (title, conversation) in golden["conversations"].as_object().expect("an object") {
            let mut request = made["variables"].as_object().expect("an object").clone();
            request.extend(conversation.as_object().expect("an object").clone());
            let mut request = Json::Object(request);
            from_wire(&mut request);
            let ours = template.render(&request);
            check(
                &format!("{name}, {title:?}"),
                ours,
                &made["rendered"][title],
            );
            compared += 1;
        }
    }
    compared
}

fn check(case: &str, ours: Result<String, Error>, python: &Json) {
    match (ours, &python["text"], &python["refused"]) {
        (Ok(ours), Json::String(text), _) => assert_eq!(&ours, text, "{case}"),
        (Err(Error::TemplateRefused { message, line, .. }), _, Json::String(refused)) => {
            assert_eq!(&message, refused, "{case}");
            assert!(line > 0, "{case}: the line is not known");
        }
        (Err(Error::TemplateFailed { problem, line, .. }), Json::Null, Json::Null) => {
            assert!(line > 0, "{case}: the line of {problem:?} is not known");
        }
        (ours, _, _) => panic!("{case}: {ours:?}, where Python has {python}"),
    }
}

#[test]
#[cfg_attr(no_shared, ignore = "needs ../shared: real chat templates")]
fn real_templates_render_as_in_python() {
    let compared = compare(&golden(), "shared", &shared::path("templates"));
    assert!(compared >= 4 * 33, "only {compared} renderings");
}

#[test]
fn features_of_python_render_as_in_python() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let compared = compare(&golden(), ".", &directory);
    assert!(compared >= 33, "only {compared} renderings");
}

#[test]
fn expressions_are_what_they_are_in_python() {
    let golden = golden();
    let clock = Clock::Fixed {
        unix_seconds: golden["unix_seconds"].as_i64().expect("a number"),
    };
    let mut request = golden["expressions"]["given"].clone();
    request["messages"] = Json::Array(Vec::new());
    let answers = golden["expressions"]["answers"]
        .as_object()
        .expect("an object");
    let mut wrong = Vec::new();
    for (expression, python) in answers {
        let source = format!("{{{{ {expression} }}}}");
        let rendered = ChatTemplate::from_source("expression", &source, None)
            .and_then(|template| template.with_clock(clock).render(&request));
        match (rendered, &python["text"]) {
            (Ok(ours), Json::String(text)) if ours == *text => {}
            (Err(_), Json::Null) => {}
            (ours, _) => wrong.push(format!("{expression}\n  {ours:?}\n  {python}")),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn families_of_templates_render_as_in_python() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/families");
    let compared = compare(&golden(), "families", &directory);
    assert!(compared >= 7 * 33, "only {compared} renderings");
}

#[test]
#[cfg_attr(
    no_shared,
    ignore = "needs ../shared: real chat templates and vocabularies"
)]
fn real_templates_end_a_turn_with_their_token() {
    for (name, vocabulary, end) in [
        ("Qwen-Qwen3-0.6B", "qwen2", "<|im_end|>"),
        ("Qwen-Qwen2.5-7B-Instruct", "qwen2", "<|im_end|>"),
        (
            "meta-llama-Llama-3.2-3B-Instruct",
            "llama-bpe",
            "<|eot_id|>",
        ),
    ] {
        let source = std::fs::read_to_string(shared::path(&format!("templates/{name}.jinja")));
        let tokenizer = shared::tokenizer(vocabulary);
        let template = ChatTemplate::from_source(name, &source.unwrap(), Some(&tokenizer)).unwrap();
        let end = tokenizer.encode(end, Special::Parse);
        assert_eq!(end.len(), 1, "{vocabulary} has the control token");
        assert!(template.stop_tokens(&tokenizer).contains(&end[0]), "{name}");
    }
}
