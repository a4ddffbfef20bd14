//! F32: IEEE 754 single precision, little-endian. Must not know other formats.

use super::BlockFormat;

/// One single-precision number per block.
pub enum F32 {}

impl BlockFormat for F32 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 4;

    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        block.copy_from_slice(&values[0].to_le_bytes());
    }
}
