//! The kernels compile, for every generation of devices that they may run on. Needs no device.

use fornax_cuda::compile_kernels;
use fornax_gguf::DType;

const WHY: &str = "the kernel is CUDA C++ that NVRTC takes";

/// Single numbers, halves of them, whole bytes, and scales in two steps: what a format is unpacked with is the same on
/// each device.
const SOME: &[DType] = &[DType::F32, DType::BF16, DType::Q8_0, DType::Q4_K];

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
        assert!(compile_kernels(architecture, SOME).expect(architecture) > SOME.len());
    }
}
