//! Every endpoint, as its clients see it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{NAME, chat, get, post, shared};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[test]
fn a_chat_is_answered_with_its_usage() {
    let reply = post(shared(), CHAT, &chat("What is 12 + 30?", json!({})));
    assert_eq!(reply.status, 200, "{reply:?}");
    let told = reply.json();
    assert_eq!(told["object"], "chat.completion");
    assert_eq!(told["model"], NAME);
    assert_eq!(
        told["id"].as_str().unwrap(),
        format!("chatcmpl-{}", reply.header("x-request-id").unwrap())
    );
    let choice = &told["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(
        choice["message"]["content"]
            .as_str()
            .unwrap()
            .contains("42"),
        "{told}"
    );
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["logprobs"], Value::Null);
    let usage = &told["usage"];
    let count = |name| usage[name].as_u64().unwrap();
    assert_eq!(
        count("prompt_tokens") + count("completion_tokens"),
        count("total_tokens")
    );
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
}

#[test]
fn roles_parts_and_turns_reach_the_template() {
    let messages = json!([
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "three", "refusal": null, "annotations": [], "tool_calls": null},
        {"role": "user", "content": "four", "name": "Ada"},
    ]);
    let told = post(
        shared(),
        "/v1/chat/completions/render",
        &json!({"messages": messages}),
    )
    .json();
    let prompt = told["prompt"].as_str().unwrap();
    let places: Vec<usize> = ["system", "Be brief.", "one\ntwo", "three", "four"]
        .iter()
        .map(|part| {
            prompt
                .find(part)
                .unwrap_or_else(|| panic!("{part}: {prompt}"))
        })
        .collect();
    assert!(places.is_sorted(), "{prompt}");
    assert_eq!(told["count"], told["token_ids"].as_array().unwrap().len());
    let back = post(
        shared(),
        "/detokenize",
        &json!({"tokens": told["token_ids"]}),
    )
    .json();
    assert_eq!(back["prompt"], prompt);
}

#[test]
fn several_answers_have_seeds_of_their_own() {
    let extra =
        json!({"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 24, "ignore_eos": true});
    let body = chat("Tell me a story about a fox", extra);
    let texts = || {
        let told = post(shared(), CHAT, &body).json();
        let choices = told["choices"].as_array().unwrap().clone();
        let indices: Vec<_> = choices
            .iter()
            .map(|choice| choice["index"].clone())
            .collect();
        assert_eq!(indices, [0, 1, 2]);
        assert_eq!(told["usage"]["completion_tokens"], 72);
        choices
            .iter()
            .map(|choice| choice["message"]["content"].to_string())
            .collect::<Vec<_>>()
    };
    let first = texts();
    assert_eq!(first, texts());
    assert!(first[0] != first[1] && first[1] != first[2], "{first:?}");
    let alone = json!({"temperature": 1.0, "seed": 8, "max_tokens": 24, "ignore_eos": true});
    let alone = post(shared(), CHAT, &chat("Tell me a story about a fox", alone)).json();
    assert_eq!(
        alone["choices"][0]["message"]["content"].to_string(),
        first[1]
    );
}

#[test]
fn log_probabilities_belong_to_the_text() {
    let extra = json!({"logprobs": true, "top_logprobs": 3});
    let told = post(shared(), CHAT, &chat("What is 12 + 30?", extra)).json();
    let choice = &told["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let text: String = tokens
        .iter()
        .map(|token| token["token"].as_str().unwrap())
        .collect();
    assert_eq!(choice["message"]["content"], text);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Drawn greedily, so it is the most likely one.
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[0]["logprob"], token["logprob"]);
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
}

#[test]
fn stops_and_biases_work() {
    let story = |extra| {
        let told = post(shared(), CHAT, &chat("Tell me a story about a fox", extra)).json();
        let choice = told["choices"][0].clone();
        (
            choice["message"]["content"].as_str().unwrap().to_owned(),
            choice["finish_reason"].clone(),
        )
    };
    let (whole, reason) = story(json!({}));
    assert_eq!(reason, "length");
    let stop = whole.split(' ').nth(4).unwrap();
    let cut = (whole[..whole.find(stop).unwrap()].to_owned(), json!("stop"));
    assert_eq!(story(json!({"stop": stop})), cut);
    assert_eq!(story(json!({"stop": ["never in it", stop]})), cut);
    let (other, _) = story(json!({"logit_bias": {"0": 100}, "max_tokens": 2}));
    assert!(!whole.starts_with(&other), "{other}");
}

#[test]
fn prompts_come_as_text_tokens_and_lists() {
    let texts = |prompt: Value| {
        let body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 6});
        let told = post(shared(), COMPLETIONS, &body).json();
        let choices = told["choices"]
            .as_array()
            .unwrap_or_else(|| panic!("{told}"))
            .clone();
        choices
            .iter()
            .map(|choice| choice["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let (fox, owl) = ("Once upon a time a fox", "Once upon a time an owl");
    let tokens =
        |text: &str| post(shared(), "/tokenize", &json!({"prompt": text})).json()["tokens"].clone();
    let alone = [texts(json!(fox)), texts(json!(owl))].concat();
    assert_eq!(texts(json!([fox, owl])), alone);
    assert_eq!(texts(tokens(fox)), alone[..1]);
    assert_eq!(texts(json!([tokens(fox), tokens(owl)])), alone);
    let rendered = post(
        shared(),
        "/v1/completions/render",
        &json!({"prompt": [fox, owl]}),
    )
    .json();
    assert_eq!(rendered["data"][1]["token_ids"], tokens(owl));
}

#[test]
fn a_completion_defaults_to_sixteen_tokens() {
    let body = json!({"prompt": "Once upon a time", "temperature": 0, "ignore_eos": true});
    let told = post(shared(), COMPLETIONS, &body).json();
    assert_eq!(told["object"], "text_completion");
    assert_eq!(told["usage"]["completion_tokens"], 16);
    assert_eq!(told["choices"][0]["finish_reason"], "length");
}

#[test]
fn an_echo_tells_how_likely_the_prompt_was() {
    let ask = |prompt: &str, extra: Value| {
        let mut body = json!({"prompt": prompt, "temperature": 0, "max_tokens": 5, "logprobs": 2});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        post(shared(), COMPLETIONS, &body).json()["choices"][0].clone()
    };
    let plain = ask("Once upon a time", json!({}));
    let whole = format!("Once upon a time{}", plain["text"].as_str().unwrap());
    let echo = ask("Once upon a time", json!({"echo": true}));
    assert_eq!(echo["text"], whole);
    let lists = &echo["logprobs"];
    let list = |name: &str| lists[name].as_array().unwrap().clone();
    let tokens: String = list("tokens")
        .iter()
        .map(|token| token.as_str().unwrap())
        .collect();
    assert_eq!(tokens, whole);
    assert_eq!(list("token_logprobs")[0], Value::Null);
    assert_eq!(list("text_offset")[0], 0);
    // What it wrote itself is as likely when it is read as when it was drawn.
    let read = ask(&whole, json!({"echo": true, "max_tokens": 0}));
    assert_eq!(
        (&read["text"], &read["finish_reason"]),
        (&json!(whole), &json!("length"))
    );
    let (drawn, read) = (
        list("token_logprobs"),
        read["logprobs"]["token_logprobs"].clone(),
    );
    let read = read.as_array().unwrap();
    assert_eq!(drawn.len(), read.len());
    for (drawn, read) in drawn.iter().zip(read).skip(1) {
        let (drawn, read) = (drawn.as_f64().unwrap(), read.as_f64().unwrap());
        assert!((drawn - read).abs() < 1e-5, "{drawn} and {read}");
    }
}

#[test]
fn embeddings_have_length_one_in_either_form() {
    let ask = |extra: Value| {
        let mut body = json!({"model": NAME, "input": ["a fox", "an owl"]});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        post(shared(), "/v1/embeddings", &body).json()
    };
    let floats = ask(json!({}));
    let vector = |index: usize| -> Vec<f64> {
        let vector = floats["data"][index]["embedding"]
            .as_array()
            .unwrap()
            .iter();
        vector.map(|x| x.as_f64().unwrap()).collect()
    };
    for index in [0, 1] {
        assert_eq!(floats["data"][index]["index"], index);
        let length: f64 = vector(index).iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{length}");
    }
    assert_ne!(vector(0), vector(1));
    assert_eq!(
        floats["usage"]["prompt_tokens"],
        floats["usage"]["total_tokens"]
    );
    let encoded = ask(json!({"encoding_format": "base64"}));
    // Four bytes a float, four characters for three bytes.
    let characters = encoded["data"][0]["embedding"].as_str().unwrap().len();
    assert_eq!(characters, (vector(0).len() * 4).div_ceil(3) * 4);
    assert_ne!(ask(json!({"pooling": "last"}))["data"], floats["data"]);
}

#[test]
fn text_becomes_tokens_and_comes_back() {
    let text = "Grüße, 東京! 🦊";
    let told = post(
        shared(),
        "/tokenize",
        &json!({"model": NAME, "prompt": text}),
    )
    .json();
    assert_eq!(told["count"], told["tokens"].as_array().unwrap().len());
    assert_eq!(told["max_model_len"], 2048);
    let back = post(shared(), "/detokenize", &json!({"tokens": told["tokens"]})).json();
    assert_eq!(back, json!({"prompt": text}));
}

#[test]
fn control_tokens_are_written_out_or_skipped() {
    let text = "<|im_start|>fox<|im_end|>";
    let tokens = post(shared(), "/tokenize", &json!({"prompt": text})).json()["tokens"].clone();
    for (skip, told) in [
        (json!(null), text),
        (json!(false), text),
        (json!(true), "fox"),
    ] {
        let body = json!({"tokens": tokens, "skip_special_tokens": skip});
        let back = post(shared(), "/detokenize", &body).json();
        assert_eq!(back, json!({"prompt": told}), "{skip}");
    }
}

#[test]
fn the_model_and_the_server_tell_of_themselves() {
    let models = get(shared(), "/v1/models").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], NAME);
    assert_eq!(
        models["data"][0],
        get(shared(), "/v1/models/fornax-mini").json()
    );
    assert_eq!(get(shared(), "/v1/models/other").status, 404);
    for path in ["/health", "/ready", "/version", "/metrics"] {
        assert_eq!(get(shared(), path).status, 200, "{path}");
    }
    assert_eq!(
        get(shared(), "/version").json(),
        json!({"version": "0.1.0"})
    );
}
