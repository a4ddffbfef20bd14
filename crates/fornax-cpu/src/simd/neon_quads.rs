//! What NEON does not do with four lanes in one instruction: the parts of [`neon`](super::neon) that are
//! about a single register.

use std::arch::aarch64::*;

/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn power_of_two(a: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let exponent = vaddq_s32(vcvtnq_s32_f32(a), vdupq_n_s32(127));
        vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
    }
}

/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn transpose(rows: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: the caller's.
    unsafe {
        let pairs = |a, b| {
            (
                vreinterpretq_f64_f32(vtrn1q_f32(a, b)),
                vreinterpretq_f64_f32(vtrn2q_f32(a, b)),
            )
        };
        let (upper, lower) = (pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
        [
            vreinterpretq_f32_f64(vtrn1q_f64(upper.0, lower.0)),
            vreinterpretq_f32_f64(vtrn1q_f64(upper.1, lower.1)),
            vreinterpretq_f32_f64(vtrn2q_f64(upper.0, lower.0)),
            vreinterpretq_f32_f64(vtrn2q_f64(upper.1, lower.1)),
        ]
    }
}

/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn first_of_pair(pair: uint8x16_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vreinterpretq_u32_u8(pair))) }
}

/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn second_of_pair(pair: uint8x16_t) -> float32x4_t {
    // SAFETY: the caller's.
    unsafe {
        vreinterpretq_f32_u32(vandq_u32(
            vreinterpretq_u32_u8(pair),
            vdupq_n_u32(0xFFFF_0000),
        ))
    }
}

/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn magnitude(a: float32x4_t) -> uint32x4_t {
    // SAFETY: the caller's.
    unsafe { vreinterpretq_u32_f32(vabsq_f32(a)) }
}

/// Brain floats in the upper halves of 32 bits.
///
/// # Safety
/// NEON.
#[inline(always)]
pub(super) unsafe fn to_bf16(a: float32x4_t) -> uint32x4_t {
    // SAFETY: the caller's.
    unsafe {
        let bits = vreinterpretq_u32_f32(a);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
        // Rounding could carry a NaN over to infinity: a NaN is cut and made quiet instead.
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
        vbslq_u32(vceqq_f32(a, a), rounded, quiet)
    }
}
