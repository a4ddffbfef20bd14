//! Q4_1: 32 values of 4 bits, a half-precision scale and minimum. Must not know other formats.
//!
//! Layout: scale `d` (2 bytes), minimum `m` (2 bytes), then 16 bytes: byte `i` holds value `i` in
//! its low and value `i + 16` in its high half; value = `d * q + m`.

use super::{BlockFormat, HALF, inverse, range, read_f16, write_f16};

/// 32 values of 4 bits under one scale and minimum: 5 bits per value.
pub enum Q4_1 {}

impl BlockFormat for Q4_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 20;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (read_f16(block), read_f16(&block[2..]));
        let (low, high) = out.split_at_mut(HALF);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[4..]) {
            *low = scale * f32::from(pair & 15) + minimum;
            *high = scale * f32::from(pair >> 4) + minimum;
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let (least, greatest) = range(values);
        let scale = (greatest - least) / 15.0;
        let inverse = inverse(scale);
        let quantise = |value: f32| (((value - least) * inverse + 0.5) as u8).min(15);
        write_f16(scale, block);
        write_f16(least, &mut block[2..]);
        for (i, pair) in block[4..].iter_mut().enumerate() {
            *pair = quantise(values[i]) | quantise(values[i + HALF]) << 4;
        }
    }
}
