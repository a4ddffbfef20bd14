//! Q5_1: 32 values of 5 bits, a half-precision scale and minimum. Shares with Q5_0 how 5 bits are
//! laid out.
//!
//! Layout: scale `d` (2 bytes), minimum `m` (2 bytes), then fifth and low bits as in Q5_0; value =
//! `d * q + m`.

use super::q5_0::{pack_five_bits, unpack_five_bits};
use super::{BlockFormat, inverse, range, read_f16, write_f16};

/// 32 values of 5 bits under one scale and minimum: 6 bits per value.
pub enum Q5_1 {}

impl BlockFormat for Q5_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 24;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (scale, minimum) = (read_f16(block), read_f16(&block[2..]));
        for (value, quant) in out.iter_mut().zip(unpack_five_bits(&block[4..])) {
            *value = scale * f32::from(quant) + minimum;
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let (least, greatest) = range(values);
        let scale = (greatest - least) / 31.0;
        let inverse = inverse(scale);
        write_f16(scale, block);
        write_f16(least, &mut block[2..]);
        let quantise = |value: f32| (((value - least) * inverse + 0.5) as u8).min(31);
        pack_five_bits(
            &std::array::from_fn(|i| quantise(values[i])),
            &mut block[4..],
        );
    }
}
