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

/// Passes the conformance suite and the golden models on a device that is emulated: by the kernels that all devices
/// have, and none of Hopper's own.
pub(super) fn cuda_emulated() -> Result<String> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("the emulated device is one of Linux on x86-64: run this check there");
    }
    let note = install("c++", "g++")?;
    let folder = root().join("target").join(OWN);
    build(&folder)?;
    let on_device = |mut test: Command, arguments: &[&str]| {
        test.args(arguments);
        test.env("LD_LIBRARY_PATH", &folder);
        test.env("FORNAX_CUDA_LIBRARIES", &folder);
        test.env("XDG_CACHE_HOME", &folder);
        quietly(test)
    };
    let suite = cargo(["test", "--locked", "--package", "fornax-cuda"]);
    let suite = on_device(
        suite,
        &[
            "--test",
            "conformance",
            "--test",
            "steps",
            "--",
            "--include-ignored",
        ],
    )?;
    // Without the name of its package, for then it is the one that `cargo test` has built.
    let golden = cargo(["test", "--locked", "--lib"]);
    let golden = on_device(golden, &["--", "--ignored", GOLDEN])?;
    ensure!(
        golden.contains(&format!("{GOLDEN} ... ok")),
        "the test {GOLDEN} is not there"
    );
    Ok(format!(
        "{}; golden models ok {note}",
        closing_line(&suite)?
    ))
}

/// Builds the device anew, for kernels that were compiled for another one are not to be found.
fn build(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).context("cannot remove the last emulated device")?;
    }
    fs::create_dir_all(folder).context("cannot make a folder for the emulated device")?;
    let sources = root().join(SOURCES);
    let mut compile = command("c++", ["-std=c++17", "-O2", "-fPIC", "-shared"]);
    compile.args(["-Wall", "-Wextra", "-Werror"]);
    compile.arg(format!("-DEMU_HEADERS=\"{}\"", sources.display()));
    for name in [
        "compile.cpp",
        "driver.cpp",
        "fibers.cpp",
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
