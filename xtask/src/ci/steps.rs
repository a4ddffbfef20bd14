//! What each check runs, and how it gets the tools that the machine lacks.
//!
//! Every command runs at the root of the repository, without standard input, and is quiet unless
//! it fails.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};

use super::{Lane, Step, emulator, processors};
use crate::{root, tidy};

/// The version of cargo-deny that reads our `deny.toml`.
const CARGO_DENY: &str = "0.20.2";
/// The compiler that CUDA kernels are checked with.
const NVRTC: &str = "nvidia-cuda-nvrtc==13.0.88";
/// Whose tokens ours are compared with.
const TOKENIZERS: &str = "tokenizers==0.23.2";
/// Macs. A check needs no linker, so that any machine can do it.
const MAC: &str = "aarch64-apple-darwin";
/// The folder of a workspace of its own.
const ASYNC_OPENAI: &str = "async-openai";
/// What [`build`] makes, and this program along with it.
pub(super) const PROGRAM: &str = "target/release/fornax";
const CHORES: &str = "target/release/xtask";
/// The first command of the README.
const FIRST_COMMAND: &str = "cargo run --release -- run \"Tell me a story about a fox\"";

/// Every check, in the order of its lane.
pub(super) const STEPS: &[Step] = &[
    Step {
        name: "format",
        about: "sources are as rustfmt writes them",
        lane: Lane::First,
        own: None,
        run: format,
    },
    Step {
        name: "tidy",
        about: "rules that the compiler does not know",
        lane: Lane::First,
        own: None,
        run: tidy_files,
    },
    Step {
        name: "python",
        about: "scripts parse",
        lane: Lane::First,
        own: None,
        run: python,
    },
    Step {
        name: "targets",
        about: "the standard libraries of other platforms are here",
        lane: Lane::First,
        own: None,
        run: targets,
    },
    Step {
        name: "lints",
        about: "clippy has nothing to say",
        lane: Lane::Common,
        own: None,
        run: lints,
    },
    Step {
        name: "docs",
        about: "the documentation builds, and its links lead somewhere",
        lane: Lane::Common,
        own: Some("doc"),
        run: docs,
    },
    Step {
        name: "peer",
        about: "our tokens are those of Hugging Face's tokenizers",
        lane: Lane::Common,
        own: None,
        run: peer,
    },
    Step {
        name: "openai-client",
        about: "OpenAI's own client is served as it expects",
        lane: Lane::Last,
        own: None,
        run: openai_client,
    },
    Step {
        name: "async-openai",
        about: "so is a Rust client",
        lane: Lane::Apart,
        own: Some(ASYNC_OPENAI),
        run: async_openai,
    },
    Step {
        name: "fuzz",
        about: "the fuzz targets compile; their twins are tests",
        lane: Lane::Common,
        own: None,
        run: fuzz,
    },
    Step {
        name: "cuda-kernels",
        about: "the CUDA kernels compile, without a GPU",
        lane: Lane::Common,
        own: None,
        run: cuda_kernels,
    },
    Step {
        name: "cuda-emulated",
        about: "the CUDA kernels compute what they should, on a device that is emulated",
        lane: Lane::Apart,
        own: Some(emulator::OWN),
        run: emulator::cuda_emulated,
    },
    Step {
        name: "deny",
        about: "licences, bans and sources of dependencies",
        lane: Lane::Common,
        own: None,
        run: deny,
    },
    Step {
        name: "linux-arm",
        about: "it compiles for 64-bit Arm, and kernels are exact on emulated processors",
        lane: Lane::Common,
        own: Some(processors::TARGET),
        run: processors::linux_arm,
    },
    Step {
        name: "sanitizer",
        about: "the CPU's kernels read and write what is theirs",
        lane: Lane::Apart,
        own: Some(processors::SANITIZER),
        run: processors::sanitizer,
    },
    Step {
        name: "mac",
        about: "it compiles for Macs, and clippy has nothing to say",
        lane: Lane::Common,
        own: Some(MAC),
        run: mac,
    },
    Step {
        name: "first-light",
        about: "the README's first command tells a story",
        lane: Lane::Last,
        own: None,
        run: first_light,
    },
    Step {
        name: "baseline",
        about: "tests and the built-in model on plain x86-64",
        lane: Lane::Last,
        own: None,
        run: processors::baseline,
    },
    Step {
        name: "skills",
        about: "the built-in model answers held-out questions of every skill",
        lane: Lane::Last,
        own: None,
        run: skills,
    },
    Step {
        name: "soak",
        about: "200 bad clients for a minute: nothing is lost",
        lane: Lane::Last,
        own: None,
        run: soak,
    },
];

fn format() -> Result<String> {
    quietly(cargo(["fmt", "--all", "--check"]))?;
    Ok(String::new())
}

fn tidy_files() -> Result<String> {
    tidy::run(root())?;
    Ok(String::new())
}

fn targets() -> Result<String> {
    let notes = [install_target(processors::TARGET)?, install_target(MAC)?];
    Ok(notes.join(" ").trim().to_owned())
}

fn lints() -> Result<String> {
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-Dwarnings",
    ];
    quietly(cargo(clippy))?;
    Ok(String::new())
}

fn docs() -> Result<String> {
    // The binary `fornax` would be documented over the library `fornax`.
    let mut doc = cargo(["doc", "--workspace", "--lib", "--no-deps", "--locked"]);
    doc.env("RUSTDOCFLAGS", "-Dwarnings");
    quietly(doc)?;
    Ok(String::new())
}

/// Fetches the peer among the temporary files where it is missing: PyPI has it compiled already.
fn peer() -> Result<String> {
    // Without the name of their package, for then they are those that `cargo test` has built.
    let mut test = cargo(["test", "--locked", "--test", "folder"]);
    let mut note = "; random texts were not compared, for there is no ../shared";
    if has_vocabularies() {
        test.args(["--test", "peer"]);
        note = "";
    }
    test.args(["--", "--ignored"]);
    test.env("PYTHONPATH", python_package(TOKENIZERS, "tokenizers")?);
    Ok(closing_line(&quietly(test)?)? + note)
}

/// Whether tests of real vocabularies run, as the `build.rs` of crates that have some decides it.
fn has_vocabularies() -> bool {
    let named = env::var_os("FORNAX_SHARED").map(PathBuf::from);
    let mut folders = named.into_iter().chain([root().join("../shared")]);
    folders.any(|folder| folder.exists())
}

/// Installs the client among the temporary files where it is missing.
fn openai_client() -> Result<String> {
    build()?;
    let script = "crates/fornax-server/tests/clients/openai_client.py";
    let told = quietly(command("python3", [script, PROGRAM]))?;
    Ok(told.lines().last().unwrap_or_default().to_owned())
}

/// In a workspace of its own, so that only this check compiles an HTTP client.
fn async_openai() -> Result<String> {
    build()?;
    let told = quietly(cargo([
        "run",
        "--quiet",
        "--locked",
        "--manifest-path",
        "crates/fornax-server/tests/clients/async-openai/Cargo.toml",
        "--target-dir",
        &format!("target/{ASYNC_OPENAI}"),
        PROGRAM,
    ]))?;
    Ok(told.lines().last().unwrap_or_default().to_owned())
}

/// To run them takes a nightly compiler and as long as one likes.
fn fuzz() -> Result<String> {
    // The same versions as everywhere, so that what is built is built once.
    let (lock, copy) = (root().join("Cargo.lock"), root().join("fuzz/Cargo.lock"));
    fs::copy(lock, copy).context("cannot copy Cargo.lock")?;
    quietly(cargo([
        "check",
        "--no-default-features",
        "--manifest-path",
        "fuzz/Cargo.toml",
        "--target-dir",
        "target",
    ]))?;
    Ok(String::new())
}

/// Fetches NVIDIA's run-time compiler among the temporary files where it is missing.
fn cuda_kernels() -> Result<String> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("PyPI has the compiler for Linux on x86-64: run this check there");
    }
    let part = "nvidia/cu13/lib";
    let libraries = python_package(NVRTC, part)?.join(part);
    // Without the name of its package, for then it is the one that `cargo test` has built.
    let mut test = cargo(["test", "--test", "kernels", "--locked", "--", "--ignored"]);
    // The compiler loads a part of itself by name alone.
    test.env("LD_LIBRARY_PATH", &libraries);
    test.env("FORNAX_CUDA_LIBRARIES", libraries);
    closing_line(&quietly(test)?)
}

fn deny() -> Result<String> {
    let mut note = String::new();
    if !has_cargo_deny()? {
        let started = Instant::now();
        let version = format!("cargo-deny@{CARGO_DENY}");
        // Unoptimised it compiles in half the time, and takes seconds to check.
        quietly(cargo([
            "install", "--locked", "--force", "--debug", &version,
        ]))?;
        note = format!(
            "{version} was missing; installed in {} s",
            started.elapsed().as_secs()
        );
    }
    quietly(cargo([
        "deny",
        "--workspace",
        "--locked",
        "check",
        "licenses",
        "bans",
        "sources",
    ]))?;
    Ok(note)
}

fn mac() -> Result<String> {
    let note = install_target(MAC)?;
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--target",
        MAC,
    ];
    let mut clippy = cargo(clippy);
    clippy.args(["--", "-Dwarnings"]);
    quietly(clippy)?;
    Ok(note)
}

fn first_light() -> Result<String> {
    let readme = fs::read_to_string(root().join("README.md")).context("cannot read README.md")?;
    let first = readme
        .lines()
        .map(str::trim)
        .find(|line| line.starts_with("cargo "));
    ensure!(
        first == Some(FIRST_COMMAND),
        "the README's first command is `{}`, but `{FIRST_COMMAND}` is what is checked: change one",
        first.unwrap_or("none")
    );
    let mut story = cargo(["run", "--quiet", "--release", "--locked", "--", "run"]);
    story.args([
        "--temperature",
        "0",
        "--max-tokens",
        "40",
        "Tell me a story about a fox",
    ]);
    let story = quietly(story)?;
    let words = story
        .split_whitespace()
        .take(8)
        .collect::<Vec<_>>()
        .join(" ");
    ensure!(
        !words.is_empty(),
        "the README's first command printed nothing"
    );
    Ok(format!("“{words} …”"))
}

/// Every script is parsed. What a script imports is not there on a new machine, so none is run.
fn python() -> Result<String> {
    const PARSE: &str = "import ast, sys\nfor path in sys.argv[1:]:\n    \
        ast.parse(open(path, encoding='utf-8').read(), path)";
    let listing = quietly(command("git", ["ls-files", "-z", "--", "*.py"]))?;
    let scripts: Vec<&str> = listing.split_terminator('\0').collect();
    let mut parse = command("python3", ["-c", PARSE]);
    parse.args(&scripts);
    quietly(parse)?;
    Ok(format!("{} scripts", scripts.len()))
}

/// Whether the cargo-deny that we know is there.
fn has_cargo_deny() -> Result<bool> {
    let version = cargo(["deny", "--version"])
        .output()
        .context("cannot run cargo")?;
    let told = String::from_utf8_lossy(&version.stdout);
    Ok(told.split_whitespace().nth(1) == Some(CARGO_DENY))
}

/// The folder of a package of PyPI among the temporary files, which is fetched where `part` of it
/// is missing.
fn python_package(requirement: &str, part: &str) -> Result<PathBuf> {
    let folder = env::temp_dir().join(format!("fornax-{requirement}"));
    if !folder.join(part).is_dir() {
        let mut install = command("python3", ["-m", "pip", "install", "--quiet", "--no-deps"]);
        install.args([
            "--target".as_ref(),
            folder.as_os_str(),
            requirement.as_ref(),
        ]);
        quietly(install)?;
    }
    Ok(folder)
}

/// How the tests of each binary went, as `cargo test` says it.
pub(super) fn closing_line(told: &str) -> Result<String> {
    let results = told
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "))
        .map(|result| result.split(';').take(3).collect::<Vec<_>>().join(";"));
    let results: Vec<_> = results.collect();
    ensure!(
        !results.is_empty(),
        "cargo test did not say how the tests went"
    );
    Ok(results.join(", "))
}

/// Fetches the standard library of another platform where it is missing.
pub(super) fn install_target(target: &str) -> Result<String> {
    let installed = quietly(command("rustup", ["target", "list", "--installed"]))?;
    if installed.lines().any(|line| line == target) {
        return Ok(String::new());
    }
    quietly(command("rustup", ["target", "add", target]))?;
    Ok(format!("{target} was missing; installed"))
}

pub(super) fn cargo<const N: usize>(arguments: [&str; N]) -> Command {
    command("cargo", arguments)
}

pub(super) fn command<const N: usize>(program: &str, arguments: [&str; N]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::null());
    command
}

/// Runs a command and returns what it wrote to stdout.
///
/// # Errors
/// It could not be started, or failed; then the error holds all that it wrote.
pub(super) fn quietly(mut command: Command) -> Result<String> {
    let called = format!("{command:?}");
    let output = command
        .output()
        .with_context(|| format!("cannot run {called}: install it"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{stdout}{stderr}\n{called}: {}", output.status);
    }
    Ok(stdout.into_owned())
}

/// The long form runs for ten minutes: `cargo xtask soak`.
fn soak() -> Result<String> {
    build()?;
    let told = quietly(command(CHORES, ["soak", "--seconds", "60"]))?;
    Ok(told.lines().last().unwrap_or_default().to_owned())
}

/// The whole evaluation takes minutes; some questions of each skill show a broken engine too.
fn skills() -> Result<String> {
    build()?;
    let eval = ["eval", "--limit", "12", "--json"];
    Ok(quietly(command(CHORES, eval))?.trim().to_owned())
}

/// The program as users have it. This one is built along with it, as `.ci/run` does it: what both
/// depend on is compiled with the same features then, and once.
pub(super) fn build() -> Result<()> {
    quietly(cargo([
        "build",
        "--release",
        "--locked",
        "--package",
        "fornax-cli",
        "--package",
        "xtask",
    ]))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_tells_all_it_wrote() {
        let script = "echo to stdout; echo to stderr >&2; exit 3";
        let error = quietly(command("sh", ["-c", script]))
            .unwrap_err()
            .to_string();
        for part in ["to stdout", "to stderr", "\"sh\"", "exit status: 3"] {
            assert!(error.contains(part), "{part} is missing: {error}");
        }
    }

    #[test]
    fn a_command_reads_nothing_and_hands_back_stdout() {
        let read = command("sh", ["-c", "cat; echo done; echo aside >&2"]);
        assert_eq!(quietly(read).unwrap(), "done\n");
    }

    #[test]
    fn a_command_that_is_missing_is_named() {
        let error = quietly(command("no-such-program", [])).unwrap_err();
        assert!(format!("{error:#}").contains("no-such-program"));
    }
}
