//! `fornax quantize` and `fornax convert` as a person uses them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../fornax-gguf/tests/small_folder/mod.rs"]
mod small_folder;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fornax-model/tests/golden/tiny-qwen3.gguf"
);

fn fornax(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_fornax");
    Command::new(program).args(arguments).output().unwrap()
}

fn refused(arguments: &[&str], part: &str) {
    let output = fornax(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{arguments:?}");
    assert!(message.contains(part), "{message:?} does not say {part:?}");
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let name = format!("fornax-quantize-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let names = entries.map(name).map(|name| name.into_string().unwrap());
    names.collect()
}

#[test]
fn a_model_is_written_whole_and_runs() {
    let folder = folder("whole");
    let out = folder.join("small.gguf");
    let out = out.to_str().unwrap();
    let output = fornax(&["quantize", TINY, out, "q8_0"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && message.contains("MB"),
        "{message}"
    );
    assert_eq!(names(&folder), ["small.gguf"]);
    let output = fornax(&["inspect", "--json", out]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(r#""type":"Q8_0""#), "{text}");

    let bytes = fs::read(out).unwrap();
    refused(
        &["quantize", out, out, "q4_0", "--requantize"],
        "belongs to what is read",
    );
    refused(
        &["quantize", out, &format!("{out}.2"), "q4_0"],
        "Q8_0 already",
    );
    refused(&["quantize", TINY, out, "q9"], "Q4_K_M");
    assert_eq!(fs::read(out).unwrap(), bytes);
    assert_eq!(
        names(&folder),
        ["small.gguf"],
        "nothing half-written is left"
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_no_folder_of_a_model_is_refused() {
    let folder = folder("convert");
    let out = folder.join("out.gguf");
    let out = out.to_str().unwrap();
    refused(&["convert", TINY, out], "no folder");
    refused(&["convert", folder.to_str().unwrap(), out], "config.json");
    refused(
        &["run", "--model", folder.to_str().unwrap(), "hello"],
        "config.json",
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_that_contradicts_itself_is_refused_before_anything_is_written() {
    let folder = folder("contradiction");
    let (model, out) = (folder.join("model"), folder.join("out.gguf"));
    fs::create_dir_all(&model).unwrap();
    let [model, out] = [&model, &out].map(|path| path.to_str().unwrap());
    let files = small_folder::configured(&[("hidden_size", serde_json::json!(9))]);
    for (name, bytes) in files {
        fs::write(Path::new(model).join(name), bytes).unwrap();
    }
    for arguments in [
        &["convert", model, out][..],
        &["quantize", model, out, "F16"],
        &["run", "--model", model, "hello"],
    ] {
        refused(arguments, "num_attention_heads is 2");
    }
    let config = small_folder::configured(&[
        ("hidden_size", serde_json::json!(9)),
        ("head_dim", serde_json::json!(4)),
    ]);
    fs::write(Path::new(model).join("config.json"), &config[0].1).unwrap();
    let told = "[8, 8], but [8, 9] is asked for in config.json by [vocab_size, hidden_size]";
    for arguments in [
        &["convert", model, out][..],
        &["quantize", model, out, "F16"],
        &["inspect", model],
    ] {
        let output = fornax(arguments);
        let both = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(both).unwrap();
        assert!(said.contains(told), "{arguments:?}: {said}");
    }
    assert_eq!(names(&folder), ["model"], "nothing was written");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_folder_is_converted_and_what_only_fornax_will_read_is_told() {
    let folder = folder("converted");
    let (model, out) = (folder.join("model"), folder.join("out.gguf"));
    fs::create_dir_all(&model).unwrap();
    for (name, bytes) in small_folder::runnable() {
        fs::write(model.join(name), bytes).unwrap();
    }
    let arguments = ["convert", model.to_str().unwrap(), out.to_str().unwrap()];
    let told = |ignore: bool| {
        let file = model.join("tokenizer.json");
        let mut tokenizer: serde_json::Value =
            serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        tokenizer["model"]["ignore_merges"] = serde_json::json!(ignore);
        fs::write(&file, tokenizer.to_string()).unwrap();
        let output = fornax(&arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{message}");
        message.contains("only Fornax knows tokenizer.ggml.ignore_merges,")
    };
    assert_eq!((told(false), told(true)), (false, true));
    let run = [
        "run",
        "--model",
        arguments[2],
        "--raw",
        "--max-tokens",
        "2",
        "ab",
    ];
    assert!(fornax(&run).status.success());
    fs::remove_dir_all(&folder).unwrap();
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_replaced_by_one() {
    use std::os::unix::fs::FileTypeExt;

    let folder = folder("pipe");
    let pipe = folder.join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    refused(
        &["quantize", TINY, pipe.to_str().unwrap(), "q8_0"],
        "a device or a pipe",
    );
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(names(&folder), ["pipe"]);
    // Nor is one waited for.
    refused(&["inspect", pipe.to_str().unwrap()], "not a regular file");
    fs::remove_dir_all(&folder).unwrap();
}
