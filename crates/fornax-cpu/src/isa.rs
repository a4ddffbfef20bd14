//! Which instructions the kernels use: asked of the processor once, or forced by name.
//!
//! Owns the [`Isa`] type and the only place where the proof of an instruction set is made. Must
//! not know operations.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::{fmt, str::FromStr};

use fornax_backend::BackendError;

#[cfg(not(target_arch = "aarch64"))]
use crate::simd::portable::Portable;
use crate::simd::{Kernel, Simd};
#[cfg(target_arch = "x86_64")]
use crate::simd::{
    amx, avx2::Avx2, avx2_base, avx2_vnni, avx512::Avx512, avx512_pairs::Avx512Pairs,
};
#[cfg(target_arch = "aarch64")]
use crate::simd::{neon::Neon, neon_base::Base, neon_dotprod::Dotprod, neon_i8mm::I8mm};

/// An instruction set that this processor has: there is no way to make a value of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// AVX-512, and the matrix unit for many columns.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// The same, with quantised weights as brain floats there: faster and nearer to the weights, but a
    /// product then depends on how many columns there are. So it has to be asked for.
    #[cfg(target_arch = "x86_64")]
    AmxBrains,
    /// AVX-512 that multiplies pairs of brain floats.
    #[cfg(target_arch = "x86_64")]
    Avx512Brains,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 with dot products of bytes.
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    #[cfg(target_arch = "aarch64")]
    NeonDotprod,
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Not on 64-bit Arm, where there are always vectors.
    #[cfg(not(target_arch = "aarch64"))]
    Portable,
}

/// Fastest first, but for what has to be asked for, which is behind its like.
const ALL: &[Kind] = &[
    #[cfg(target_arch = "x86_64")]
    Kind::Amx,
    #[cfg(target_arch = "x86_64")]
    Kind::AmxBrains,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx512Brains,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx512,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2,
    #[cfg(target_arch = "aarch64")]
    Kind::NeonI8mm,
    #[cfg(target_arch = "aarch64")]
    Kind::NeonDotprod,
    #[cfg(target_arch = "aarch64")]
    Kind::Neon,
    #[cfg(not(target_arch = "aarch64"))]
    Kind::Portable,
];

impl Kind {
    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx | Kind::AmxBrains => {
                is_x86_feature_detected!("avx512vbmi")
                    && Kind::Avx512Brains.is_available()
                    && amx::is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Brains => {
                is_x86_feature_detected!("avx512bf16") && Kind::Avx512.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
                    && Kind::Avx2.is_available()
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni => is_x86_feature_detected!("avxvnni") && Kind::Avx2.is_available(),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm => {
                is_aarch64_feature_detected!("i8mm") && Kind::NeonDotprod.is_available()
            }
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDotprod => {
                is_aarch64_feature_detected!("dotprod") && Kind::Neon.is_available()
            }
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => true,
            #[cfg(not(target_arch = "aarch64"))]
            Kind::Portable => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => "amx",
            #[cfg(target_arch = "x86_64")]
            Kind::AmxBrains => "amx-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Brains => "avx512-bf16",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni => "avx2-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm => "neon-i8mm",
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDotprod => "neon-dotprod",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
            #[cfg(not(target_arch = "aarch64"))]
            Kind::Portable => "portable",
        }
    }
}

impl Isa {
    /// The fastest of this processor.
    pub fn detect() -> Isa {
        let mut available = Self::available();
        available
            .next()
            .expect("invariant: the last one is every processor's")
    }

    /// All of this processor, fastest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        ALL.iter()
            .copied()
            .filter(|kind| kind.is_available())
            .map(Isa)
    }

    /// Columns of the widest register tile.
    pub(crate) fn columns(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx | Kind::AmxBrains | Kind::Avx512Brains | Kind::Avx512 => Avx512::COLUMNS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Vnni => Avx2::<avx2_vnni::Vnni>::COLUMNS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => Avx2::<avx2_base::Base>::COLUMNS,
            #[cfg(target_arch = "aarch64")]
            Kind::NeonI8mm => Neon::<I8mm>::COLUMNS,
            #[cfg(target_arch = "aarch64")]
            Kind::NeonDotprod => Neon::<Dotprod>::COLUMNS,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => Neon::<Base>::COLUMNS,
            #[cfg(not(target_arch = "aarch64"))]
            Kind::Portable => Portable::COLUMNS,
        }
    }

    /// Whether tiles of many columns go to a matrix unit.
    pub(crate) fn has_matrix_unit(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx | Kind::AmxBrains => true,
            _ => false,
        }
    }

    /// Whether weights that are brain floats meet activations that are, too.
    pub(crate) fn has_brains(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx | Kind::AmxBrains | Kind::Avx512Brains => true,
            _ => false,
        }
    }

    /// Whether quantised weights become brain floats there.
    pub(crate) fn has_brains_for_quants(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::AmxBrains => true,
            _ => false,
        }
    }

    /// Panels that vectors multiply at a time with many columns.
    pub(crate) fn panels(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx | Kind::AmxBrains | Kind::Avx512Brains | Kind::Avx512 => Avx512::PANELS,
            _ => 1,
        }
    }

    /// Whether pairs of panels meet all tiles of many columns. Then multiplications are what products wait for, and
    /// formats that can afford it have coarse scales.
    pub(crate) fn has_pairs_of_panels(self) -> bool {
        self.panels() == 2 && !self.has_matrix_unit()
    }

    /// Runs a kernel compiled for this instruction set, but that those which differ in dot products of bytes
    /// alone have it in common: each kernel is compiled once for all of them.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` is only made of what `is_available` found.
            Kind::Amx | Kind::AmxBrains | Kind::Avx512Brains | Kind::Avx512 => unsafe {
                run_avx512(kernel)
            },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx2Vnni | Kind::Avx2 => unsafe { run_avx2(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Kind::NeonI8mm | Kind::NeonDotprod | Kind::Neon => unsafe { run_neon(kernel) },
            #[cfg(not(target_arch = "aarch64"))]
            Kind::Portable => run_portable(kernel),
        }
    }

    /// Runs a kernel that multiplies bytes, or lays them out for one that does.
    #[inline]
    pub(crate) fn run_with_dots<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` is only made of what `is_available` found.
            Kind::Avx2Vnni => unsafe { run_avx2_vnni(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Kind::NeonI8mm => unsafe { run_neon_i8mm(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Kind::NeonDotprod => unsafe { run_neon_dotprod(kernel) },
            _ => self.run(kernel),
        }
    }

    /// Runs a kernel that multiplies pairs of 16 bits where vectors can. Beside a matrix unit it does
    /// not: whether that would be faster was not measured there.
    #[inline]
    pub(crate) fn run_with_pairs<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` is only made of what `is_available` found.
            Kind::Avx512Brains => unsafe { run_avx512_bf16(kernel) },
            _ => self.run(kernel),
        }
    }
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run_with_pairs(unsafe { Avx512Pairs::new() })
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run(unsafe { Avx512::new() })
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avxvnni,avx2,fma,f16c")]
unsafe fn run_avx2_vnni<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run(unsafe { Avx2::<avx2_vnni::Vnni>::new() })
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run(unsafe { Avx2::<avx2_base::Base>::new() })
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn run_neon_i8mm<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run(unsafe { Neon::<I8mm>::new() })
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
unsafe fn run_neon_dotprod<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run(unsafe { Neon::<Dotprod>::new() })
}

/// # Safety
/// The processor has these features.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn run_neon<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run(unsafe { Neon::<Base>::new() })
}

/// A function of its own as those above are, which can be part of no other: each kernel is compiled once, and
/// not once more wherever it is run.
#[cfg(not(target_arch = "aarch64"))]
#[inline(never)]
fn run_portable<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name())
    }
}

impl FromStr for Isa {
    type Err = BackendError;

    fn from_str(name: &str) -> Result<Self, BackendError> {
        let isa = Self::available().find(|isa| isa.0.name() == name);
        isa.ok_or_else(|| {
            let names: Vec<&str> = Self::available().map(|isa| isa.0.name()).collect();
            let names = names.join(", ");
            BackendError(format!(
                "instruction set `{name}` is not known or not in this processor; it has {names}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that a kernel is run with.
    struct Vectors;

    impl Kernel for Vectors {
        type Output = &'static str;

        #[inline(always)]
        fn run<S: Simd>(self, _: S) -> &'static str {
            std::any::type_name::<S>()
        }
    }

    /// What the processor says it has, whatever this file makes of it.
    fn fastest_by_features() -> &'static str {
        #[cfg(target_arch = "x86_64")]
        match () {
            () if amx::is_available() => "amx",
            () if is_x86_feature_detected!("avx512bf16") => "avx512-bf16",
            () if is_x86_feature_detected!("avx512vnni") => "avx512-vnni",
            () if is_x86_feature_detected!("avxvnni") => "avx2-vnni",
            () if is_x86_feature_detected!("avx2") => "avx2",
            () => "portable",
        }
        #[cfg(target_arch = "aarch64")]
        match () {
            () if is_aarch64_feature_detected!("i8mm") => "neon-i8mm",
            () if is_aarch64_feature_detected!("dotprod") => "neon-dotprod",
            () => "neon",
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        "portable"
    }

    /// `cargo xtask ci linux-arm` emulates processors and knows which kernels each must get.
    #[test]
    fn kernels_are_the_fastest_that_the_processor_has() {
        let expected = std::env::var("FORNAX_EXPECTED_ISA");
        let expected = expected.as_deref().unwrap_or(fastest_by_features());
        assert_eq!(Isa::detect().to_string(), expected);
    }

    #[test]
    fn kernels_run_with_the_vectors_of_their_instruction_set() {
        for isa in Isa::available() {
            let name = isa.to_string();
            let expected = match name.as_str() {
                "amx" | "amx-bf16" | "avx512-bf16" | "avx512-vnni" => "Avx512",
                "avx2-vnni" => "Vnni>",
                "avx2" => "avx2_base::Base>",
                "neon-i8mm" => "I8mm>",
                "neon-dotprod" => "Dotprod>",
                "neon" => "Base>",
                _ => "Portable",
            };
            let vectors = isa.run_with_dots(Vectors);
            assert!(vectors.ends_with(expected), "{isa} runs with {vectors}");
        }
    }

    #[test]
    fn instruction_sets_are_found_by_their_names_alone() {
        for isa in Isa::available() {
            assert_eq!(isa.to_string().parse::<Isa>().unwrap(), isa);
        }
        let error = "sse9".parse::<Isa>().unwrap_err().to_string();
        assert!(
            error.contains("sse9") && error.contains(&Isa::detect().to_string()),
            "{error}"
        );
    }
}
