//! Q5_0: 32 values of 5 bits and a half-precision scale. Must not know other formats.
//!
//! Layout: scale `d` (2 bytes), 32 fifth bits (4 bytes, value `i` in bit `i`), then 16 bytes of low
//! bits: byte `i` holds value `i` in its low and value `i + 16` in its high half; value =
//! `d * (q - 16)`. The scale carries the sign of the value of largest magnitude, as in Q4_0.

use super::{BlockFormat, HALF, inverse, of_largest_magnitude, read_f16, write_f16};

/// 32 values of 5 bits under one scale: 5.5 bits per value.
pub enum Q5_0 {}

impl BlockFormat for Q5_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 22;

    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = read_f16(block);
        let quants = unpack_five_bits(&block[2..]);
        for (value, quant) in out.iter_mut().zip(quants) {
            *value = scale * f32::from(quant.cast_signed() - 16);
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let scale = of_largest_magnitude(values) / -16.0;
        let inverse = inverse(scale);
        write_f16(scale, block);
        let quants = std::array::from_fn(|i| ((values[i] * inverse + 16.5) as u8).min(31));
        pack_five_bits(&quants, &mut block[2..]);
    }
}

/// 32 numbers from 4 bytes of fifth bits and 16 of low ones.
pub(super) fn unpack_five_bits(bytes: &[u8]) -> [u8; 32] {
    let fifth = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let low = &bytes[4..];
    std::array::from_fn(|i| {
        let low = match i {
            0..HALF => low[i] & 15,
            _ => low[i - HALF] >> 4,
        };
        low | ((fifth >> i & 1) as u8) << 4
    })
}

/// The inverse of [`unpack_five_bits`].
pub(super) fn pack_five_bits(quants: &[u8; 32], bytes: &mut [u8]) {
    let fifth = |fifth: u32, (i, &quant): (usize, &u8)| fifth | u32::from(quant >> 4) << i;
    let fifth = quants.iter().enumerate().fold(0, fifth);
    bytes[..4].copy_from_slice(&fifth.to_le_bytes());
    for (i, pair) in bytes[4..].iter_mut().enumerate() {
        *pair = quants[i] & 15 | quants[i + HALF] << 4;
    }
}
