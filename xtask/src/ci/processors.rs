//! Checks for processors that are not at hand: tests on those that qemu emulates.
//!
//! Owns which processors those are and which kernels each must get. What is measured under
//! emulation would mean nothing, so nothing is.

use std::{process::Command, sync::Mutex, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::steps::{PROGRAM, build, cargo, closing_line, command, install_target, quietly};

/// 64-bit Arm without glibc: a static binary for any Linux, which rustup brings all parts of.
pub(super) const TARGET: &str = "aarch64-unknown-linux-musl";
/// Where the sanitizer's tests are built.
pub(super) const SANITIZER: &str = "sanitizer";
/// What the sanitizer is linked for.
const SANITIZED: &str = "x86_64-unknown-linux-gnu";
/// Runs a program of that processor here.
const EMULATOR: &str = "qemu-aarch64";
/// Runs one of this processor, as if it were another.
const OWN_EMULATOR: &str = "qemu-x86_64";
/// The package of both.
const QEMU: &str = "qemu-user";
/// An x86-64 processor with little beyond the first version of its instruction set.
const BASELINE: &str = "qemu64";
/// A question that leaves no doubt about the next token, so that every rounding answers alike.
const QUESTION: &str = "What is 12 + 30?";

/// A processor as the emulator calls it, and the kernels that it must get: without dot products,
/// with them, and with all that the emulator knows.
const PROCESSORS: &[(&str, &str)] = &[
    ("cortex-a53", "neon"),
    ("cortex-a76", "neon-dotprod"),
    ("max", "neon-i8mm"),
];

/// What is not seen again under emulation: it is done natively, with the same code above the instruction set,
/// by products that are compared to the last bit under emulation too. Prompts that keep a device busy take the ways of
/// those beside answers, which are seen.
const ABOVE_PRODUCTS: &[&str] = &[
    "products_do_not_depend",
    "products_of_extremes",
    "tests::threads",
    "fastest_on_arm::busy_prompts",
    "fastest_on_arm::experts",
    "fastest_on_arm::fused",
    "fastest_on_arm::largest",
];

/// What is seen with the fastest kernels alone, for those of the other processors differ from them in the
/// integer products, whose own tests they all run: how pieces of products, and what a sketch leaves of one, come
/// together. The conformance suite is so too.
const WITH_FASTEST: &[&str] = &["tests::together", "tests::largest"];

/// That everything compiles, that on each processor the products of every format are exact to the
/// last bit, and that the conformance suite, but for what is [above](ABOVE_PRODUCTS), passes with the fastest
/// kernels.
pub(super) fn linux_arm() -> Result<String> {
    let mut note = install_target(TARGET)?;
    note += &install(EMULATOR, QEMU)?;
    quietly(cargo([
        "check",
        "--workspace",
        "--locked",
        "--target",
        TARGET,
    ]))?;
    let (last, _) = PROCESSORS.last().expect("invariant: there is one");
    for (processor, isa) in PROCESSORS {
        let mut units = tests_on(processor);
        units.args(["--skip", "tests::conformance"]);
        if processor != last {
            units.args(WITH_FASTEST.iter().flat_map(|name| ["--skip", name]));
        }
        units.env("FORNAX_EXPECTED_ISA", isa);
        quietly(units).with_context(|| format!("unit tests on {processor}"))?;
    }
    let mut suite = tests_on(last);
    suite.arg("fastest_on_arm");
    quietly(suite).with_context(|| format!("the conformance suite on {last}"))?;
    let processors: Vec<&str> = PROCESSORS.iter().map(|(processor, _)| *processor).collect();
    Ok(format!("{} {note}", processors.join(", "))
        .trim_end()
        .to_owned())
}

/// That what is compiled for x86-64 asks for nothing that the first version of it lacks: products of
/// every format, and the built-in model's answer, on such a processor.
pub(super) fn baseline() -> Result<String> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("run this check on Linux on x86-64");
    }
    let note = install(OWN_EMULATOR, QEMU)?;
    build()?;
    let expected = quietly(ask(command(PROGRAM, ["run", "--backend", "scalar"])))?;
    let mut run = on_baseline(PROGRAM);
    run.arg("run");
    let answer = quietly(ask(run))?;
    ensure!(
        answer == expected,
        "“{QUESTION}” is answered “{answer}” there, “{expected}” by the reference"
    );
    // Built as `.ci/run` built them, so that nothing is built again.
    let mut tests = cargo(["test", "--locked", "--no-run"]);
    tests.args(["--message-format", "json"]);
    let built = quietly(tests)?;
    let mut units = on_baseline(&executable(&built, "fornax_cpu")?);
    units.args(["integer_dots", "products_equal_their_scalar_twin", "isa::"]);
    quietly(units).context("unit tests")?;
    Ok(format!("{BASELINE} {note}").trim_end().to_owned())
}

/// Products of every format and attention on the kernels of this processor, under the address sanitizer. It sees all
/// loads and stores but those of the matrix unit, which are assembly; what these read and write was
/// made and is read by instructions that it sees.
pub(super) fn sanitizer() -> Result<String> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("run this check on Linux on x86-64");
    }
    let mut tests = cargo(["test", "--package", "fornax-cpu", "--lib", "--locked"]);
    // With a target of its own, build scripts stay as they are.
    tests.args([
        "--target",
        SANITIZED,
        "--target-dir",
        &format!("target/{SANITIZER}"),
    ]);
    // The compiler that everything is built with has the sanitizer, but gives it to nightly alone.
    tests.env("RUSTC_BOOTSTRAP", "1");
    tests.env("RUSTFLAGS", "-Zsanitizer=address");
    leave_assertions_out(&mut tests);
    tests.args(["--", "--skip", "tests::conformance"]);
    closing_line(&quietly(tests)?)
}

/// Adds what every answer is asked for with.
fn ask(mut run: Command) -> Command {
    run.args(["--temperature", "0", "--max-tokens", "24", QUESTION]);
    run
}

fn on_baseline(program: &str) -> Command {
    command(OWN_EMULATOR, ["-cpu", BASELINE, program])
}

/// Where cargo, which tells a JSON object a line, has put the CPU backend's tests of this name.
fn executable(told: &str, name: &str) -> Result<String> {
    let lines = told
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let mut found = lines.filter_map(|line: Value| {
        let is_wanted = line["target"]["name"] == name
            && line["profile"]["test"] == true
            && line["package_id"].as_str()?.contains("fornax-cpu");
        let path = line["executable"].as_str()?;
        is_wanted.then(|| path.to_owned())
    });
    found
        .next()
        .with_context(|| format!("cargo built no tests `{name}`"))
}

/// Tests of the CPU backend on a processor. What else they are told are names of tests.
fn tests_on(processor: &str) -> Command {
    let mut tests = cargo(["test", "--package", "fornax-cpu", "--lib", "--locked"]);
    let variable = format!("CARGO_TARGET_{}", TARGET.to_uppercase().replace('-', "_"));
    tests.args(["--target", TARGET]);
    tests.env(format!("{variable}_LINKER"), "rust-lld");
    let runner = format!("{EMULATOR} -cpu {processor}");
    tests.env(format!("{variable}_RUNNER"), runner);
    leave_assertions_out(&mut tests);
    tests.arg("--");
    for name in ABOVE_PRODUCTS {
        tests.args(["--skip", name]);
    }
    tests
}

/// Of the compiler: `cargo test` has them, and an eighth of the time to compile kernels is theirs.
fn leave_assertions_out(tests: &mut Command) {
    for what in ["DEBUG_ASSERTIONS", "OVERFLOW_CHECKS"] {
        tests.env(format!("CARGO_PROFILE_DEV_{what}"), "false");
    }
}

/// Fetches the package of a program that is missing.
pub(super) fn install(program: &str, package: &str) -> Result<String> {
    /// Only one may at a time.
    static INSTALLS: Mutex<()> = Mutex::new(());
    let _alone = INSTALLS.lock();
    if Command::new(program).arg("--version").output().is_ok() {
        return Ok(String::new());
    }
    let started = Instant::now();
    let apt = |arguments: &[&str]| {
        let mut apt = command("apt-get", []);
        apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        quietly(apt).with_context(|| {
            format!("{program} is missing and could not be installed; as root: apt-get install {package}")
        })
    };
    apt(&["update"])?;
    apt(&["install", "--yes", "--no-install-recommends", package])?;
    let seconds = started.elapsed().as_secs();
    Ok(format!("{package} was missing; installed in {seconds} s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_where_cargo_put_them() {
        let told = r#"
            {"reason":"compiler-artifact","package_id":"path+file:///x/fornax-cuda#0.1.0","target":{"name":"conformance"},"profile":{"test":true},"executable":"/x/cuda"}
            {"reason":"compiler-artifact","package_id":"path+file:///x/fornax-cpu#0.1.0","target":{"name":"fornax_cpu"},"profile":{"test":false},"executable":null}
            {"reason":"compiler-artifact","package_id":"path+file:///x/fornax-cpu#0.1.0","target":{"name":"conformance"},"profile":{"test":true},"executable":"/x/cpu"}
            running"#;
        assert_eq!(executable(told, "conformance").unwrap(), "/x/cpu");
        assert!(executable(told, "fornax_cpu").is_err());
    }
}
