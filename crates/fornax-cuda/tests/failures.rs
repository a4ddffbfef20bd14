//! What is told when a kernel fails while it runs. A failure ends all work of its process on the
//! device, so that each is looked at in a process of its own: this test, run again by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use fornax_backend::{Activation, Backend, Element, StepShape};
use fornax_cuda::{Cuda, CudaOptions};

/// Set for the process that fails: how its launches are made.
const HOW: &str = "FORNAX_TEST_FAILS";

const SHAPE: StepShape = StepShape {
    rows: 1,
    tokens: 1,
    outputs: 0,
    samples: 0,
    pooled: 0,
    largest: None,
};

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn a_kernel_that_fails_is_named() {
    if let Ok(how) = std::env::var(HOW) {
        return fail(&how);
    }
    let folder = kernels_that_trap();
    for (how, names) in [
        ("checked", &["the kernel glu failed"][..]),
        ("alone", &["kernels", "glu"]),
        ("recorded", &["kernels", "add", "glu"]),
        ("under way", &["kernels", "add", "glu"]),
    ] {
        let told = told_by_process(how, &folder);
        for name in names {
            assert!(told.contains(name), "{how}: {told}");
        }
    }
}

/// The kernels as they are, but for an activation that ends in a trap.
fn kernels_that_trap() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let folder = std::env::temp_dir().join(format!("fornax-traps-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for file in std::fs::read_dir(own).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap();
        let trapped = text.replacen(
            "KERNEL void glu(",
            "KERNEL void glu_that_works(",
            usize::from(name == "rows.cu"),
        );
        let trap = match name == "rows.cu" {
            true => {
                assert_ne!(trapped, text, "the kernel has another name now");
                "\nKERNEL void glu(float* out, const float*, u32, u32, float, float, u16*, u32) {\n    wait_for_previous();\n    if (out) asm volatile(\"trap;\");\n}\n"
            }
            false => "",
        };
        std::fs::write(folder.join(name), trapped + trap).unwrap();
    }
    folder
}

fn told_by_process(how: &str, folder: &Path) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "a_kernel_that_fails_is_named"])
        .args(["--nocapture"])
        .env(HOW, how)
        .env("FORNAX_CUDA_KERNELS", folder)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Panics with what the backend says of two operations, the second of which fails.
fn fail(how: &str) {
    let options = CudaOptions {
        check_launches: how == "checked",
        ..CudaOptions::default()
    };
    let mut cuda = Cuda::new(options).unwrap();
    let mut gate_up = cuda.alloc(Element::F32, 128).unwrap();
    cuda.write_f32(&mut gate_up, &[1.0; 128]);
    let mut out = cuda.alloc(Element::F32, 64).unwrap();
    let mut other = cuda.alloc(Element::F32, 128).unwrap();
    cuda.write_f32(&mut other, &[1.0; 128]);
    let mut words = cuda.alloc(Element::U32, 64).unwrap();
    cuda.write_u32(&mut words, &[0; 64]);
    let mut both = |cuda: &mut Cuda| {
        cuda.add(&mut gate_up, &other, 128, 1);
        cuda.glu(&mut out, &gate_up, Activation::Silu, 64, 1);
    };
    let told = match how {
        "alone" => {
            both(&mut cuda);
            cuda.read_u32(&words, &mut [0; 64])
        }
        "under way" => cuda
            .record(&SHAPE, &mut both)
            .and_then(|()| cuda.begin_read_u32(&words, 64))
            .and_then(|reading| cuda.end_read_u32(reading).map(|_| ())),
        _ => cuda
            .record(&SHAPE, &mut both)
            .and_then(|()| cuda.read_u32(&words, &mut [0; 64])),
    };
    panic!("told: {}", told.unwrap_err());
}
