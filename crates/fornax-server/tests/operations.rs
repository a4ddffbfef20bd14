//! Limits, keys, web pages, metrics, and how a server ends.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{sleep, spawn};
use std::time::Duration;

use common::{BUILT_IN, chat, data, get, load, metric, post, receive, send, start};
use fornax_server::Ended;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const STORY: &str = "Tell me a story about a fox";

#[test]
fn who_finds_no_place_is_told_when_to_come_back() {
    let server = start(load(BUILT_IN, 1), |config| config.queue = 1);
    let address = server.address;
    let long = chat(STORY, json!({"ignore_eos": true, "max_tokens": 1900})).to_string();
    let clients = [(); 2].map(|()| send(address, "POST", CHAT, "", &long));
    while metric(address, "vllm:num_requests_waiting") < 1.0 {
        sleep(Duration::from_millis(10));
    }
    assert_eq!(metric(address, "vllm:num_requests_running"), 1.0);
    let refused = post(address, CHAT, &chat("Hi", json!({})));
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    // What needs no place is answered all the same.
    assert_eq!(get(address, "/health").status, 200);
    drop(clients);
    while metric(address, "vllm:num_requests_running") > 0.0 {
        sleep(Duration::from_millis(10));
    }
    assert_eq!(post(address, CHAT, &chat("Hi", json!({}))).status, 200);
    // More than will ever fit is no matter of waiting.
    assert_eq!(
        post(address, CHAT, &chat("Hi", json!({"n": 3}))).status,
        400
    );
}

#[test]
fn a_body_has_a_limit_and_is_not_waited_for_when_it_announces_more() {
    let server = start(load(BUILT_IN, 1), |config| config.body_limit = 1000);
    let reply = post(server.address, CHAT, &chat(&"x".repeat(1000), json!({})));
    assert_eq!(reply.status, 413, "{reply:?}");
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    // More than sockets hold, from a client that listens only afterwards.
    let large = chat(&"x".repeat(20 << 20), json!({}));
    assert_eq!(post(server.address, CHAT, &large).status, 413);
    let mut announced = TcpStream::connect(server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 999999\r\n\r\n";
    announced.write_all(head.as_bytes()).unwrap();
    let mut status = [0; 12];
    announced.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 413");
    assert_eq!(
        post(server.address, CHAT, &chat("Hi", json!({}))).status,
        200
    );
}

#[test]
fn keys_open_everything_but_the_health_checks() {
    let server = start(load(BUILT_IN, 1), |config| {
        config.api_keys = vec!["first".to_owned(), "second".to_owned()];
    });
    let ask = |path, headers| receive(send(server.address, "GET", path, headers, "")).status;
    for path in ["/v1/models", "/metrics", "/version"] {
        assert_eq!(ask(path, ""), 401, "{path}");
        assert_eq!(ask(path, "Authorization: Bearer third\r\n"), 401, "{path}");
        assert_eq!(ask(path, "Authorization: Bearer first\r\n"), 200, "{path}");
        assert_eq!(ask(path, "Authorization: bearer second\r\n"), 200, "{path}");
    }
    assert_eq!((ask("/health", ""), ask("/ready", "")), (200, 200));
    let refused = post(server.address, CHAT, &chat("Hi", json!({})));
    assert_eq!(
        (refused.status, refused.error().2),
        (401, json!("invalid_api_key"))
    );
}

#[test]
fn web_pages_call_from_where_they_may() {
    let server = start(load(BUILT_IN, 1), |config| {
        config.cors_origins = vec!["https://app.example".to_owned()];
        config.api_keys = vec!["key".to_owned()];
    });
    let allowed = |address, method, origin: &str| {
        let headers = format!(
            "Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\nAuthorization: Bearer key\r\n"
        );
        let reply = receive(send(address, method, "/v1/models", &headers, ""));
        reply
            .header("access-control-allow-origin")
            .map(str::to_owned)
    };
    for method in ["GET", "OPTIONS"] {
        let told = allowed(server.address, method, "https://app.example");
        assert_eq!(told.as_deref(), Some("https://app.example"));
        assert_eq!(
            allowed(server.address, method, "https://other.example"),
            None
        );
    }
    // A key comes in a header that browsers want to see allowed by its name.
    let asks = "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,content-type\r\n";
    let reply = receive(send(server.address, "OPTIONS", CHAT, asks, ""));
    assert_eq!(
        reply.header("access-control-allow-headers"),
        Some("authorization,content-type")
    );
    let closed = start(load(BUILT_IN, 1), |_| {});
    assert_eq!(allowed(closed.address, "GET", "https://app.example"), None);
}

#[test]
fn a_request_keeps_the_name_its_client_gave_it() {
    let server = start(load(BUILT_IN, 1), |_| {});
    let body = chat("Hi", json!({"max_tokens": 1})).to_string();
    let reply = receive(send(
        server.address,
        "POST",
        CHAT,
        "X-Request-Id: mine-7\r\n",
        &body,
    ));
    assert_eq!(reply.header("x-request-id"), Some("mine-7"));
    assert_eq!(reply.json()["id"], "chatcmpl-mine-7");
}

#[test]
fn metrics_count_what_happened() {
    let server = start(load(BUILT_IN, 2), |_| {});
    let told = post(server.address, CHAT, &chat(STORY, json!({}))).json();
    let usage = |name: &str| told["usage"][name].as_f64().unwrap();
    let count = |name: &str| metric(server.address, name);
    assert_eq!(count("vllm:prompt_tokens_total"), usage("prompt_tokens"));
    assert_eq!(
        count("vllm:prefix_cache_queries_total"),
        usage("prompt_tokens")
    );
    assert_eq!(count("vllm:generation_tokens_total"), 12.0);
    assert_eq!(count("vllm:time_to_first_token_seconds_count"), 1.0);
    assert_eq!(count("vllm:inter_token_latency_seconds_count"), 11.0);
    assert_eq!(count("vllm:e2e_request_latency_seconds_count"), 1.0);
    assert_eq!(count("fornax:steps_total"), 12.0);
    assert_eq!(count("vllm:request_queue_time_seconds_count"), 1.0);
    assert_eq!(count("vllm:kv_cache_usage_perc"), 0.0);
    assert!(count("fornax:kv_cached_pages") > 0.0);
    let steps = |phase: &str| {
        let labels = format!("{{model_name=\"fornax-mini\",phase=\"{phase}\"}}");
        count(&format!("fornax:step_seconds_count{labels}"))
    };
    assert_eq!(["prefill", "decode", "mixed"].map(steps), [1.0, 11.0, 0.0]);
    assert_eq!(count("fornax:step_rows_sum"), 12.0);
    let tokens = usage("prompt_tokens") + 11.0;
    assert_eq!(count("fornax:step_tokens_sum"), tokens);
    // Asked again, all but the last token of the prompt is known.
    post(server.address, CHAT, &chat(STORY, json!({})));
    assert_eq!(
        count("vllm:prefix_cache_hits_total"),
        usage("prompt_tokens") - 1.0
    );
    // 2 sequences of 2048 tokens on pages of 64.
    let cache = "vllm:cache_config_info{model_name=\"fornax-mini\",block_size=\"64\",num_gpu_blocks=\"64\"}";
    assert_eq!(count(cache), 1.0);
}

#[test]
fn embeddings_and_echoes_are_counted_too() {
    let server = start(load(BUILT_IN, 2), |_| {});
    let count = |name: &str| metric(server.address, name);
    let ended = |reason: &str| {
        count(&format!(
            "vllm:request_success_total{{model_name=\"fornax-mini\",finished_reason=\"{reason}\"}}"
        ))
    };
    let texts = json!({"input": ["a fox", "an owl and a fox", "a bear"]});
    let told = post(server.address, "/v1/embeddings", &texts).json();
    let embedded = told["usage"]["prompt_tokens"].as_f64().unwrap();
    assert_eq!(count("vllm:prompt_tokens_total"), embedded);
    assert_eq!(count("vllm:request_queue_time_seconds_count"), 3.0);
    assert_eq!(count("vllm:e2e_request_latency_seconds_count"), 3.0);
    assert_eq!(ended("stop"), 3.0);
    // A batch with one that does not fit is refused before any of it is computed.
    let texts = json!({"input": ["a fox", "fox ".repeat(3000)]});
    let refused = post(server.address, "/v1/embeddings", &texts);
    assert_eq!(
        (refused.status, refused.error().1),
        (400, json!("input[1]"))
    );
    assert_eq!(count("vllm:prompt_tokens_total"), embedded);

    for logprobs in [json!(null), json!(1)] {
        let body =
            json!({"prompt": [5, 6, 7], "max_tokens": 0, "echo": true, "logprobs": logprobs});
        assert_eq!(post(server.address, "/v1/completions", &body).status, 200);
    }
    assert_eq!(count("vllm:prompt_tokens_total"), embedded + 6.0);
    assert_eq!(ended("length"), 2.0);
    assert_eq!(count("vllm:generation_tokens_total"), 0.0);
    for reason in ["abort", "error"] {
        let name = format!(
            "fornax:request_failure_total{{model_name=\"fornax-mini\",finished_reason=\"{reason}\"}}"
        );
        assert_eq!(count(&name), 0.0);
    }
}

#[test]
fn pages_in_use_are_told_while_they_are() {
    let server = start(load(BUILT_IN, 1), |_| {});
    let body = chat(STORY, json!({"ignore_eos": true, "max_tokens": 1900})).to_string();
    let client = send(server.address, "POST", CHAT, "", &body);
    while metric(server.address, "vllm:kv_cache_usage_perc") == 0.0 {
        sleep(Duration::from_millis(5));
    }
    drop(client);
    while metric(server.address, "vllm:kv_cache_usage_perc") > 0.0 {
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_lower_priority_goes_first() {
    let server = start(load(BUILT_IN, 1), |_| {});
    let address = server.address;
    let (told, order) = std::sync::mpsc::channel();
    let ask = |priority: i64, max_tokens: usize| {
        let extra = json!({"priority": priority, "max_tokens": max_tokens, "ignore_eos": true});
        let (body, told) = (chat(STORY, extra), told.clone());
        spawn(move || {
            assert_eq!(post(address, CHAT, &body).status, 200);
            told.send(priority).unwrap();
        })
    };
    let wait_for = |name: &str, count: f64| {
        while metric(address, name) != count {
            sleep(Duration::from_millis(2));
        }
    };
    // One runs so long that the two others come to wait.
    let mut clients = vec![ask(0, 400)];
    wait_for("vllm:num_requests_running", 1.0);
    // So long that who is first is told so first, however busy the machine is.
    clients.push(ask(5, 200));
    wait_for("vllm:num_requests_waiting", 1.0);
    clients.push(ask(-5, 200));
    clients
        .into_iter()
        .for_each(|client| client.join().unwrap());
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [0, -5, 5]);
}

#[test]
fn running_answers_are_finished_before_the_end() {
    let server = start(load(BUILT_IN, 1), |_| {});
    let address = server.address;
    let body = chat(
        STORY,
        json!({"ignore_eos": true, "max_tokens": 100, "stream": true}),
    );
    let client = spawn(move || post(address, CHAT, &body));
    while metric(address, "vllm:num_requests_running") < 1.0 {
        sleep(Duration::from_millis(5));
    }
    assert_eq!(server.stop(), Ended::Drained);
    let last = client.join().unwrap().events().pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_end_has_a_limit_too() {
    let server = start(load(BUILT_IN, 1), |config| {
        config.drain = Duration::from_millis(1)
    });
    let body = chat(STORY, json!({"ignore_eos": true, "max_tokens": 1900})).to_string();
    let client = send(server.address, "POST", CHAT, "", &body);
    while metric(server.address, "vllm:num_requests_running") < 1.0 {
        sleep(Duration::from_millis(5));
    }
    assert_eq!(server.stop(), Ended::CutOff(1));
    let reply = receive(client);
    assert_eq!(
        (reply.status, reply.error().2),
        (503, json!("server_ending"))
    );
}

#[test]
fn whoever_is_cut_off_is_told_so() {
    let server = start(load(BUILT_IN, 3), |config| {
        config.drain = Duration::from_millis(50)
    });
    let address = server.address;
    let scored = json!({
        "prompt": vec!["fox ".repeat(1500); 200], "echo": true, "logprobs": 20, "max_tokens": 0,
    });
    let story = |stream| {
        let extra = json!({"ignore_eos": true, "max_tokens": 1900, "stream": stream});
        send(address, "POST", CHAT, "", &chat(STORY, extra).to_string())
    };
    let (streamed, whole) = (story(true), story(false));
    let scored = send(address, "POST", "/v1/completions", "", &scored.to_string());
    while metric(address, "vllm:num_requests_running") < 3.0 {
        sleep(Duration::from_millis(5));
    }
    let half = |text: &str| {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(text.as_bytes()).unwrap();
        client
    };
    let mut head = half("POST /v1/completions HTTP/1.1\r\nHost:");
    let body = half("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{");
    // Who asks for nothing is no loss.
    let _idle = TcpStream::connect(address).unwrap();
    sleep(Duration::from_millis(100));
    assert_eq!(server.stop(), Ended::CutOff(5));
    for client in [whole, scored, body] {
        let reply = receive(client);
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.error().0.contains("--drain"), "{reply:?}");
        assert_eq!(reply.json()["error"]["type"], "server_error");
    }
    let events = data(&receive(streamed).body);
    assert_eq!(events.last().unwrap()["error"]["code"], "server_ending");
    assert!(events.len() > 1, "{events:?}");
    let mut rest = String::new();
    head.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}
