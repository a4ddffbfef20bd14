//! IQ4_NL: 32 values of 4 bits that stand for unevenly spaced levels, and a half-precision scale.
//! Owns those levels, which IQ4_XS shares.
//!
//! Layout: scale `d` (2 bytes), then 16 bytes: byte `i` holds value `i` in its low and value `i +
//! 16` in its high half; value = `d * LEVELS[q]`.

use super::fit::{self, Levels};
use super::{BlockFormat, HALF, read_f16, write_f16};

/// 32 values of 4 uneven bits under one scale: 4.5 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum IQ4_NL {}

/// What the 4 bits stand for: closer together around zero, where most weights are.
pub(super) const LEVELS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// The levels as the search for scales sees them.
pub(super) struct Uneven;

impl Levels for Uneven {
    fn lowest(&self) -> [f32; 2] {
        [f32::from(LEVELS[0]), f32::from(LEVELS[1])]
    }

    fn nearest(&self, value: f32) -> f32 {
        f32::from(LEVELS[index_of_nearest(value)])
    }
}

/// The index of the level nearest to `value`; of two the lower.
fn index_of_nearest(value: f32) -> usize {
    let below = LEVELS[1..].partition_point(|&level| f32::from(level) < value);
    match LEVELS[below..].get(..2) {
        Some(&[low, high]) if value - f32::from(low) > f32::from(high) - value => below + 1,
        _ => below,
    }
}

/// The four bits that stand for a level.
pub(super) fn code(level: i8) -> u8 {
    let index = LEVELS.partition_point(|&other| other < level);
    index as u8
}

impl BlockFormat for IQ4_NL {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        let (low, high) = out.split_at_mut(HALF);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = scale * f32::from(LEVELS[usize::from(pair & 15)]);
            *high = scale * f32::from(LEVELS[usize::from(pair >> 4)]);
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let scale = fit::one_scale(values, &Uneven);
        write_f16(scale, block);
        let inverse = super::inverse(read_f16(block));
        let quantise = |value: f32| index_of_nearest(value * inverse) as u8;
        for (i, pair) in block[2..].iter_mut().enumerate() {
            *pair = quantise(values[i]) | quantise(values[i + HALF]) << 4;
        }
    }
}
