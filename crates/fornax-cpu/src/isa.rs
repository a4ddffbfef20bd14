//! Which instructions the kernels use: asked of the processor once, or forced by name.
//!
//! Owns the [`Isa`] type and the only place where the proof of an instruction set is made. Must
//! not know operations.

use std::{fmt, str::FromStr};

use fornax_backend::BackendError;

use crate::simd::{Kernel, Simd, portable::Portable};
#[cfg(target_arch = "x86_64")]
use crate::simd::{avx2::Avx2, avx512::Avx512};

/// An instruction set that this processor has: there is no way to make a value of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// Fastest first.
const ALL: &[Kind] = &[
    #[cfg(target_arch = "x86_64")]
    Kind::Avx512,
    #[cfg(target_arch = "x86_64")]
    Kind::Avx2,
    Kind::Portable,
];

impl Kind {
    fn is_available(self) -> bool {
        match self {
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
            Kind::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Kind::Portable => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
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
            .expect("invariant: the portable kernels run anywhere")
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
            Kind::Avx512 => Avx512::COLUMNS,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => Avx2::COLUMNS,
            Kind::Portable => Portable::COLUMNS,
        }
    }

    /// Runs a kernel compiled for this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `Isa` is only made of what `is_available` found.
            Kind::Avx512 => unsafe { run_avx512(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kind::Avx2 => unsafe { run_avx2(kernel) },
            Kind::Portable => kernel.run(Portable),
        }
    }
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
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's.
    kernel.run(unsafe { Avx2::new() })
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
