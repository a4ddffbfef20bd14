//! Dot products of processors with FEAT_DotProd, from the Cortex-A55 and A76 on and in every Apple
//! M. Must not know operations.

use std::arch::{aarch64::*, asm};

use super::neon::Dots;

/// `sdot` multiplies signed bytes.
#[derive(Clone, Copy)]
pub(crate) enum Dotprod {}

impl Dots for Dotprod {
    #[inline(always)]
    fn start(_: i32) -> i32 {
        0
    }

    /// The weights are made signed again. `udot` would take them as they are, but needs the
    /// activations unsigned too, and so the sums of the weights.
    #[inline(always)]
    unsafe fn add<const LANE: i32>(
        mut sums: int32x4_t,
        weights: uint8x16_t,
        a: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: the caller's.
        unsafe {
            let weights = veorq_u8(weights, vdupq_n_u8(0x80));
            // The intrinsic, `vdotq_s32`, is not stable yet.
            asm!(
                "sdot {sums:v}.4s, {weights:v}.16b, {a:v}.4b[{lane}]",
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
