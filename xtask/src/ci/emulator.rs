//! Kernels of CUDA on a machine without a GPU: the host stands in for NVIDIA's libraries and for the device.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use anyhow::{Context, Result, bail, ensure};

use super::{
    processors::install,
    steps::{cargo, closing_line, command, quietly},
};
use crate::root;

/// The folder under `target` of what is built here, and of the kernels that it compiles.
pub(super) const OWN: &str = "emulated-cuda";
/// Where the emulated device's text is.
const SOURCES: &str = "crates/fornax-cuda/emulator";
/// What it is called by those who look for it.
const LIBRARY: &str = "libcuda.so.1";
const OTHER_NAMES: [&str; 5] = [
    "libcuda.so",
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libcublasLt.so",
    "libcublasLt.so.13",
];
/// Every architecture, stage by stage.
const GOLDEN: &str = "cuda_equals_transformers_at_every_stage";

const AMPERE: &str = "8.0";
const HOPPER: &str = "9.0";
/// Targets of tests: of the backend, and of models on it.
const OF_BACKEND: [&str; 4] = ["--test", "conformance", "--test", "steps"];
const OF_MODELS: [&str; 2] = ["--test", "cuda"];

/// What is passed on a device of a generation: targets, and what tests are told. Targets without the names of their
/// packages, for then they are those that `cargo test` has built.
const PASSES: [(&str, &[&str], &[&str]); 3] = [
    // What all devices have, with products by the library on pieces of matrices, and by none; of many prompts there is
    // nothing else than of few, what multiplies nothing or a single token is the same beside all products, experts
    // that are grouped are those of Hopper's pass, and the draw behind a head is that of products on pieces, as are
    // norms and products head by head (`head` is a part of their names).
    (
        AMPERE,
        &OF_BACKEND,
        &[
            "--include-ignored",
            "--skip=copied::",
            "--skip=many_prompts",
            "--skip=many_answers",
            "--skip=single::head",
            "--skip=decoded::attention",
            "--skip=decoded::attending",
            "--skip=decoded::busy_prompts",
            "--skip=decoded::answers_beside_prompts",
            "--skip=decoded::uneven_scores",
            "--skip=decoded::page_boundaries",
            "--skip=decoded::many_rows",
            "--skip=decoded::embed",
            "--skip=decoded::largest",
            "--skip=decoded::experts",
            "--skip=decoded::mixture",
            "--skip=decoded::sample",
        ],
    ),
    // Hopper's own kernels, of which most read copies of matrices in bf16.
    (
        HOPPER,
        &OF_BACKEND,
        &[
            "--include-ignored",
            "--skip=decoded::",
            "--skip=single::",
            "--skip=copied::sample",
        ],
    ),
    // One sequence, and a few.
    (
        HOPPER,
        &OF_MODELS,
        &[
            "--ignored",
            "a_chain_begins_as_its_launches_do",
            "few_sequences_together_say_what_each_says_alone",
            "sequences_in_turn_are_what_each_is_alone",
        ],
    ),
];

/// Passes the conformance suite and the golden models on a device that is emulated: by the kernels that all devices
/// have, and by those of Hopper.
pub(super) fn cuda_emulated() -> Result<String> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("the emulated device is one of Linux on x86-64: run this check there");
    }
    let note = install("c++", "g++")?;
    let folder = root().join("target").join(OWN);
    build(&folder)?;
    let on_device = |mut test: Command, capability: &str, arguments: &[&str]| {
        test.args(arguments);
        test.env("EMULATED_CAPABILITY", capability);
        test.env("LD_LIBRARY_PATH", &folder);
        test.env("FORNAX_CUDA_LIBRARIES", &folder);
        test.env("XDG_CACHE_HOME", &folder);
        quietly(test)
    };
    let mut said = Vec::new();
    for (capability, targets, told) in PASSES {
        let mut tests = cargo(["test", "--locked"]);
        tests.args(targets).arg("--");
        let passed = on_device(tests, capability, told)?;
        said.push(format!("{capability} {}", closing_line(&passed)?));
    }
    let golden = cargo(["test", "--locked", "--lib"]);
    let golden = on_device(golden, AMPERE, &["--", "--ignored", GOLDEN])?;
    ensure!(
        golden.contains(&format!("{GOLDEN} ... ok")),
        "the test {GOLDEN} is not there"
    );
    Ok(format!("{}; golden models ok {note}", said.join("; ")))
}

/// Builds the device anew, for kernels that were compiled for another one are not to be found.
fn build(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).context("cannot remove the last emulated device")?;
    }
    fs::create_dir_all(folder).context("cannot make a folder for the emulated device")?;
    let sources = root().join(SOURCES);
    let mut compile = command("c++", ["-std=c++17", "-O3", "-fPIC", "-shared"]);
    // For this very machine: what halves and brain floats are takes most processors one instruction.
    compile.args(["-march=native", "-ffp-contract=off"]);
    // A thread finds what is its own without a call.
    compile.arg("-ftls-model=initial-exec");
    compile.args(["-Wall", "-Wextra", "-Werror"]);
    compile.arg(format!("-DEMU_HEADERS=\"{}\"", sources.display()));
    for name in [
        "compile.cpp",
        "driver.cpp",
        "fibers.cpp",
        "hopper.cpp",
        "products.cpp",
        "ptx.cpp",
    ] {
        compile.arg(sources.join(name));
    }
    compile.arg(format!("-Wl,-soname,{LIBRARY}"));
    compile
        .args(["-ldl", "-lpthread", "-o"])
        .arg(folder.join(LIBRARY));
    quietly(compile)?;
    for name in OTHER_NAMES {
        symlink(LIBRARY, folder.join(name)).context("cannot name the emulated device")?;
    }
    Ok(())
}
