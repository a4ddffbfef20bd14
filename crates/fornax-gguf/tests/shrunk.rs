//! What a program says that reads a mapped file which another one cut short.
//!
//! Each case runs in a process of its own, for it ends that.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs::File, os::unix::process::ExitStatusExt, path::Path, process::Output};

use fornax_gguf::{DType, Gguf, GgufWriter, end_where_a_file_shrinks};

#[test]
fn a_file_that_is_cut_short_is_named() {
    let ran = run("reads_a_file_that_was_cut_short");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{:?}: {told}", ran.status);
    let parts = [
        "error: ",
        "shrunk\u{fffd}.gguf: ",
        "cut short",
        "start again",
    ];
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
    assert!(told.ends_with("to its name\n"), "{told}");
}

#[test]
fn a_fault_elsewhere_is_left_to_the_system() {
    let ran = run("reads_a_file_that_nobody_watched");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.signal(), Some(libc::SIGBUS), "{told}");
    assert!(!told.contains("error: "), "{told}");
}

/// Runs one of the tests below as a program.
fn run(test: &str) -> Output {
    let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
    let tests = tests.args(["--ignored", "--exact", "--nocapture", test]);
    tests.output().unwrap()
}

#[test]
#[ignore = "ends the process, for another test to see how"]
fn reads_a_file_that_was_cut_short() {
    end_where_a_file_shrinks();
    end_where_a_file_shrinks();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shrunk\t.gguf");
    let gguf = model(&path);
    // One that is gone, and one that is whole.
    drop(model(&path.with_extension("gone")));
    let whole = model(&path.with_extension("whole"));
    cut(&path);
    assert_eq!(whole.tensor("t").unwrap().decode().len(), 1 << 16);
    let lost = gguf.tensor("t").unwrap().decode();
    unreachable!("{} numbers of a file that has none", lost.len());
}

#[test]
#[ignore = "ends the process, for another test to see how"]
fn reads_a_file_that_nobody_watched() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unwatched.gguf");
    let gguf = model(&path);
    end_where_a_file_shrinks();
    cut(&path);
    let lost = gguf.tensor("t").unwrap().decode();
    unreachable!("{} numbers of a file that has none", lost.len());
}

/// Cuts a file short.
fn cut(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(100).unwrap();
}

/// A mapped model, with a tensor of many pages.
fn model(path: &Path) -> Gguf {
    const NUMBERS: usize = 1 << 16;
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "x").unwrap();
    writer.declare("t", DType::F32, &[NUMBERS]).unwrap();
    let mut tensors = writer.start(File::create(path).unwrap()).unwrap();
    tensors.tensor("t", &[0; 4 * NUMBERS]).unwrap();
    tensors.finish().unwrap();
    Gguf::open(path).unwrap()
}
