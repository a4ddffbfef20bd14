//! Q2_K: 256 values of 2 bits in 16 groups, with 4-bit scales and minima. Must not know other
//! formats.
//!
//! Layout: 16 bytes, one per group: its scale `s` in the low, its minimum `m` in the high half; 64
//! bytes of quants: byte `32 * h + i` holds the values `128 * h + 32 * k + i` in its bits `2 * k`,
//! k = 0 … 3; then the scale of scales `d` and that of minima `e` (2 bytes each). The value is
//! `d * s * q - e * m`.

use super::fit::{self, Offset};
use super::{BlockFormat, SUPER, read_f16, write_f16};

/// 256 values of 2 bits under 16 scales and minima of 4 bits: 2.625 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum Q2_K {}

const GROUPS: usize = 16;
const GROUP: usize = SUPER / GROUPS;
/// Where the quants begin.
const QUANTS: usize = GROUPS;
/// Where the scales of the block begin.
const SCALES: usize = QUANTS + SUPER / 4;

/// Byte of the quants and bit in it where value `index` lies.
fn place(index: usize) -> (usize, usize) {
    (index / 128 * 32 + index % 32, index % 128 / 32 * 2)
}

impl BlockFormat for Q2_K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = SCALES + 4;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, e) = (read_f16(&block[SCALES..]), read_f16(&block[SCALES + 2..]));
        for (index, value) in out.iter_mut().enumerate() {
            let packed = block[index / GROUP];
            let (scale, minimum) = (d * f32::from(packed & 15), e * f32::from(packed >> 4));
            let (byte, bit) = place(index);
            *value = scale * f32::from(block[QUANTS + byte] >> bit & 3) - minimum;
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let fitted: Offset<GROUPS> = fit::offset(values, 3, 15);
        block.fill(0);
        for (byte, (scale, minimum)) in block
            .iter_mut()
            .zip(fitted.scales.iter().zip(fitted.minima))
        {
            *byte = scale | minimum << 4;
        }
        for (index, &quant) in fitted.quants.iter().enumerate() {
            let (byte, bit) = place(index);
            block[QUANTS + byte] |= quant << bit;
        }
        write_f16(fitted.scale, &mut block[SCALES..]);
        write_f16(fitted.minimum, &mut block[SCALES + 2..]);
    }
}
