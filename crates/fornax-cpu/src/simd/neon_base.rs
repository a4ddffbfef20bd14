//! Dot products of processors with NEON alone, as the Cortex-A53. Must not know operations.

use std::arch::aarch64::*;

use super::neon::Dots;

/// Multiplies bytes to 16 bits and adds up pairs.
#[derive(Clone, Copy)]
pub(crate) enum Base {}

impl Dots for Base {
    #[inline(always)]
    fn start(_: i32) -> i32 {
        0
    }

    /// There is no product of unsigned with signed bytes: the weights are made signed again. Two
    /// products fit into 16 bits, for 2 · 128 · 127 < 2¹⁵; four would not.
    #[inline(always)]
    unsafe fn add<const LANE: i32>(
        sums: int32x4_t,
        weights: uint8x16_t,
        a: int8x16_t,
    ) -> int32x4_t {
        // SAFETY: the caller's.
        unsafe {
            let weights = vreinterpretq_s8_u8(veorq_u8(weights, vdupq_n_u8(0x80)));
            let a = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(a)));
            let low = vmull_s8(vget_low_s8(weights), vget_low_s8(a));
            let high = vmull_high_s8(weights, a);
            vpadalq_s16(sums, vpaddq_s16(low, high))
        }
    }
}
