//! The program as a person and as another program use it, with the built-in model.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod rendering;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fornax-model/tests/golden/tiny-qwen3.gguf"
);

fn fornax(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fornax"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    fornax(arguments).output().unwrap()
}

/// What a successful command writes to stdout.
fn text(arguments: &[&str]) -> String {
    let output = output(arguments);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn json_of(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(arguments)).unwrap()
}

/// What a command that reads this from stdin writes to stdout.
fn piped(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = fornax(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The message of a command that must fail with this code and write nothing to stdout.
fn failure(arguments: &[&str], code: i32) -> String {
    let output = output(arguments);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {}",
        stderr(&output)
    );
    assert!(output.stdout.is_empty(), "{arguments:?}");
    stderr(&output)
}

fn scratch(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

const STORY: [&str; 7] = [
    "run",
    "--temperature",
    "0",
    "--no-think",
    "--max-tokens",
    "24",
    "Tell me a story about a fox",
];

#[test]
fn the_built_in_model_tells_the_same_story_under_every_kv_policy() {
    let story = text(&[&STORY[..], &["--backend", "scalar"]].concat());
    assert!(
        story.contains("fox") && story.split(' ').count() > 10,
        "{story}"
    );
    // Bit for bit on the reference alone: fast kernels round activations by how many there are.
    for policy in ["none", "basic", "paged"] {
        let extra = ["--backend", "scalar", "--kv", policy];
        assert_eq!(text(&[&STORY[..], &extra].concat()), story, "{policy}");
    }
}

/// A sum leaves the model in no doubt, so rounding must not change the answer.
#[test]
fn every_backend_gives_the_same_sum() {
    const SUM: [&str; 5] = [
        "run",
        "--temperature",
        "0",
        "--no-think",
        "What is 12 + 30?",
    ];
    let sum = text(&SUM);
    assert!(sum.contains("42"), "{sum}");
    for extra in [
        ["--backend", "scalar"],
        ["--backend", "simd"],
        ["--threads", "3"],
        ["--kv", "none"],
        ["--kv", "basic"],
    ] {
        assert_eq!(text(&[&SUM[..], &extra].concat()), sum, "{extra:?}");
    }
}

#[test]
fn seeds_decide_the_text() {
    let story = |seed| {
        text(&[
            "run",
            "-n",
            "30",
            "--seed",
            seed,
            "Tell me a story about an owl",
        ])
    };
    assert_eq!(story("1"), story("1"));
    assert_ne!(story("1"), story("2"));
}

#[test]
fn only_the_answer_goes_to_stdout() {
    let plain = text(&STORY);
    let measured = output(&[&STORY[..], &["--metrics"]].concat());
    assert_eq!(String::from_utf8(measured.stdout.clone()).unwrap(), plain);
    let report = stderr(&measured);
    for part in [
        "first token",
        "prefill",
        "decode",
        "forwards",
        "tokens/s",
        "p50",
    ] {
        assert!(report.contains(part), "{report}");
    }
    let answer = json_of(&[&STORY[..], &["--json"]].concat());
    assert_eq!(answer["text"], json!(plain));
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 24);
    assert_eq!(answer["metrics"]["forwards"].as_array().unwrap().len(), 24);
}

#[test]
fn what_is_told_of_an_answer_begins_a_line_of_a_common_log() {
    let (mut log, writer) = std::io::pipe().unwrap();
    let mut command = fornax(&[&STORY[..], &["--metrics"]].concat());
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = command.spawn().unwrap();
    // It holds ends of the pipe, which would never be empty.
    drop(command);
    let mut told = String::new();
    log.read_to_string(&mut told).unwrap();
    assert!(child.wait().unwrap().success(), "{told}");
    let report = told.strip_prefix(&text(&STORY)).unwrap();
    assert!(report.starts_with("\nbackend "), "{told}");
}

#[test]
fn a_prompt_comes_from_a_pipe_as_well() {
    let question = ["run", "--temperature", "0", "--no-think"];
    let given = text(&[&question[..], &["What is 12 + 30?"]].concat());
    assert!(given.contains("42"), "{given}");
    let output = piped(&question, b"What is 12 + 30?\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), given);
    let output = piped(&[&question[..], &["-"]].concat(), b"What is 12 + 30?");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), given);
}

#[test]
fn thinking_can_be_asked_for_and_forbidden() {
    let ask = |flag| text(&["run", "--temperature", "0", flag, "What is 45 + 38?"]);
    let (thinking, direct) = (ask("--think"), ask("--no-think"));
    assert!(
        thinking.starts_with("<think>") && thinking.contains("</think>"),
        "{thinking}"
    );
    assert!(!direct.contains("think>"), "{direct}");
    assert!(thinking.contains("83") && direct.contains("83"));
}

#[test]
fn stop_strings_are_cut_and_named() {
    let whole = text(&STORY);
    let stop = whole.split(' ').nth(6).unwrap();
    let arguments = [&STORY[..], &["--stop", stop, "--stop", "never in it"]].concat();
    let expected = &whole[..whole.find(stop).unwrap()];
    assert_eq!(text(&arguments), expected);
    let answer = json_of(&[&arguments[..], &["--json"]].concat());
    assert_eq!(
        (&answer["finish_reason"], &answer["stop_string"]),
        (&json!("stop"), &json!(stop))
    );
}

#[test]
fn a_full_context_ends_the_answer_and_says_so() {
    let arguments = [
        "run",
        "--raw",
        "--temperature",
        "0",
        "--ctx",
        "24",
        "Once upon a time",
    ];
    let output = output(&arguments);
    assert!(output.status.success());
    assert!(
        stderr(&output).contains("context of 24 tokens is full"),
        "{}",
        stderr(&output)
    );
    let answer = json_of(&[&arguments[..], &["--json"]].concat());
    assert_eq!(answer["finish_reason"], "length");
    let usage = &answer["usage"];
    assert_eq!(
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap(),
        24
    );
    let message = failure(
        &[
            "run",
            "--raw",
            "--ctx",
            "4",
            "Once upon a time there was a fox",
        ],
        1,
    );
    assert!(message.contains('4'), "{message}");
}

#[test]
fn what_cannot_be_done_is_refused_with_advice() {
    for (arguments, code, parts) in [
        (
            &["run", "--model", "no-such-file.gguf", "Hi"][..],
            1,
            &["no-such-file.gguf"][..],
        ),
        (
            &["run", "--model", TINY, "Hi"],
            1,
            &["tiny-qwen3.gguf", "--raw", "--template FILE"],
        ),
        (
            &["run", "--backend", "abacus", "Hi"],
            2,
            &["abacus", "scalar"],
        ),
        (
            &["run", "--backend", "scalar", "--threads", "3", "Hi"],
            1,
            &["3", "--threads"],
        ),
        (&["run", "--ctx", "100000", "Hi"], 1, &["100000", "2048"]),
        (&["run", "--ctx", "0", "Hi"], 2, &["--ctx", "from 1"]),
        (&["run", "--threads", "0", "Hi"], 2, &["--threads"]),
        (&["run", "-n", "-1", "Hi"], 2, &["-1", "--max-tokens"]),
        (
            &["run", "--temperature", "-1", "Hi"],
            2,
            &["temperature", "-1"],
        ),
        (&["run", "--top-p", "1.5", "Hi"], 2, &["top_p", "1.5"]),
        (&["run", "--min-p", "nan", "Hi"], 2, &["min_p", "NaN"]),
        // Even where there is no model.
        (
            &["run", "-m", "none", "-t", "inf", "Hi"],
            2,
            &["temperature"],
        ),
        (&["run", "--logit-bias", "1=101", "Hi"], 2, &["logit_bias"]),
        (
            &["run", "--logit-bias", "9999999=1", "Hi"],
            1,
            &["9999999", "4096"],
        ),
        (&["run", ""], 2, &["prompt is empty"]),
        (&["run"], 1, &["prompt is empty"]),
        (&["run", "--seed", "-1", "Hi"], 2, &["-1", "--seed"]),
        (&["run", "--special", "Hi"], 2, &["--raw"]),
        (&["run", "--stop", "", "Hi"], 2, &["stop string"]),
        (
            &["run", "--raw", "--system", "You are a cat.", "Hi"],
            2,
            &["--raw", "--system"],
        ),
        (&["run", "--logit-bias", "x", "Hi"], 2, &["TOKEN=BIAS"]),
        (&["run", "--no-such-flag"], 2, &["--no-such-flag"]),
        (&["inspect", "no-such-file.gguf"], 1, &["no-such-file.gguf"]),
        (&["detokenize", "12", "x1"], 2, &["x1"]),
        (&["detokenize", "-1"], 2, &["-1", "no token id"]),
        (&["detokenize", "99999999"], 1, &["99999999"]),
        (
            &["perplexity", "-m", "none", "--file", TINY, "--ctx", "3"],
            2,
            &["--ctx", "from 4 on"],
        ),
        (
            &["template", "no-such-file.json"],
            1,
            &["no-such-file.json"],
        ),
    ] {
        let message = failure(arguments, code);
        assert!(message.starts_with("error: "), "{message}");
        assert!(
            parts.iter().all(|part| message.contains(part)),
            "{arguments:?}: {message}"
        );
    }
}

#[test]
fn inspect_shows_what_a_file_holds() {
    let built_in = json_of(&["inspect", "--json"]);
    assert_eq!(built_in["model"]["architecture"], "qwen3");
    let parameters = built_in["parameters"].as_u64().unwrap();
    assert!(
        (5_000_000..=7_000_000).contains(&parameters),
        "{parameters}"
    );
    assert!(built_in["bytes"].as_u64().unwrap() <= 8 << 20);
    for dimension in ["width", "layers", "context", "key_length"] {
        assert!(
            built_in["model"][dimension].as_u64().unwrap() > 0,
            "{dimension}"
        );
    }
    let shapes = built_in["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| &tensor["shape"]);
    assert!(shapes.clone().count() > 50);
    let tiny = text(&["inspect", TINY]);
    for part in [
        "tiny-qwen3.gguf",
        "qwen3",
        "blk.0.attn_q.weight",
        "tokenizer.ggml.merges",
        "Memory",
        "F32",
    ] {
        assert!(tiny.contains(part), "{part}: {tiny}");
    }
}

#[test]
fn every_command_explains_itself() {
    for command in ["run", "inspect", "tokenize", "detokenize", "template"] {
        let help = text(&[command, "--help"]);
        assert!(
            help.contains("Examples:") && help.contains("--json"),
            "{command}: {help}"
        );
    }
    assert!(text(&["--version"]).starts_with("fornax "));
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_keeps_its_text() {
    let arguments = [
        "run",
        "--raw",
        "--kv",
        "none",
        "--ignore-end",
        "Once upon a time",
    ];
    let mut child = fornax(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    let kill = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[cfg(unix)]
#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut child = fornax(&STORY)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        stderr(&output)
    );
}

#[cfg(target_os = "linux")]
#[test]
fn what_cannot_be_written_is_a_failure() {
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["inspect"],
    ] {
        let full = std::fs::File::create("/dev/full").unwrap();
        let output = fornax(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let told = stderr(&output);
        assert!(told.contains("stdout cannot be written to"), "{told}");
    }
}

#[test]
fn that_nobody_reads_stderr_changes_no_result() {
    let run = |arguments: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        fornax(arguments).stderr(writer).output().unwrap()
    };
    let told = run(&["run", "--raw", "--metrics", "--max-tokens", "2", "Once"]);
    assert!(told.status.success() && !told.stdout.is_empty(), "{told:?}");
    let told = run(&["inspect", "/nowhere.gguf"]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
}
