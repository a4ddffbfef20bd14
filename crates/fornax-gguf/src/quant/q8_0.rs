//! Q8_0: 32 signed bytes and a half-precision scale. Must not know other formats.
//!
//! Layout: scale `d` (2 bytes), then 32 × i8 `q`; value = `d * q`.

use super::{BlockFormat, inverse, read_f16, write_f16};

/// 32 values of 8 bits under one scale: 8.5 bits per value.
pub enum Q8_0 {}

impl BlockFormat for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        for (value, &quant) in out.iter_mut().zip(&block[2..]) {
            *value = f32::from(quant.cast_signed()) * scale;
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let largest = values
            .iter()
            .fold(0.0, |largest: f32, value| largest.max(value.abs()));
        let scale = largest / 127.0;
        let inverse = inverse(scale);
        write_f16(scale, block);
        for (quant, value) in block[2..].iter_mut().zip(values) {
            // `round` takes halves away from zero, as the reference does.
            *quant = ((value * inverse).round() as i8).cast_unsigned();
        }
    }
}
