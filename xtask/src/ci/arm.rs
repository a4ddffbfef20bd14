//! The check of 64-bit Arm: tests and the built-in model on processors that qemu emulates.
//!
//! Owns which processors those are and which kernels each must get. What is measured under
//! emulation would mean nothing, so nothing is.

use std::{process::Command, time::Instant};

use anyhow::{Context, Result, ensure};

use super::steps::{cargo, command, install_target, quietly};

/// 64-bit Arm without glibc: a static binary for any Linux, which rustup brings all parts of.
const TARGET: &str = "aarch64-unknown-linux-musl";
/// Runs a program of that processor here.
const EMULATOR: &str = "qemu-aarch64";
/// The Debian package that has it.
const PACKAGE: &str = "qemu-user";
/// A question that leaves no doubt about the next token, so that every rounding answers alike.
const QUESTION: &str = "What is 12 + 30?";

/// A processor as the emulator calls it, and the kernels that it must get: without dot products,
/// with them, and with all that the emulator knows.
const PROCESSORS: &[(&str, &str)] = &[
    ("cortex-a53", "neon"),
    ("cortex-a76", "neon-dotprod"),
    ("max", "neon-i8mm"),
];

/// On each processor: the unit tests of the CPU backend, the conformance suite with the kernels
/// chosen there, and a question to the built-in model, whose answer must be that of the scalar
/// reference on this machine.
pub(super) fn linux_arm() -> Result<String> {
    let mut note = install_target(TARGET)?;
    if Command::new(EMULATOR).arg("--version").output().is_err() {
        let started = Instant::now();
        install_emulator()?;
        let seconds = started.elapsed().as_secs();
        note = format!("{note} {PACKAGE} was missing; installed in {seconds} s");
    }
    let build = ["build", "--package", "fornax-cli", "--locked"];
    quietly(cargo(build))?;
    quietly(for_arm(build, "max"))?;
    let expected = quietly(ask(command(
        "target/debug/fornax",
        ["run", "--backend", "scalar"],
    )))?;
    for (processor, isa) in PROCESSORS {
        let mut units = for_arm(
            ["test", "--package", "fornax-cpu", "--lib", "--locked"],
            processor,
        );
        units.env("FORNAX_EXPECTED_ISA", isa);
        quietly(units).with_context(|| format!("unit tests on {processor}"))?;
        let suite = [
            "test",
            "--package",
            "fornax-cpu",
            "--test",
            "conformance",
            "--locked",
            "fastest_on_arm",
        ];
        quietly(for_arm(suite, processor)).with_context(|| format!("suite on {processor}"))?;
        let program = format!("target/{TARGET}/debug/fornax");
        let answer = ask(command(EMULATOR, ["-cpu", processor, &program, "run"]));
        let answer = quietly(answer).with_context(|| format!("answer on {processor}"))?;
        ensure!(
            answer == expected,
            "“{QUESTION}” is answered “{answer}” on {processor}, “{expected}” by the reference"
        );
    }
    let processors: Vec<&str> = PROCESSORS.iter().map(|(processor, _)| *processor).collect();
    Ok(format!("{} {note}", processors.join(", "))
        .trim_end()
        .to_owned())
}

/// Adds what every answer is asked for with.
fn ask(mut run: Command) -> Command {
    run.args(["--temperature", "0", "--max-tokens", "24", QUESTION]);
    run
}

/// A command of cargo for the target, whose tests run on a processor.
fn for_arm<const N: usize>(arguments: [&str; N], processor: &str) -> Command {
    let mut command = cargo([]);
    let (first, rest) = arguments
        .split_first()
        .expect("invariant: cargo is told what to do");
    command.args([first, "--target", TARGET]).args(rest);
    let variable = format!("CARGO_TARGET_{}", TARGET.to_uppercase().replace('-', "_"));
    command.env(format!("{variable}_LINKER"), "rust-lld");
    command.env(
        format!("{variable}_RUNNER"),
        format!("{EMULATOR} -cpu {processor}"),
    );
    command
}

fn install_emulator() -> Result<()> {
    let apt = |arguments: &[&str]| {
        let mut apt = command("apt-get", []);
        apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        quietly(apt).with_context(|| {
            format!("{EMULATOR} is missing and could not be installed; as root: apt-get install {PACKAGE}")
        })
    };
    apt(&["update"])?;
    apt(&["install", "--yes", "--no-install-recommends", PACKAGE])?;
    Ok(())
}
