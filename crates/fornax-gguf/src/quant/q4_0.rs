//! Q4_0: 32 values of 4 bits and a half-precision scale. Must not know other formats.
//!
//! Layout: scale `d` (2 bytes), then 16 bytes: byte `i` holds value `i` in its low and value `i +
//! 16` in its high half, each plus 8; value = `d * (q - 8)`. The scale carries the sign of the
//! value of largest magnitude, which so lands on -8, the end of the range that has one step more.

use super::{BlockFormat, HALF, inverse, of_largest_magnitude, read_f16, write_f16};

/// 32 values of 4 bits under one scale: 4.5 bits per value.
pub enum Q4_0 {}

impl BlockFormat for Q4_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        let (low, high) = out.split_at_mut(HALF);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = scale * f32::from((pair & 15).cast_signed() - 8);
            *high = scale * f32::from((pair >> 4).cast_signed() - 8);
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let scale = of_largest_magnitude(values) / -8.0;
        let inverse = inverse(scale);
        // The cast drops the fraction, which with the half added rounds to nearest.
        let quantise = |value: f32| ((value * inverse + 8.5) as u8).min(15);
        write_f16(scale, block);
        for (i, pair) in block[2..].iter_mut().enumerate() {
            *pair = quantise(values[i]) | quantise(values[i + HALF]) << 4;
        }
    }
}
