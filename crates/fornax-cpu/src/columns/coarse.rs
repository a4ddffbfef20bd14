//! Coarse scales: `2^e · (1 ± 2^-k)`, or `2^e`.
//!
//! Owns their rounding and what a product reads of them. Must not know quants.
//!
//! Where multiplications are what a processor waits for, the product of a weight's scale and an
//! activation's is a tenth of them. With a coarse scale it takes additions, and gives the same bits:
//!
//! - `2^e` is in what integer sums start with: the bits of `1.5 · 2^(23 + e)`. A sum below 2²² in
//!   magnitude stays inside of its fraction, so read as a float it is that many times `2^e` more.
//! - `1 ± 2^-k` makes of a weight's scale the sum of itself and of one whose exponent is `k` lower,
//!   with a sign that is added to its bits like the exponent.
//!
//! Rounding up makes steps of activations longer, by up to a fifth: 13 % more noise where logarithms of
//! scales are spread evenly. So it is for formats whose own noise is far above.

use crate::simd::LANES;

const ONE: u32 = 1.0_f32.to_bits();
const EXPONENT: u32 = f32::INFINITY.to_bits();
/// One step of an exponent.
const DOUBLED: u32 = 1 << (f32::MANTISSA_DIGITS - 1);
const NEGATIVE: u32 = 1 << 31;
/// 1.5 · 2²³, from which whole numbers below 2²² in magnitude are a float's last bits.
const MIDDLE: u32 = 12_582_912.0_f32.to_bits();
/// So much of a number vanishes beside it.
const NOTHING: f32 = 1.0 / (1_u64 << 40) as f32;

/// What a product reads of 16 coarse scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CoarseScales {
    /// What integer sums start with, the activations' own start among it.
    pub starts: [i32; LANES],
    /// The float that is to be taken off them, as bits: NaN where the scale is.
    pub bases: [i32; LANES],
    /// Added to the bits of a weight's scale it makes of it what is to be added to that.
    pub terms: [i32; LANES],
}

impl CoarseScales {
    pub fn zeros() -> Self {
        Self {
            starts: [0; LANES],
            bases: [0; LANES],
            terms: [0; LANES],
        }
    }
}

/// A scale's exponent as bits, and its mantissa from 1 to 2.
#[inline(always)]
fn take_apart(scale: f32) -> (u32, f32) {
    let exponent = scale.to_bits() & EXPONENT;
    let mantissa = scale.to_bits() - exponent + ONE;
    (exponent, f32::from_bits(mantissa))
}

/// The least coarse scales that are no lower. Not negative.
#[inline(always)]
pub(super) fn round_up(scales: [f32; LANES]) -> [f32; LANES] {
    scales.map(|scale| {
        let (exponent, mantissa) = take_apart(scale);
        // Both differences are exact; a power of two above the one, and one below the other.
        let above = ((mantissa - 1.0).to_bits() + (DOUBLED - 1)) & EXPONENT;
        let below = (2.0 - mantissa).to_bits() & EXPONENT;
        let rounded = match mantissa <= 1.5 {
            true => 1.0 + f32::from_bits(above),
            false => 2.0 - f32::from_bits(below),
        };
        f32::from_bits(rounded.to_bits() - ONE + exponent)
    })
}

/// What a product reads of coarse scales, given its starts without them.
#[inline(always)]
pub(super) fn parts(scales: &[f32; LANES], starts: &[i32; LANES]) -> CoarseScales {
    let mut all = CoarseScales::zeros();
    for lane in 0..LANES {
        let (exponent, mantissa) = take_apart(scales[lane]);
        let (above, below) = ((mantissa - 1.0).max(NOTHING), 2.0 - mantissa);
        // A scale below a power of two is that, less the rest.
        let (power, term) = match mantissa <= 1.5 {
            true => (0, above.to_bits()),
            false => (DOUBLED, below.to_bits() - DOUBLED + NEGATIVE),
        };
        let base = match scales[lane].is_nan() {
            true => f32::NAN.to_bits(),
            false => (exponent + power).wrapping_sub(ONE).wrapping_add(MIDDLE),
        };
        all.bases[lane] = base.cast_signed();
        all.starts[lane] = base.cast_signed().wrapping_add(starts[lane]);
        all.terms[lane] = term.wrapping_sub(ONE).cast_signed();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scales from 1 up to 2, and what is near to powers of two and to halves of them.
    fn scales() -> impl Iterator<Item = f32> {
        let near = (0..24).flat_map(|k| {
            let part = (-k as f32).exp2();
            [1.0 + part, 2.0 - part, 1.5 - part / 2.0, 1.5 + part / 2.0]
        });
        let near = near.flat_map(|scale: f32| [scale.next_down(), scale, scale.next_up()]);
        let even = (0..1000).map(|i| 1.0 + i as f32 / 1000.0);
        even.chain(near.filter(|scale| *scale >= 1.0))
    }

    fn is_coarse(scale: f32) -> bool {
        let (_, mantissa) = take_apart(scale);
        let is_power = |part: f32| part == 0.0 || part.to_bits() & !EXPONENT == 0;
        is_power(mantissa - 1.0) || is_power(2.0 - mantissa)
    }

    #[test]
    fn scales_are_rounded_up_to_the_next_that_are_coarse() {
        for scale in scales() {
            for power in [0.25, 1.0, 1e-20, 1e20] {
                let scale = scale * power;
                let rounded = round_up([scale; LANES])[3];
                assert!(is_coarse(rounded), "{scale:e} as {rounded:e}");
                assert!(rounded >= scale, "{scale:e} as {rounded:e}");
                assert!(rounded <= 1.2 * scale, "{scale:e} as {rounded:e}");
                assert_eq!(round_up([rounded; LANES])[3], rounded);
                let mut lower = rounded.next_down();
                while lower >= scale && lower > rounded * (1.0 - 1e-5) {
                    assert!(!is_coarse(lower), "{lower:e} is nearer to {scale:e}");
                    lower = lower.next_down();
                }
            }
        }
        assert_eq!(round_up([0.0; LANES]), [0.0; LANES]);
    }

    #[test]
    fn parts_make_the_same_product_as_the_scale() {
        for scale in
            scales().flat_map(|scale| [scale, scale * 2.0_f32.powi(-80), scale * 2.0_f32.powi(90)])
        {
            let scale = round_up([scale; LANES])[0];
            for (weight, dot) in [
                (0.37_f32, 0),
                (-1.7e-5, 520_192),
                (60_000.0, -520_192),
                (3e-8, 77),
            ] {
                let parts = parts(&[scale; LANES], &[-5; LANES]);
                let sum = f32::from_bits(parts.starts[0].wrapping_add(dot + 5).cast_unsigned());
                let scaled = sum - f32::from_bits(parts.bases[0].cast_unsigned());
                let term = weight
                    .to_bits()
                    .wrapping_add(parts.terms[0].cast_unsigned());
                let factor = weight + f32::from_bits(term);
                // Powers of two move no bits.
                assert_eq!(
                    scaled * factor,
                    dot as f32 * (weight * scale),
                    "{scale:e} {weight:e} {dot}"
                );
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        let parts = parts(&[f32::NAN; LANES], &[0; LANES]);
        assert!(f32::from_bits(parts.bases[0].cast_unsigned()).is_nan());
    }
}
