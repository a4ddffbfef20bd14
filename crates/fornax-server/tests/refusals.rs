//! What is refused, with which status and which name; and what is not, though it looks odd.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{BUILT_IN, NAME, chat, get, load, metric, post, receive, send, shared, start};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[test]
fn a_field_that_cannot_be_met_is_named() {
    for (field, value, param) in [
        ("tools", json!([{"type": "function"}]), "tools"),
        ("tool_choice", json!("required"), "tool_choice"),
        (
            "response_format",
            json!({"type": "json_object"}),
            "response_format",
        ),
        ("store", json!(true), "store"),
        ("min_tokens", json!(3), "min_tokens"),
        ("no_such_field", json!(1), "no_such_field"),
        ("temperature", json!("hot"), "temperature"),
        ("n", json!(1.5), "n"),
        ("temperature", json!(-1), "temperature"),
        ("top_p", json!(1.5), "top_p"),
        ("top_k", json!(-2), "top_k"),
        ("frequency_penalty", json!(3), "frequency_penalty"),
        ("priority", json!(128), "priority"),
        ("priority", json!("high"), "priority"),
        ("n", json!(0), "n"),
        ("n", json!(1000), "n"),
        ("best_of", json!(2), "best_of"),
        ("max_tokens", json!(0), "max_tokens"),
        ("max_completion_tokens", json!(5), "max_tokens"),
        ("top_logprobs", json!(2), "top_logprobs"),
        ("logit_bias", json!({"x": 1}), "logit_bias"),
        ("logit_bias", json!({"999999": 1}), "logit_bias"),
        ("logit_bias", json!({"1": 1, "01": -1}), "logit_bias"),
        ("logit_bias", json!({"1": "much"}), "logit_bias.1"),
        ("stop", json!([1]), "stop[0]"),
        ("stop", json!(""), "stop"),
        ("stop", json!(vec!["~"; 5000]), "stop"),
        (
            "stream_options",
            json!({"include_usage": true}),
            "stream_options",
        ),
        (
            "chat_template_kwargs",
            json!({"tools": []}),
            "chat_template_kwargs.tools",
        ),
        ("messages", json!([]), "messages"),
        (
            "messages",
            json!([{"role": "robot", "content": "Hi"}]),
            "messages[0].role",
        ),
        ("messages", json!([{"role": "user"}]), "messages[0].content"),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
            "messages[0].content[0].type",
        ),
        (
            "messages",
            json!([{"role": "user", "content": "Hi", "audio": {"id": "x"}}]),
            "messages[0].audio",
        ),
        (
            "messages",
            json!([{"role": "user", "content": 5}]),
            "messages[0].content",
        ),
        (
            "messages",
            json!([{"role": "user", "content": "Hi", "tool_calls": [{"id": "x"}]}]),
            "messages[0].tool_calls",
        ),
        (
            "messages",
            json!([{"role": "user", "content": "Hi", "tool_call_id": "x"}]),
            "messages[0].tool_call_id",
        ),
        (
            "messages",
            json!([{"role": "system", "content": "Hi", "reasoning_content": "x"}]),
            "messages[0].reasoning_content",
        ),
    ] {
        let reply = post(shared(), CHAT, &chat("Hi", json!({field: value})));
        assert_eq!(reply.status, 400, "{field}: {value}: {reply:?}");
        let (message, told, _) = reply.error();
        assert_eq!(told, param, "{message}");
        let name = param.split(['.', '[']).next().unwrap();
        assert!(message.contains(name), "{param}: {message}");
        // Words, no names of Rust's types.
        let types = ["usize", "u32", "i64", "f32", "sequence"];
        assert!(
            !types.iter().any(|name| message.contains(name)),
            "{message}"
        );
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
}

#[test]
fn values_are_checked_before_anything_is_computed() {
    let server = start(load(BUILT_IN, 1), |_| {});
    let address = server.address;
    for (field, value) in [
        ("temperature", json!(-5)),
        ("top_p", json!(0)),
        ("logit_bias", json!({"1": 101})),
        ("stop", json!("")),
    ] {
        for (path, body) in [
            (
                COMPLETIONS,
                json!({"prompt": "Hi", "echo": true, "max_tokens": 0}),
            ),
            (
                COMPLETIONS,
                json!({"prompt": "Hi", "echo": true, "logprobs": 1}),
            ),
            (
                COMPLETIONS,
                json!({"prompt": "Hi", "echo": true, "logprobs": 1, "stream": true}),
            ),
            ("/v1/completions/render", json!({"prompt": "Hi"})),
            ("/v1/chat/completions/render", chat("Hi", json!({}))),
        ] {
            let mut body = body;
            body[field] = value.clone();
            let reply = post(address, path, &body);
            assert_eq!(reply.status, 400, "{path} {body}: {reply:?}");
            assert_eq!(reply.error().1, field, "{path} {body}");
        }
    }
    let whole = vec![1; 2048];
    for (path, body) in [
        (
            COMPLETIONS,
            json!({"prompt": whole, "echo": true, "logprobs": 1}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": [[1, 2], [999_999]], "echo": true, "logprobs": 1, "stream": true}),
        ),
        (
            "/v1/completions/render",
            json!({"prompt": [[1, 2], [999_999]]}),
        ),
        ("/v1/completions/render", json!({"prompt": [[1, 2], []]})),
    ] {
        let reply = post(address, path, &body);
        assert_eq!((reply.status, reply.error().1), (400, json!("prompt")));
    }
    let body = json!({"prompt": "Hi", "max_tokens": 0});
    let reply = post(address, "/v1/completions/render", &body);
    assert_eq!((reply.status, reply.error().1), (400, json!("max_tokens")));
    assert_eq!(metric(address, "fornax:steps_total"), 0.0);
    // How much too long a prompt is can be seen.
    let long = json!({"prompt": vec![1; 3000]});
    let reply = post(address, "/v1/completions/render", &long);
    assert_eq!(reply.json()["data"][0]["count"], 3000);
}

#[test]
fn what_would_be_taken_is_said() {
    for (field, value, words) in [
        (
            "seed",
            json!(9_223_372_036_854_775_808_u64),
            "-9223372036854775808 to 9223372036854775807",
        ),
        ("seed", json!(1.5), "whole numbers"),
        ("seed", json!("x"), "whole numbers"),
        ("top_k", json!(9_223_372_036_854_775_808_u64), "64 bits"),
        ("stop", json!(1), "neither a text nor a list"),
        (
            "messages",
            json!([{"role": "user", "content": 5}]),
            "neither a text nor a list",
        ),
    ] {
        let reply = post(shared(), CHAT, &chat("Hi", json!({field: value})));
        assert_eq!(reply.status, 400, "{field}: {reply:?}");
        let message = reply.error().0;
        assert!(message.contains(words), "{field}: {message}");
    }
}

#[test]
fn calls_of_tools_are_checked_before_a_template_reads_them() {
    let ask = |call: Value| {
        let messages = json!([
            {"role": "user", "content": "Hi", "tool_calls": []},
            {"role": "assistant", "tool_calls": [call], "reasoning_content": "Hm."},
            {"role": "tool", "content": "fine", "tool_call_id": "x", "name": "weather"},
        ]);
        let body = json!({"messages": messages});
        post(shared(), "/v1/chat/completions/render", &body)
    };
    for (call, place) in [
        (json!(1), ""),
        (json!({}), ".function"),
        (json!({"function": 1}), ".function"),
        (json!({"function": {"arguments": "{}"}}), ".function.name"),
        (json!({"function": {"name": "f"}}), ".function.arguments"),
        (
            json!({"function": {"name": "f", "arguments": 1}}),
            ".function.arguments",
        ),
        (
            json!({"function": {"name": "f", "arguments": "", "x": 1}}),
            ".function.x",
        ),
        (
            json!({"type": "custom", "function": {"name": "f", "arguments": ""}}),
            ".type",
        ),
        (
            json!({"id": 1, "function": {"name": "f", "arguments": ""}}),
            ".id",
        ),
        (
            json!({"index": "0", "function": {"name": "f", "arguments": ""}}),
            ".index",
        ),
    ] {
        let reply = ask(call.clone());
        assert_eq!(reply.status, 400, "{call}: {reply:?}");
        let place = format!("messages[1].tool_calls[0]{place}");
        let (message, param, _) = reply.error();
        assert_eq!(param, place, "{message}");
        assert!(message.contains(&place), "{message}");
    }
    for call in [
        json!({"function": {"name": "f", "arguments": {"a": 1}}}),
        json!({"index": 0, "function": {"name": "f", "arguments": "{}"}}),
        json!({"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}),
    ] {
        assert_eq!(ask(call.clone()).status, 200, "{call}");
    }
}

#[test]
fn a_key_that_is_there_twice_is_named() {
    let body = r#"{"prompt": "Hi", "max_tokens": 1, "prompt": "Ho"}"#;
    let reply = receive(send(shared(), "POST", COMPLETIONS, "", body));
    assert_eq!((reply.status, reply.error().1), (400, json!("prompt")));
    assert!(reply.error().0.contains("twice"), "{reply:?}");
}

#[test]
fn values_that_ask_for_nothing_are_taken() {
    let extra = json!({
        "max_tokens": 1, "max_completion_tokens": 1,
        "tools": [], "tool_choice": "none", "functions": null, "function_call": "auto", "parallel_tool_calls": true,
        "response_format": {"type": "text"}, "store": false, "service_tier": "auto",
        "modalities": ["text"], "logprobs": false, "top_logprobs": 0, "n": 1, "stop": null,
        "stream": false, "stream_options": null, "user": "ada", "metadata": {"run": "7"},
        "seed": -1, "logit_bias": {}, "presence_penalty": 0, "top_k": -1, "best_of": 1,
        "min_tokens": 0, "priority": 0, "skip_special_tokens": true, "unheard_of": null,
    });
    let reply = post(shared(), CHAT, &chat("Hi", extra));
    assert_eq!(reply.status, 200, "{reply:?}");
    for (path, body) in [
        (
            COMPLETIONS,
            json!({"prompt": "Hi", "n": 2, "best_of": 2, "max_tokens": 1}),
        ),
        ("/v1/embeddings", json!({"input": "Hi", "stream": false})),
        (
            "/tokenize",
            json!({"prompt": "Hi", "stream": false, "return_token_strs": false}),
        ),
    ] {
        let reply = post(shared(), path, &body);
        assert_eq!(reply.status, 200, "{path} {body}: {reply:?}");
    }
}

#[test]
fn as_many_answers_are_made_as_are_sent() {
    let body = json!({"prompt": "Hi", "n": 2, "best_of": 1});
    let reply = post(shared(), COMPLETIONS, &body);
    assert_eq!((reply.status, reply.error().1), (400, json!("best_of")));
    for field in ["stream", "return_token_strs"] {
        let reply = post(shared(), "/tokenize", &json!({"prompt": "Hi", field: true}));
        assert_eq!((reply.status, reply.error().1), (400, json!(field)));
    }
}

#[test]
fn another_model_is_not_found() {
    for path in [
        CHAT,
        COMPLETIONS,
        "/v1/embeddings",
        "/tokenize",
        "/detokenize",
    ] {
        let body = json!({
            "model": "gpt-9", "messages": [{"role": "user", "content": "Hi"}],
        });
        let body = match path {
            CHAT => body,
            "/v1/embeddings" => json!({"model": "gpt-9", "input": "Hi"}),
            "/detokenize" => json!({"model": "gpt-9", "tokens": [1]}),
            _ => json!({"model": "gpt-9", "prompt": "Hi"}),
        };
        let reply = post(shared(), path, &body);
        assert_eq!(reply.status, 404, "{path}: {reply:?}");
        let (message, param, code) = reply.error();
        assert_eq!((param, code), (json!("model"), json!("model_not_found")));
        assert!(
            message.contains("gpt-9") && message.contains(NAME),
            "{message}"
        );
    }
}

#[test]
fn a_name_that_is_no_text_is_no_model() {
    for name in ["%FF", "a/%FF", "%2F%FF"] {
        let reply = get(shared(), &format!("/v1/models/{name}"));
        assert_eq!(reply.status, 404, "{reply:?}");
        let (message, _, code) = reply.error();
        assert!(message.contains(name), "{message}");
        assert_eq!(code, "model_not_found");
    }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_both_numbers() {
    let long = "fox ".repeat(3000);
    for (path, body) in [
        (CHAT, chat(&long, json!({}))),
        (CHAT, chat(&long, json!({"stream": true}))),
        (COMPLETIONS, json!({"prompt": long})),
        (
            COMPLETIONS,
            json!({"prompt": long, "echo": true, "max_tokens": 0}),
        ),
        ("/v1/embeddings", json!({"input": long})),
    ] {
        let reply = post(shared(), path, &body);
        assert_eq!(reply.status, 400, "{reply:?}");
        let (message, param, code) = reply.error();
        assert_eq!(code, "context_length_exceeded");
        let field = match path {
            CHAT => "messages",
            COMPLETIONS => "prompt",
            _ => "input[0]",
        };
        assert_eq!(param, field);
        let numbers: Vec<usize> = message
            .split(' ')
            .filter_map(|word| word.trim_end_matches(';').parse().ok())
            .collect();
        assert!(
            matches!(numbers[..], [prompt, 2048] if prompt > 2048),
            "{message}"
        );
    }
}

#[test]
fn prompts_without_a_token_or_with_an_unknown_one_are_refused() {
    for (body, part) in [
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": {"a": 1}}), "prompt"),
        (json!({}), "prompt"),
        (json!({"prompt": [1, -2]}), "prompt[1]"),
        (json!({"prompt": [[1], true]}), "prompt[1]"),
        (json!({"prompt": [999_999]}), "999999"),
        (json!({"prompt": "Hi", "suffix": "there"}), "suffix"),
        (json!({"prompt": "Hi", "logprobs": 99}), "logprobs"),
        (json!({"prompt": "Hi", "max_tokens": 0}), "max_tokens"),
    ] {
        let reply = post(shared(), COMPLETIONS, &body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        assert!(reply.error().0.contains(part), "{body}: {reply:?}");
    }
    let reply = post(shared(), "/detokenize", &json!({"tokens": [999_999]}));
    assert_eq!((reply.status, reply.error().1), (400, json!("tokens")));
    let reply = post(
        shared(),
        "/v1/embeddings",
        &json!({"input": "Hi", "dimensions": 3}),
    );
    assert_eq!((reply.status, reply.error().1), (400, json!("dimensions")));
    for (path, field) in [
        ("/v1/embeddings", "input"),
        (COMPLETIONS, "prompt"),
        ("/v1/completions/render", "prompt"),
    ] {
        let many = json!({field: vec!["Hi"; 2049]});
        let reply = post(shared(), path, &many);
        assert_eq!((reply.status, reply.error().1), (400, json!(field)));
    }
}

#[test]
fn more_prompts_than_are_taken_at_once_are_refused() {
    let body = json!({"prompt": vec![""; 1_900_000]}).to_string();
    for path in [COMPLETIONS, "/v1/completions/render"] {
        let reply = receive(send(shared(), "POST", path, "", &body));
        let (message, param, _) = reply.error();
        assert_eq!((reply.status, param), (400, json!("prompt")));
        assert!(message.contains("2048"), "{message}");
    }
}

#[test]
fn what_is_no_request_at_all_is_refused_in_the_same_form() {
    for (method, path, body, status) in [
        ("POST", CHAT, "{", 400),
        ("POST", CHAT, "[]", 400),
        ("POST", CHAT, "", 400),
        ("GET", CHAT, "", 405),
        ("GET", "/v1/nothing", "", 404),
    ] {
        let reply = receive(send(shared(), method, path, "", body));
        assert_eq!(reply.status, status, "{method} {path} {body}");
        let error = &reply.json()["error"];
        assert!(
            error["message"].is_string() && error["param"] == Value::Null,
            "{error}"
        );
    }
}
