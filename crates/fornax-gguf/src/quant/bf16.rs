//! BF16: the upper half of a single-precision number, little-endian, rounded to nearest even. Must
//! not know other formats.

use super::BlockFormat;

/// One brain-float number per block.
pub enum BF16 {}

impl BlockFormat for BF16 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = half::bf16::from_le_bytes([block[0], block[1]]).to_f32();
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&half::bf16::from_f32(values[0]).to_le_bytes());
    }
}
