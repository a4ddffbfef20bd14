//! `fornax bench serve` against `fornax serve` with the built-in model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A server that ends with the test.
struct Server {
    child: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Whether it still ran is not the test's question.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn server() -> Server {
    let mut child = Command::new(env!("CARGO_BIN_EXE_fornax"))
        .args([
            "serve",
            "--port",
            "0",
            "--ctx",
            "512",
            "--log",
            "off",
            "--parallel",
            "2",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let url = lines
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    Server {
        url: url.expect("it says where it listens"),
        child,
    }
}

fn load(url: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fornax"));
    let command = command
        .args(["bench", "serve", "--url", url])
        .args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

fn json_of(url: &str, arguments: &[&str]) -> Value {
    let output = load(url, &[arguments, &["--json"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn loads_of_every_kind_are_answered_and_counted() {
    let server = server();
    let short = [
        "--requests",
        "4",
        "--prompt-tokens",
        "8",
        "--output-tokens",
        "6",
    ];
    let with = |more: &[&str]| json_of(&server.url, &[&short[..], more].concat());

    let closed = with(&["--clients", "2", "--max-total", "1000000"]);
    assert_eq!(
        (&closed["completed"], &closed["failed"]),
        (&4.into(), &0.into()),
        "{closed}"
    );
    assert_eq!(
        (&closed["prompt_tokens"], &closed["output_tokens"]),
        (&32.into(), &24.into())
    );
    assert_eq!(closed["good"], 4);
    assert!(
        closed["first_token_ms"]["p50"].as_f64() > Some(0.0),
        "{closed}"
    );

    let open = with(&["--rate", "1000", "--seed", "5"]);
    assert_eq!(
        (&open["completed"], &open["good"]),
        (&4.into(), &Value::Null),
        "{open}"
    );

    // The second and later requests find a whole page of the 64 shared tokens and more.
    let shared = with(&["--clients", "1", "--shared-prefix", "100"]);
    assert_eq!(shared["prompt_tokens"], 432);
    assert!(shared["cached_tokens"].as_u64() >= Some(3 * 64), "{shared}");

    let turns = with(&["--turns", "2", "--clients", "2"]);
    assert_eq!(turns["requests"], 8);
    assert_eq!(turns["failed"], 0, "{turns}");

    let told = load(&server.url, &[&short[..], &["--clients", "4"]].concat());
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains("first token") && told.contains("4 completed"),
        "{told}"
    );
}

#[test]
fn who_cannot_be_asked_is_told() {
    for (url, arguments, part) in [
        ("http://127.0.0.1:1", &[][..], "is the server up"),
        ("https://localhost", &[], "only http"),
        ("http://127.0.0.1:1", &["--rate", "-1"], "--rate"),
        ("http://127.0.0.1:1", &["--rate", "1e-300"], "--rate"),
        ("http://127.0.0.1:1", &["--clients", "0"], "--clients"),
        (
            "http://127.0.0.1:1",
            &["--shared-prefix", "18446744073709551615"],
            "--shared-prefix",
        ),
        (
            "http://127.0.0.1:1",
            &["--prompt-tokens", "18446744073709551615"],
            "no length",
        ),
    ] {
        let output = load(url, arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && told.contains(part), "{told}");
    }
    let server = server();
    let refused = load(&server.url, &["--requests", "2", "--prompt-tokens", "5000"]);
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        told.contains("all 2 requests failed") && told.contains("400"),
        "{told}"
    );
}
