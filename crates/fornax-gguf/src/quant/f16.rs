//! F16: IEEE 754 half precision, little-endian, rounded to nearest even. Must not know other
//! formats.

use super::{BlockFormat, read_f16, write_f16};

/// One half-precision number per block.
pub enum F16 {}

impl BlockFormat for F16 {
    const ELEMENTS: usize = 1;
    const BYTES: usize = 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = read_f16(block);
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        write_f16(values[0], block);
    }
}
