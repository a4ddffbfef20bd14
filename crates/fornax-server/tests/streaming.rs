//! Streams: their order, their end, and clients that go away.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::thread::{sleep, spawn};
use std::time::Duration;

use common::{BUILT_IN, chat, data, load, metric, post, send, shared, start};
use fornax::gguf::Gguf;
use serde_json::{Value, json};

/// Clients of the reference, which is slow.
const CLIENTS: usize = 64;
const CHAT: &str = "/v1/chat/completions";
const STORY: &str = "Tell me a story about a fox";

fn texts(events: &[Value], index: usize, pointer: &str) -> String {
    let choices = events.iter().map(|event| &event["choices"][0]);
    let own = choices.filter(|choice| choice["index"] == index);
    own.filter_map(|choice| choice.pointer(pointer)?.as_str())
        .collect()
}

#[test]
fn a_stream_keeps_its_order() {
    let extra = json!({"stream": true, "stream_options": {"include_usage": true}});
    let reply = post(shared(), CHAT, &chat(STORY, extra));
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    let events = reply.events();
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let (last, usage) = (&events[events.len() - 2], &events[events.len() - 1]);
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 12);
    for event in &events[..events.len() - 1] {
        assert_eq!(
            (&event["object"], &event["id"]),
            (&json!("chat.completion.chunk"), &events[0]["id"])
        );
        assert_eq!(event["usage"], Value::Null);
    }
    for event in &events[1..events.len() - 2] {
        assert!(event["choices"][0]["delta"]["content"].is_string());
        assert_eq!(event["choices"][0]["finish_reason"], Value::Null);
    }
    let whole = post(shared(), CHAT, &chat(STORY, json!({}))).json();
    assert_eq!(
        whole["choices"][0]["message"]["content"],
        texts(&events, 0, "/delta/content")
    );
    // How much of a prompt is cached depends on who asked before.
    for count in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(whole["usage"][count], usage["usage"][count]);
    }
}

#[test]
fn without_asking_no_usage_is_streamed() {
    let events = post(shared(), CHAT, &chat(STORY, json!({"stream": true}))).events();
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn several_answers_share_a_stream() {
    let extra = json!({"n": 2, "seed": 3, "temperature": 1, "logprobs": true, "ignore_eos": true});
    let mut body = chat(STORY, extra);
    let whole = post(shared(), CHAT, &body).json();
    body["stream"] = json!(true);
    let events = post(shared(), CHAT, &body).events();
    for index in [0, 1] {
        let text = texts(&events, index, "/delta/content");
        assert_eq!(whole["choices"][index]["message"]["content"], text);
        let logprobs = texts(&events, index, "/logprobs/content/0/token");
        assert_eq!(logprobs.is_empty(), text.is_empty());
        assert_eq!(texts(&events, index, "/finish_reason"), "length");
    }
}

#[test]
fn each_token_has_a_chunk_though_it_may_have_no_text() {
    // A control token, of which nothing is shown, forced again and again.
    let control = json!({"prompt": "<|im_start|>"});
    let control = post(shared(), "/tokenize", &control).json()["tokens"][0].to_string();
    let extra = json!({
        "logit_bias": {control: 100}, "ignore_eos": true, "max_tokens": 5, "temperature": 0,
        "stream": true,
    });
    let mut completion = extra.clone();
    completion["prompt"] = json!(STORY);
    for (path, body, text) in [
        (CHAT, chat(STORY, extra), "/delta/content"),
        ("/v1/completions", completion, "/text"),
    ] {
        let events = post(shared(), path, &body).events();
        let choices = events.iter().map(|event| &event["choices"][0]);
        let tokens = choices.filter(|choice| {
            choice["finish_reason"].is_null() && choice["delta"]["role"].is_null()
        });
        let texts: Vec<_> = tokens.map(|choice| choice.pointer(text)).collect();
        assert_eq!(texts, [Some(&json!("")); 5], "{path}");
    }
}

#[test]
fn completions_stream_their_echo_first() {
    let body = json!({
        "prompt": ["Once upon a time", "There was"], "echo": true, "logprobs": 1,
        "temperature": 0, "max_tokens": 5,
    });
    let whole = post(shared(), "/v1/completions", &body).json();
    let mut streamed = body.clone();
    streamed["stream"] = json!(true);
    let events = post(shared(), "/v1/completions", &streamed).events();
    for index in [0, 1] {
        let choice = &whole["choices"][index];
        assert_eq!(choice["text"], texts(&events, index, "/text"));
        assert_eq!(events[index]["choices"][0]["text"], body["prompt"][index]);
        let offsets = |choice: &Value| choice["logprobs"]["text_offset"].as_array().cloned();
        let choices = events.iter().map(|event| &event["choices"][0]);
        let own = choices
            .filter(|choice| choice["index"] == index)
            .filter_map(offsets);
        assert_eq!(Some(own.flatten().collect::<Vec<_>>()), offsets(choice));
    }
    streamed["max_tokens"] = json!(0);
    let events = post(shared(), "/v1/completions", &streamed).events();
    assert_eq!(events.len(), 2);
    assert_eq!(events[1]["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_long_silence_is_filled_with_comments() {
    let server = start(load(BUILT_IN, 1), |config| {
        config.ping = Duration::from_millis(5)
    });
    let reply = post(
        server.address,
        CHAT,
        &chat(
            &"fox ".repeat(400),
            json!({"stream": true, "max_tokens": 2}),
        ),
    );
    let pings = reply
        .body
        .lines()
        .filter(|line| line.starts_with(':'))
        .count();
    assert!(pings > 0, "{reply:?}");
    assert!(reply.events().len() > 2);
}

#[test]
fn sixty_four_clients_at_once_get_what_each_gets_alone() {
    let server = start(load(BUILT_IN, 8), |_| {});
    let address = server.address;
    let body = |client: usize| {
        let extra = json!({
            "temperature": if client.is_multiple_of(2) { 0.0 } else { 1.0 },
            "seed": client, "max_tokens": 2 + client % 15, "stream": client.is_multiple_of(3),
            "ignore_eos": true,
        });
        chat(&format!("Tell me a story about {client} foxes"), extra)
    };
    let text = move |body: &Value| {
        let reply = post(address, CHAT, body);
        assert_eq!(reply.status, 200, "{reply:?}");
        match body["stream"] == true {
            true => texts(&reply.events(), 0, "/delta/content"),
            false => reply.json()["choices"][0]["message"]["content"]
                .as_str()
                .unwrap()
                .to_owned(),
        }
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let body = body(client);
            spawn(move || text(&body))
        })
        .collect();
    let together: Vec<String> = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .collect();
    let alone: Vec<String> = (0..CLIENTS).map(|client| text(&body(client))).collect();
    assert_eq!(together, alone);
    assert_eq!(metric(address, "vllm:num_requests_running"), 0.0);
    let succeeded =
        "vllm:request_success_total{model_name=\"fornax-mini\",finished_reason=\"length\"}";
    assert_eq!(metric(address, succeeded), 2.0 * CLIENTS as f64);
}

/// Waits until a metric has this value, for as long as a slow machine may take.
fn wait_for(address: std::net::SocketAddr, name: &str, value: f64) {
    for _ in 0..3000 {
        if metric(address, name) == value {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{name} never became {value}");
}

#[test]
fn a_client_that_goes_away_is_cancelled() {
    let server = start(load(BUILT_IN, 1), |_| {});
    let address = server.address;
    let aborted =
        "fornax:request_failure_total{model_name=\"fornax-mini\",finished_reason=\"abort\"}";
    for (count, stream) in [(1.0, true), (2.0, false)] {
        let steps = metric(address, "fornax:steps_total");
        let extra = json!({"stream": stream, "ignore_eos": true, "max_tokens": 1900});
        let client = send(address, "POST", CHAT, "", &chat(STORY, extra).to_string());
        if stream {
            let mut lines = BufReader::new(&client).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.contains("\"content\":\"") && !line.contains("role")));
        }
        wait_for(address, "vllm:num_requests_running", 1.0);
        drop(client);
        wait_for(address, aborted, count);
        // The only row is free for the next one, long before 1900 steps.
        let next = post(address, CHAT, &chat(STORY, json!({"max_tokens": 2})));
        assert_eq!(next.status, 200);
        let steps = metric(address, "fornax:steps_total") - steps;
        assert!(steps < 1000.0, "{steps}");
    }
    assert_eq!(metric(address, "vllm:num_requests_running"), 0.0);
}

/// A client that reads an answer's head, then whatever comes line by line.
fn begin(address: std::net::SocketAddr, body: Value) -> (TcpStream, impl Iterator<Item = String>) {
    let client = send(address, "POST", "/v1/completions", "", &body.to_string());
    let lines = BufReader::new(client.try_clone().unwrap()).lines();
    (client, lines.map_while(Result::ok))
}

#[test]
fn a_stream_begins_before_its_echo_is_scored_and_can_be_left() {
    let server = start(load(BUILT_IN, 1), |config| {
        config.ping = Duration::from_millis(5)
    });
    let address = server.address;
    let body = |max_tokens: usize| {
        json!({
            "prompt": vec!["fox ".repeat(1500); 12], "echo": true, "logprobs": 1, "stream": true,
            "max_tokens": max_tokens,
        })
    };
    let ended = |family: &str, reason: &str| {
        format!("{family}{{model_name=\"fornax-mini\",finished_reason=\"{reason}\"}}")
    };
    let aborted = ended("fornax:request_failure_total", "abort");
    for (round, max_tokens) in [0, 1].into_iter().enumerate() {
        let (client, mut lines) = begin(address, body(max_tokens));
        assert_eq!(lines.next().unwrap(), "HTTP/1.1 200 OK");
        let ping = lines.find(|line| line.starts_with(':') || line.starts_with("data:"));
        assert_eq!(ping.unwrap(), ": still at work");
        let steps = metric(address, "fornax:steps_total");
        drop((client, lines));
        // Every answer that had been asked for.
        wait_for(address, &aborted, 12.0 * (round + 1) as f64);
        wait_for(address, "vllm:num_requests_running", 0.0);
        let steps = metric(address, "fornax:steps_total") - steps;
        assert!(steps < 6.0, "{steps}");
    }
    let (_client, mut lines) = begin(address, body(1));
    assert!(lines.any(|line| line == "data: [DONE]"));
    let finished = ended("vllm:request_success_total", "length");
    assert_eq!(metric(address, &finished), 12.0);
}

/// The built-in model with a weight that is not a number, so that every step fails.
fn broken_model() -> std::path::PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken.gguf");
    let mut bytes = std::fs::read(BUILT_IN).unwrap();
    let file = Gguf::open(BUILT_IN).unwrap();
    let norm = file.tensor("output_norm.weight").unwrap().data();
    let at = bytes
        .windows(norm.len())
        .position(|window| window == &*norm)
        .unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn an_answer_that_breaks_off_says_so() {
    let server = start(load(broken_model(), 1), |_| {});
    let reply = post(server.address, CHAT, &chat(STORY, json!({})));
    assert_eq!(reply.status, 500);
    assert_eq!(reply.json()["error"]["type"], "server_error");
    // With its first byte a stream has promised 200: the error is its last event.
    let reply = post(server.address, CHAT, &chat(STORY, json!({"stream": true})));
    assert_eq!(reply.status, 200);
    let events = data(&reply.body);
    let last = events.last().unwrap();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(
        last["error"]["message"]
            .as_str()
            .unwrap()
            .contains("not a finite number"),
        "{last}"
    );
    let failed =
        "fornax:request_failure_total{model_name=\"fornax-mini\",finished_reason=\"error\"}";
    assert_eq!(metric(server.address, failed), 2.0);
    let mut body = json!({"prompt": STORY, "echo": true, "logprobs": 1, "stream": true});
    let reply = post(server.address, "/v1/completions", &body);
    let events = data(&reply.body);
    assert_eq!((reply.status, events.len()), (200, 1), "{reply:?}");
    assert_eq!(events[0]["error"]["type"], "server_error");
    body["stream"] = json!(false);
    assert_eq!(post(server.address, "/v1/completions", &body).status, 500);
    assert_eq!(metric(server.address, failed), 4.0);
    assert_eq!(metric(server.address, "vllm:num_requests_running"), 0.0);
}
