//! Kernels of CUDA on a machine without a GPU: the host stands in for the driver, the compiler and the device.

use std::{fs, os::unix::fs::symlink, path::Path};

use anyhow::{Context, Result, bail};

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
const OTHER_NAMES: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libnvrtc.so.13"];
/// Those tests that need no library of NVIDIA's beside the driver and the compiler.
const TESTS: &str = "single::";

/// Runs the conformance suite on a device that is emulated: what kernels have for all devices, and nothing of Hopper.
pub(super) fn cuda_emulated() -> Result<String> {
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        bail!("the emulated device is one of Linux on x86-64: run this check there");
    }
    let note = install("c++", "g++")?;
    let folder = root().join("target").join(OWN);
    build(&folder)?;
    let mut test = cargo(["test", "--package", "fornax-cuda", "--test", "conformance"]);
    test.args(["--locked", "--", "--include-ignored", TESTS]);
    test.env("LD_LIBRARY_PATH", &folder);
    test.env("FORNAX_CUDA_LIBRARIES", &folder);
    test.env("XDG_CACHE_HOME", &folder);
    Ok(closing_line(&quietly(test)?)? + &note)
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
    for name in ["compile.cpp", "driver.cpp", "fibers.cpp", "ptx.cpp"] {
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
