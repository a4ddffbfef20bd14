//! The kernels compile, for every generation of devices that they may run on. Needs no device.

use fornax_cuda::compile_kernels;
use fornax_gguf::DType;

const WHY: &str = "the kernel is CUDA C++ that NVRTC takes";

/// A format of each kind: single numbers, halves of them, whole bytes, parts of bytes, scales in
/// two steps with minimums, a table. What a format is unpacked with is the same on each device.
const KINDS: &[DType] = &[
    DType::F32,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_K,
    DType::IQ4_NL,
];

/// That of the devices that we measure on.
#[test]
#[ignore = "needs NVIDIA's run-time compiler: `cargo xtask ci` fetches it"]
fn every_kernel_compiles_for_hopper() {
    let formats = DType::all();
    assert!(compile_kernels("sm_90a", formats).expect(WHY) > formats.len());
}

#[test]
#[ignore = "needs NVIDIA's run-time compiler: `cargo xtask ci` fetches it"]
fn kernels_compile_for_the_generations_before_and_after() {
    for architecture in ["sm_80", "sm_100"] {
        assert!(compile_kernels(architecture, KINDS).expect(architecture) > KINDS.len());
    }
}
