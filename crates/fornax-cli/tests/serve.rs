//! `fornax serve` as an operator uses it: what it says, how it is stopped, what it refuses.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

fn serve(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fornax"));
    command.arg("serve").args(arguments).stdin(Stdio::null());
    command
}

/// A server that has said what it serves, and that statement.
fn started(arguments: &[&str]) -> (Child, Vec<String>) {
    let mut child = serve(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = Vec::new();
    for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
        told.push(line.unwrap());
        if told.last().unwrap().starts_with("listening on ") {
            return (child, told);
        }
    }
    panic!("it ended: {told:?}, {:?}", child.wait_with_output());
}

/// Asks it to stop, and returns its stderr. It must end with code 0.
fn stopped(child: Child) -> String {
    let id = child.id().to_string();
    let kill = Command::new("kill").args(["-TERM", &id]).status().unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    told
}

fn ask(address: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

#[test]
fn it_says_what_it_serves_and_ends_in_order() {
    let (child, told) = started(&[
        "--port",
        "0",
        "--ctx",
        "512",
        "--parallel",
        "2",
        "--log",
        "json",
    ]);
    let statement = told.join("\n");
    for part in [
        "fornax-mini",
        "backend",
        "512 tokens",
        "16 pages × 64 tokens",
    ] {
        assert!(statement.contains(part), "{statement}");
    }
    let address = told.last().unwrap().strip_prefix("listening on http://");
    let secret = "xylophone";
    let body = json!({"prompt": secret, "max_tokens": 2}).to_string();
    let reply = ask(address.unwrap(), "/v1/completions", &body);
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let told = stopped(child);
    assert!(told.contains("every answer was finished"), "{told}");
    assert!(!told.contains(secret), "{told}");
    let entries: Vec<Value> = told
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let events: Vec<_> = entries.iter().map(|entry| &entry["event"]).collect();
    assert_eq!(events, ["answer", "response"]);
    assert_eq!(entries[0]["request"], entries[1]["request"]);
    assert_eq!(
        (&entries[0]["tokens"], &entries[1]["status"]),
        (&json!(2), &json!(200))
    );
}

#[test]
fn what_cannot_be_served_is_refused() {
    let empty = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-keys");
    std::fs::write(&empty, "\n \n").unwrap();
    for (arguments, part) in [
        (&["--parallel", "0"][..], "--parallel"),
        (&["--api-key", ""], "--api-key"),
        (&["--api-key-file", "no-such-file"], "no-such-file"),
        (&["--api-key-file", empty.to_str().unwrap()], "holds no key"),
        (&["--host", "203.0.113.1", "--port", "0"], "203.0.113.1"),
        (&["--model", "no-such-file.gguf"], "no-such-file.gguf"),
    ] {
        let output = serve(arguments).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(part), "{told}");
    }
}
