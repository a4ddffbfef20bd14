//! The description of the protocol, against what a server really answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{chat, get, post, shared};
use serde_json::{Value, json};

/// Asserts that a value is what a schema says: the part of JSON Schema that ours uses.
fn check(described: &Value, schema: &Value, value: &Value, place: &str) {
    if let Some(reference) = schema["$ref"].as_str() {
        let schema = described.pointer(&reference[1..]).unwrap();
        return check(described, schema, value, place);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let fits = |schema: &&Value| kind_fits(described, schema, value);
        let schema = any.iter().find(fits);
        let schema = schema.unwrap_or_else(|| panic!("{place}: {value} is none of {any:?}"));
        return check(described, schema, value, place);
    }
    assert!(
        kind_fits(described, schema, value),
        "{place}: {value} is no {schema}"
    );
    if let Some(constant) = schema.get("const") {
        assert_eq!(value, constant, "{place}");
    }
    if let Some(known) = schema["enum"].as_array() {
        assert!(
            known.contains(value),
            "{place}: {value} is none of {known:?}"
        );
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        for (index, value) in values.iter().enumerate() {
            check(described, items, value, &format!("{place}[{index}]"));
        }
    }
    if let Some(fields) = value.as_object() {
        check_fields(described, schema, fields, place);
    }
}

fn check_fields(
    described: &Value,
    schema: &Value,
    fields: &serde_json::Map<String, Value>,
    place: &str,
) {
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap();
        assert!(fields.contains_key(name), "{place}: {name} is missing");
    }
    for (name, value) in fields {
        let place = format!("{place}.{name}");
        match (
            schema["properties"].get(name),
            &schema["additionalProperties"],
        ) {
            (Some(schema), _) => check(described, schema, value, &place),
            (None, Value::Bool(false)) => panic!("{place} is not described"),
            (None, Value::Null) => {}
            (None, schema) => check(described, schema, value, &place),
        }
    }
}

fn kind_fits(described: &Value, schema: &Value, value: &Value) -> bool {
    if let Some(reference) = schema["$ref"].as_str() {
        return kind_fits(
            described,
            described.pointer(&reference[1..]).unwrap(),
            value,
        );
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Null => return true,
        Value::String(kind) => vec![kind],
        kinds => kinds
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| kind.as_str().unwrap())
            .collect(),
    };
    kinds.iter().any(|kind| match *kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        kind => panic!("{kind} is no type"),
    })
}

fn described() -> Value {
    get(shared(), "/openapi.json").json()
}

/// The schema of what an address answers with this status.
fn schema<'a>(described: &'a Value, path: &str, status: u16, form: &str) -> &'a Value {
    let (_, operation) = described["paths"][path]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    let mut answer = &operation["responses"][status.to_string()];
    if let Some(reference) = answer["$ref"].as_str() {
        answer = described.pointer(&reference[1..]).unwrap();
    }
    &answer["content"][form]["schema"]
}

#[test]
fn answers_are_what_is_described() {
    let described = described();
    let logprobs = json!({"logprobs": true, "top_logprobs": 2, "n": 2});
    let text = json!({"prompt": "Once", "max_tokens": 3, "logprobs": 1, "echo": true});
    for (path, body) in [
        ("/v1/chat/completions", chat("Hi", json!({}))),
        ("/v1/chat/completions", chat("Hi", logprobs)),
        (
            "/v1/chat/completions",
            chat("Hi", json!({"temperature": -1})),
        ),
        (
            "/v1/chat/completions",
            chat("Hi", json!({"model": "other"})),
        ),
        ("/v1/chat/completions/render", chat("Hi", json!({}))),
        (
            "/v1/completions",
            json!({"prompt": "Once", "max_tokens": 3}),
        ),
        ("/v1/completions", text),
        (
            "/v1/completions/render",
            json!({"prompt": ["Once", [1, 2]]}),
        ),
        ("/v1/embeddings", json!({"input": "Hi"})),
        (
            "/v1/embeddings",
            json!({"input": "Hi", "encoding_format": "base64"}),
        ),
        ("/v1/embeddings", json!({"input": "fox ".repeat(3000)})),
        ("/tokenize", json!({"prompt": "Hi"})),
        ("/detokenize", json!({"tokens": [1, 2]})),
        ("/detokenize", json!({})),
    ] {
        let reply = post(shared(), path, &body);
        let schema = schema(&described, path, reply.status, "application/json");
        assert!(schema.is_object(), "{path} {}", reply.status);
        check(&described, schema, &reply.json(), path);
    }
    for path in [
        "/v1/models",
        "/v1/models/{id}",
        "/health",
        "/ready",
        "/version",
    ] {
        let reply = get(shared(), &path.replace("{id}", "fornax-mini"));
        let schema = schema(&described, path, 200, "application/json");
        check(&described, schema, &reply.json(), path);
    }
}

#[test]
fn streamed_answers_are_what_is_described() {
    let described = described();
    let extra = json!({
        "stream": true, "logprobs": true, "top_logprobs": 1,
        "stream_options": {"include_usage": true},
    });
    let text = json!({"prompt": "Once", "max_tokens": 3, "stream": true, "echo": true});
    for (path, body) in [
        ("/v1/chat/completions", chat("Hi", extra)),
        ("/v1/completions", text),
    ] {
        let schema = schema(&described, path, 200, "text/event-stream");
        for event in post(shared(), path, &body).events() {
            check(&described, schema, &event, path);
        }
    }
}

#[test]
fn the_examples_are_answered() {
    let described = described();
    for (path, methods) in described["paths"].as_object().unwrap() {
        let body = methods.pointer("/post/requestBody/content/application~1json/schema/$ref");
        let Some(body) = body.and_then(Value::as_str) else {
            continue;
        };
        let example = &described.pointer(&body[1..]).unwrap()["examples"][0];
        let reply = post(shared(), path, example);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
    }
}

/// The status of a request with this value in a field.
fn ask_with(path: &str, example: &Value, field: &str, value: Value) -> u16 {
    let mut body = example.clone();
    match field {
        // Each goes with another field alone.
        "best_of" => body["n"] = value.clone(),
        "top_logprobs" => body["logprobs"] = json!(true),
        "max_completion_tokens" => body["max_tokens"] = json!(null),
        _ => {}
    }
    body[field] = value;
    post(shared(), path, &body).status
}

#[test]
fn values_are_taken_that_are_described_and_no_others() {
    let described = described();
    for (path, schema) in [
        ("/v1/chat/completions/render", "ChatRequest"),
        ("/v1/completions/render", "CompletionRequest"),
        ("/v1/embeddings", "EmbeddingsRequest"),
        ("/tokenize", "TokenizeRequest"),
        ("/detokenize", "DetokenizeRequest"),
    ] {
        let schema = &described["components"]["schemas"][schema];
        let example = &schema["examples"][0];
        for (field, about) in schema["properties"].as_object().unwrap() {
            let taken = |value| ask_with(path, example, field, value) == 200;
            let refused = |value| ask_with(path, example, field, value) == 400;
            let is_required = schema["required"]
                .as_array()
                .unwrap()
                .contains(&json!(field));
            assert_eq!(taken(json!(null)), !is_required, "{path} {field}");
            let beside = |bound: &Value, step: i64| match bound.as_i64() {
                Some(bound) => bound.checked_add(step).map(|beside| json!(beside)),
                // A fraction: by half of it.
                None => bound
                    .as_f64()
                    .map(|bound| json!(bound * (1.0 + step as f64 / 2.0))),
            };
            if let Some(least) = about.get("minimum") {
                // An answer without a token is an echo alone.
                assert!(
                    taken(least.clone()) || (field, least) == (&"max_tokens".to_owned(), &json!(0)),
                    "{path} {field} {least}"
                );
                if let Some(below) = beside(least, -1) {
                    assert!(refused(below), "{path} {field} below {least}");
                }
            }
            if let Some(least) = about.get("exclusiveMinimum") {
                assert!(refused(least.clone()), "{path} {field} {least}");
                assert!(taken(json!(1e-3)), "{path} {field} above {least}");
            }
            if let Some(most) = about.get("maximum") {
                assert!(taken(most.clone()), "{path} {field} {most}");
                if let Some(above) = beside(most, 1) {
                    assert!(refused(above), "{path} {field} above {most}");
                }
            }
        }
    }
    let biased = |bias: f64| {
        let example = json!({"prompt": "Once"});
        let bias = json!({"1": bias});
        ask_with("/v1/completions/render", &example, "logit_bias", bias)
    };
    assert_eq!(
        [-100.5, -100.0, 100.0, 100.5].map(biased),
        [400, 200, 200, 400]
    );
}

#[test]
fn the_page_is_served() {
    let page = get(shared(), "/docs");
    assert_eq!(page.status, 200);
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    assert!(page.body.contains("<title>Fornax</title>"));
}
