//! The conformance suite on every instruction set, on one thread and on several.

use fornax_backend::conformance::Tolerance;
use fornax_cpu::{Cpu, CpuOptions};

/// Matrices of single numbers are multiplied in single precision, those in blocks with activations
/// of 8 bits. The largest of 32 normal numbers is about 2.3, so that rounding in steps of 1/127 of it
/// costs 0.5 % of the norm; a product with a single output may be 4 standard deviations off.
const TOLERANCE: Tolerance = Tolerance {
    linear_float: Tolerance::single_precision().linear_float,
    linear_block: 2e-2,
    ..Tolerance::eight_bit_activations()
};

/// Weights that are brain floats meet activations rounded to as many bits: 8, so by 1/512 at most.
const BRAINS: Tolerance = Tolerance {
    linear_float: 1e-2,
    ..TOLERANCE
};

/// Attention rounds the weights of the softmax and values to brain floats, each by 2⁻⁸ of itself at
/// most: an output, which is a mean of values, moves by no more for either. Scores move by steps of a
/// 16,383rd of a key's largest element, a hundredth of that.
const PAIRS: Tolerance = Tolerance {
    attention: 2.0 / 256.0,
    ..BRAINS
};

fn cpu(isa: &str, threads: usize) -> Cpu {
    let isa = Some(isa.parse().expect("an instruction set of this processor"));
    Cpu::new(CpuOptions {
        threads: Some(threads),
        isa,
        sketched_from: Some(0),
        commits_kv: true,
    })
    .expect("a CPU")
}

mod amx {
    fornax_backend::conformance_suite!(
        super::cpu("amx", 2),
        super::BRAINS,
        #[cfg_attr(no_amx, ignore = "needs a processor with AMX")]
    );
}

mod amx_bf16 {
    fornax_backend::conformance_suite!(
        super::cpu("amx-bf16", 2),
        super::BRAINS,
        #[cfg_attr(no_amx, ignore = "needs a processor with AMX")]
    );
}

mod avx512_bf16 {
    fornax_backend::conformance_suite!(
        super::cpu("avx512-bf16", 2),
        super::PAIRS,
        #[cfg_attr(no_avx512_bf16, ignore = "needs a processor with AVX-512 BF16")]
    );
}

mod avx512 {
    fornax_backend::conformance_suite!(
        super::cpu("avx512-vnni", 1),
        super::TOLERANCE,
        #[cfg_attr(no_avx512, ignore = "needs a processor with AVX-512 VNNI")]
    );
}

mod avx512_on_three_threads {
    fornax_backend::conformance_suite!(
        super::cpu("avx512-vnni", 3),
        super::TOLERANCE,
        #[cfg_attr(no_avx512, ignore = "needs a processor with AVX-512 VNNI")]
    );
}

mod avx2_vnni {
    fornax_backend::conformance_suite!(
        super::cpu("avx2-vnni", 2),
        super::TOLERANCE,
        #[cfg_attr(no_avx2_vnni, ignore = "needs a processor with AVX-VNNI")]
    );
}

mod avx2 {
    fornax_backend::conformance_suite!(
        super::cpu("avx2", 2),
        super::TOLERANCE,
        #[cfg_attr(no_avx2, ignore = "needs a processor with AVX2 and FMA")]
    );
}

#[cfg(target_arch = "aarch64")]
mod neon {
    fornax_backend::conformance_suite!(super::cpu("neon", 2), super::TOLERANCE);
}

/// Whether that is one with more than NEON only the processor knows, which may be an emulated one.
#[cfg(target_arch = "aarch64")]
mod fastest_on_arm {
    fornax_backend::conformance_suite!(
        super::cpu(&crate::Isa::detect().to_string(), 3),
        super::TOLERANCE
    );
}

#[cfg(not(target_arch = "aarch64"))]
mod portable {
    fornax_backend::conformance_suite!(super::cpu("portable", 2), super::TOLERANCE);
}
