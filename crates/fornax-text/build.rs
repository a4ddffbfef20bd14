//! Tells the tests where `../shared` (real vocabularies) is, or sets `no_shared`, under which they
//! report themselves ignored. Looks at `$FORNAX_SHARED`, then beside the workspace. Other crates
//! copy this file as it stands.

use std::{env, path::PathBuf};

fn main() {
    println!("cargo::rustc-check-cfg=cfg(no_shared)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FORNAX_SHARED");
    let named = env::var_os("FORNAX_SHARED").map(PathBuf::from);
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    match named
        .into_iter()
        .chain([beside])
        .find_map(|folder| folder.canonicalize().ok())
    {
        Some(folder) => println!("cargo::rustc-env=FORNAX_SHARED_DIR={}", folder.display()),
        None => println!("cargo::rustc-cfg=no_shared\ncargo::rustc-env=FORNAX_SHARED_DIR="),
    }
}
