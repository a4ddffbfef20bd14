//! Dot products of processors with FEAT_I8MM, as the Neoverse V1 and Apple's M2. Must not know
//! operations.
//!
//! Of the extension only `usdot` is used. Its matrix product `smmla` multiplies two rows with two
//! columns, 8 values deep: twice the products an instruction, but weights would have to lie two
//! rows by 8 values, not four rows by 4, and each sum would hold two rows of two columns, which
//! fits neither panels nor the 16 lanes of a vector. Rearranging both in registers takes back what
//! the instruction saves.

use std::arch::{aarch64::*, asm};

use super::neon::Dots;

/// `usdot` multiplies unsigned bytes with signed ones.
#[derive(Clone, Copy)]
pub(crate) enum I8mm {}

impl Dots for I8mm {
    /// Weights enter as unsigned, 128 too large: the start takes that back for free.
    #[inline(always)]
    fn start(minus_128_sum: i32) -> i32 {
        minus_128_sum
    }

    #[inline(always)]
    unsafe fn add<const LANE: i32>(
        mut sums: int32x4_t,
        weights: uint8x16_t,
        a: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: the caller's.
        unsafe {
            // The intrinsic, `vusdotq_s32`, is not stable yet.
            asm!(
                "usdot {sums:v}.4s, {weights:v}.16b, {a:v}.4b[{lane}]",
                sums = inout(vreg) sums,
                weights = in(vreg) weights,
                a = in(vreg) a,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sums
    }
}
