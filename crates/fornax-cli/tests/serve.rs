//! `fornax serve` as a process: what it says, what it logs, how signals end it.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

/// A running server; killed when this is dropped.
struct Server {
    process: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    /// What it said before it listened.
    statement: String,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start(arguments: &[&str]) -> Server {
    let mut process = Command::new(env!("CARGO_BIN_EXE_fornax"))
        .args(["serve", "--port", "0"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(process.stdout.take().unwrap());
    let stderr = BufReader::new(process.stderr.take().unwrap());
    let mut statement = String::new();
    let address = loop {
        let mut line = String::new();
        assert!(
            stdout.read_line(&mut line).unwrap() > 0,
            "it ended: {statement}"
        );
        if let Some(address) = line.strip_prefix("listening on http://") {
            break address.trim().to_owned();
        }
        statement.push_str(&line);
    };
    Server {
        process,
        stdout,
        stderr,
        statement,
        address,
    }
}

impl Server {
    fn ask(&self, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let request = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine-1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn signal(&self) {
        terminate(&self.process);
    }

    /// Its exit code, and what it wrote to stderr that was not read yet.
    fn end(mut self) -> (Option<i32>, String) {
        let mut told = String::new();
        self.stderr.read_to_string(&mut told).unwrap();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
        (self.process.wait().unwrap().code(), told)
    }
}

fn terminate(process: &Child) {
    let id = process.id().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.unwrap().success());
}

/// `fornax serve | head -1` goes on behind the line.
#[test]
fn a_reader_that_leaves_is_no_reason_to_stop() {
    let socket = std::env::temp_dir().join(format!("fornax-unread-{}", std::process::id()));
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    let process = Command::new(env!("CARGO_BIN_EXE_fornax"))
        .arg("serve")
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(unread)
        .stderr(Stdio::null())
        .spawn();
    let mut process = process.unwrap();
    let mut stream = loop {
        if let Ok(stream) = UnixStream::connect(&socket) {
            break stream;
        }
        let ended = process.try_wait().unwrap();
        assert!(ended.is_none(), "it ended: {ended:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let request = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    terminate(&process);
    assert_eq!(process.wait().unwrap().code(), Some(0));
}

fn rest(mut stream: TcpStream) -> String {
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    told
}

const QUESTION: &str =
    r#"{"messages":[{"role":"user","content":"Say the word zebra"}],"max_tokens":3}"#;

/// The entries of the log that one request and the end of the server make.
fn log_of_one_request(arguments: &[&str]) -> Vec<Value> {
    let server = start(arguments);
    assert!(rest(server.ask(QUESTION)).starts_with("HTTP/1.1 200"));
    server.signal();
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    let entry = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("`{line}` is no JSON"));
    log.lines().map(entry).collect()
}

#[test]
fn the_log_names_requests_and_keeps_their_words() {
    let log = log_of_one_request(&["--log", "json"]);
    let events = log.iter().map(|entry| entry["event"].as_str().unwrap());
    let events = Vec::from_iter(events);
    assert_eq!(events, ["answer", "response", "stopping", "stopped"]);
    let told = log[3]["message"].as_str().unwrap();
    assert!(told.contains("every answer was finished"), "{told}");
    for event in ["answer", "response"] {
        let entry = log.iter().find(|entry| entry["event"] == event).unwrap();
        assert_eq!(entry["request"], "mine-1", "{entry}");
        assert!(
            entry["time"].is_string() && entry["ms"].is_number(),
            "{entry}"
        );
    }
    assert!(!format!("{log:?}").contains("zebra"));
}

#[test]
fn prompts_are_logged_when_they_are_asked_for() {
    let log = log_of_one_request(&["--log", "json", "--log-prompts"]);
    let entry = log.iter().find(|entry| entry["event"] == "prompt").unwrap();
    assert_eq!(entry["request"], "mine-1");
    assert!(entry["text"].as_str().unwrap().contains("zebra"), "{entry}");
}

#[test]
fn the_size_of_the_cache_is_said_in_plain_words() {
    let server = start(&["--kv-memory", "4MiB", "--ctx", "512", "--parallel", "2"]);
    let line = |name: &str| {
        let mut lines = server.statement.lines();
        lines
            .find(|line| line.starts_with(name))
            .unwrap()
            .to_owned()
    };
    let words: Vec<String> = line("KV cache").split(' ').map(str::to_owned).collect();
    let number = |word: &str| {
        words
            .iter()
            .position(|other| other == word)
            .map(|at| words[at - 1].parse::<f64>().unwrap())
    };
    let (pages, mebibytes) = (number("pages").unwrap(), number("MiB").unwrap());
    assert!(
        pages >= 1.0 && mebibytes <= 4.0 && mebibytes > 2.0,
        "{words:?}"
    );
    // What was chosen, not how.
    assert!(line("backend").contains(" cpu ("), "{}", server.statement);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let mut server = start(&["--log", "off"]);
    let long = r#"{"messages":[{"role":"user","content":"Tell me a story"}],"max_tokens":1900,"ignore_eos":true,"stream":true}"#;
    let stream = server.ask(long);
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("data: ")));
    server.signal();
    let mut told = String::new();
    server.stderr.read_line(&mut told).unwrap();
    assert!(told.starts_with("stopping"), "{told}");
    server.signal();
    assert_eq!(server.end().0, Some(130));
}

#[test]
fn unasked_every_conversation_has_room() {
    let server = start(&["--ctx", "512", "--parallel", "2"]);
    for part in ["fornax-mini", "512 tokens", "16 pages × 64 tokens"] {
        assert!(server.statement.contains(part), "{}", server.statement);
    }
}

#[test]
fn what_cannot_be_served_is_refused() {
    let empty = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-keys");
    std::fs::write(&empty, "# keys\n \n").unwrap();
    // Code 2 where the command line alone is wrong.
    for (code, arguments, part) in [
        (2, &["--parallel", "0"][..], "--parallel"),
        (
            1,
            &["--parallel", "9223372036854775808", "--kv-memory", "64MiB"],
            "at most 65535",
        ),
        (2, &["--api-key", ""], "--api-key"),
        (2, &["--api-key", "pad "], "space"),
        (2, &["--cors-origin", "https://x/"], "no origin"),
        (2, &["--body-limit", "0"], "--body-limit"),
        (2, &["--name", ""], "--name"),
        (2, &["--port", "-1"], "--port"),
        (2, &["--prompt-chunk", "infx"], "infx"),
        (1, &["--api-key-file", "no-such-file"], "no-such-file"),
        (
            1,
            &["--api-key-file", empty.to_str().unwrap()],
            "holds no key",
        ),
        (1, &["--host", "203.0.113.1", "--port", "0"], "203.0.113.1"),
        (1, &["--model", "no-such-file.gguf"], "no-such-file.gguf"),
        (1, &["--kv-memory", "1KiB"], "holds no page"),
        (1, &["--socket", "/no/such/folder/x"], "--socket"),
        (
            1,
            &["--tls-cert", "no.pem", "--tls-key", "no.pem"],
            "no.pem",
        ),
        (2, &["--kv-memory", "much"], "MiB"),
        (2, &["--tls-cert", "cert.pem"], "--tls-key"),
        (2, &["--socket", "x", "--port", "1"], "cannot be used with"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fornax"));
        let output = command.arg("serve").args(arguments).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(part), "{arguments:?}: {told}");
    }
}
