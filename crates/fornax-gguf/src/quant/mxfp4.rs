//! MXFP4: 32 four-bit floats under a power of two. Must not know other formats.
//!
//! The format of the Open Compute Project ("OCP Microscaling Formats (MX) Specification", v1.0). Layout: the
//! exponent `e` (1 byte), then 16 bytes: byte `i` holds value `i` in its low and value `i + 16` in
//! its high half; value = `2^(e - 127) * E2M1[q]`. The levels are kept doubled, as integers, and the
//! power halved.

use super::{BlockFormat, HALF};

/// 32 floats of 4 bits under one power of two: 4.25 bits per value.
pub enum MXFP4 {}

/// What the 4 bits stand for, doubled: a sign, two bits of exponent, one of mantissa.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `2^(exponent - 128)`, which is subnormal for the first two exponents.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0..2 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

impl BlockFormat for MXFP4 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 17;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = half_power(block[0]);
        let (low, high) = out.split_at_mut(HALF);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[1..]) {
            *low = scale * f32::from(DOUBLED[usize::from(pair & 15)]);
            *high = scale * f32::from(DOUBLED[usize::from(pair >> 4)]);
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let largest = values
            .iter()
            .fold(0.0, |largest: f32, value| largest.max(value.abs()));
        // The largest level is 1.5 * 2^2: its power of two meets that of the largest value.
        let exponent = match largest > 0.0 {
            true => (largest.log2().floor() + 125.0) as u8,
            false => 0,
        };
        let scale = half_power(exponent);
        block[0] = exponent;
        for (i, pair) in block[1..].iter_mut().enumerate() {
            *pair = nearest(scale, values[i]) | nearest(scale, values[i + HALF]) << 4;
        }
    }
}

/// The code nearest to `value`; of several the first.
fn nearest(scale: f32, value: f32) -> u8 {
    let error = |code: &u8| (scale * f32::from(DOUBLED[usize::from(*code)]) - value).abs();
    let best = (0..16).min_by(|a, b| error(a).total_cmp(&error(b)));
    best.expect("invariant: there are codes")
}
