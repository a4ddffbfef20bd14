//! Damaged and hostile files under every command that reads one: each works or says what is wrong.
//!
//! The library's own tests open tens of thousands of such files; here a few of each kind go all the
//! way through the program.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../fornax-gguf/tests/small_folder/mod.rs"]
mod small_folder;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SMALL: &[u8] = include_bytes!("../../fornax-model/tests/golden/tiny-qwen3-q4_0.gguf");

#[test]
fn damaged_files_are_refused_or_used() {
    let cases: Vec<(String, Vec<u8>)> = gguf_mutants();
    let halves = cases.split_at(cases.len() / 2);
    let refused = std::thread::scope(|scope| {
        let threads = [(0, halves.0), (1, halves.1)]
            .map(|(number, cases)| scope.spawn(move || use_files(number, cases)));
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum::<usize>()
    });
    let commands = cases.len() * commands(Path::new(""), Path::new("")).len();
    assert!(
        refused > commands / 4 && refused < commands,
        "{refused} of {commands} refused"
    );
}

#[test]
fn damaged_folders_are_refused_or_converted() {
    let folder = scratch("damaged-folder");
    std::fs::create_dir_all(&folder).unwrap();
    let out = scratch("damaged-folder.gguf");
    let [from, to] = [&folder, &out].map(|path| path.to_str().unwrap());
    let files = small_folder::runnable();
    let (mut cases, mut refused) = (0, 0);
    for (name, bytes) in &files {
        for (what, mutant) in mutants(bytes, 3) {
            for (name, bytes) in &files {
                std::fs::write(folder.join(name), bytes).unwrap();
            }
            std::fs::write(folder.join(name), mutant).unwrap();
            let what = format!("{name}, {what}");
            for arguments in [
                &["convert", from, to][..],
                &["run", "--model", from, "--raw", "--max-tokens", "2", "ab"],
            ] {
                cases += 1;
                refused += usize::from(!works(&what, arguments));
            }
        }
    }
    assert!(
        refused > cases / 4 && refused < cases,
        "{refused} of {cases} refused"
    );
}

#[test]
fn a_file_that_shrinks_while_it_is_used_is_named() {
    let model = scratch("shrinks.gguf");
    std::fs::write(&model, SMALL).unwrap();
    // Loads the model from one map again and again, more often than a pipe has room to tell.
    let mut bench = Command::new(env!("CARGO_BIN_EXE_fornax"))
        .args(["bench", "-p=4", "-n=0", "-r=1", "-o=jsonl", "--no-ceilings"])
        .args(["--kv-type=f32,f16,bf16", "--weights=f32,native"])
        .args([&format!("-t={}", ["1,2"; 100].join(",")), "-m"])
        .arg(&model)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut records = BufReader::new(bench.stdout.take().unwrap());
    records.read_line(&mut String::new()).unwrap();
    let file = std::fs::File::options().write(true).open(&model).unwrap();
    file.set_len(0).unwrap();
    let mut rest = String::new();
    records.read_to_string(&mut rest).unwrap();
    let ended = bench.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{:?}: {told}", ended.status);
    assert!(
        told.contains("shrinks.gguf: ") && told.contains("cut short"),
        "{told}"
    );
}

/// How many commands refused a file.
fn use_files(number: usize, cases: &[(String, Vec<u8>)]) -> usize {
    let model = scratch(&format!("damaged-{number}.gguf"));
    let out = scratch(&format!("damaged-{number}-out.gguf"));
    let mut refused = 0;
    for (what, bytes) in cases {
        std::fs::write(&model, bytes).unwrap();
        for arguments in commands(&model, &out) {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            refused += usize::from(!works(what, &arguments));
        }
        serves(what, &model);
    }
    refused
}

/// Every command that reads a model and ends by itself.
fn commands(model: &Path, out: &Path) -> Vec<Vec<String>> {
    let text = scratch("damaged.txt");
    std::fs::write(&text, "the fox and the hare ".repeat(30)).unwrap();
    let request = scratch("damaged.json");
    std::fs::write(&request, r#"{"messages":[{"role":"user","content":"hi"}]}"#).unwrap();
    let [model, out, text, request] =
        [model, out, &text, &request].map(|path| path.to_str().unwrap());
    [
        &["inspect", model][..],
        &["run", "--model", model, "--raw", "--max-tokens", "2", "hi"],
        &["run", "--model", model, "--max-tokens", "2", "hi"],
        &["tokenize", "--model", model, "hi there"],
        &["detokenize", "--model", model, "1", "2"],
        &["template", "--model", model, request],
        &["quantize", model, out, "Q8_0", "--requantize"],
        &[
            "perplexity",
            "--model",
            model,
            "--file",
            text,
            "--ctx",
            "32",
        ],
        &[
            "bench",
            "--no-ceilings",
            "-m",
            model,
            "-p",
            "4",
            "-n",
            "1",
            "-r",
            "1",
        ],
    ]
    .map(|words| words.iter().map(|word| (*word).to_owned()).collect())
    .to_vec()
}

/// Whether the command did its work; if it did not, it must have said why.
fn works(what: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fornax"));
    let output = command.args(arguments).stdin(Stdio::null());
    let output = output.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    let case = format!("{what}: {arguments:?}: {:?}: {told}", output.status);
    assert!(!told.contains("panicked"), "{case}");
    match output.status.code() {
        Some(0) => true,
        Some(1) => {
            assert!(told.contains("error: "), "{case}");
            false
        }
        _ => panic!("{case}"),
    }
}

/// `serve` refuses the file, or listens, answers and ends in order.
fn serves(what: &str, model: &Path) {
    let mut server = Command::new(env!("CARGO_BIN_EXE_fornax"))
        .args(["serve", "--port", "0", "--log", "off", "--model"])
        .arg(model)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut lines = lines.map_while(Result::ok);
    let address =
        lines.find_map(|line| line.strip_prefix("listening on http://").map(str::to_owned));
    if let Some(address) = &address {
        let body = r#"{"prompt":"hi","max_tokens":2}"#;
        let length = body.len();
        let mut stream = TcpStream::connect(address.trim()).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close";
        write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{what}: {answer}");
        let id = server.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .unwrap()
                .success()
        );
    }
    let mut told = String::new();
    let mut stderr = server.stderr.take().unwrap();
    stderr.read_to_string(&mut told).unwrap();
    let code = server.wait().unwrap().code();
    let case = format!("{what}: serve: {code:?}: {told}");
    assert!(!told.contains("panicked"), "{case}");
    let expected = if address.is_some() { 0 } else { 1 };
    assert_eq!(code, Some(expected), "{case}");
}

/// Damage anywhere, and where this file keeps what is read first and last.
fn gguf_mutants() -> Vec<(String, Vec<u8>)> {
    let mut cases = mutants(SMALL, 4);
    for (what, at) in [("version", 4), ("tensor count", 8), ("pair count", 16)] {
        let mut bytes = SMALL.to_vec();
        bytes[at..at + 4].fill(0xFF);
        cases.push((format!("{what} overwritten"), bytes));
    }
    let weights = SMALL.len() / 2;
    for fill in [0, 0x7C, 0xFF] {
        let mut bytes = SMALL.to_vec();
        bytes[weights..].fill(fill);
        cases.push((format!("weights of {fill:#x}"), bytes));
    }
    cases
}

/// Cuts, and flipped bits at places spread by a fixed sequence.
fn mutants(original: &[u8], flips: usize) -> Vec<(String, Vec<u8>)> {
    let length = original.len();
    let cut = |at: usize| (format!("cut at {at}"), original[..at].to_vec());
    let mut cases = vec![cut(0), cut(length / 3), cut(length - 1)];
    // The golden ratio spreads places evenly, however many there are.
    let place = |number: usize| (number + 1) * 618_033_989 % length;
    cases.extend((0..flips).map(|number| {
        let mut bytes = original.to_vec();
        let (at, bit) = (place(number), number % 8);
        bytes[at] ^= 1 << bit;
        (format!("bit {bit} of byte {at} flipped"), bytes)
    }));
    cases
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
