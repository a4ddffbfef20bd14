//! Q4_K: 256 values of 4 bits in 8 groups, with 6-bit scales and minima. Must not know other
//! formats.
//!
//! Layout: the scale of scales `d` and that of minima `e` (2 bytes each); 12 bytes of scales `s` and
//! minima `m` (`six_bits`); 128 bytes of quants: byte `32 * k + i` holds value `64 * k + i` in its
//! low and value `64 * k + 32 + i` in its high half. Value = `d * s * q - e * m`.

use super::fit::{self, Offset};
use super::six_bits::{self, GROUPS};
use super::{BlockFormat, SUPER, read_f16, write_f16};

/// 256 values of 4 bits under 8 scales and minima of 6 bits: 4.5 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum Q4_K {}

const GROUP: usize = SUPER / GROUPS;
/// Where the scales of the groups begin.
const SCALES: usize = 4;
/// Where the quants begin.
const QUANTS: usize = SCALES + six_bits::BYTES;

impl BlockFormat for Q4_K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = QUANTS + SUPER / 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, e) = (read_f16(block), read_f16(&block[2..]));
        for (group, values) in out.chunks_exact_mut(GROUP).enumerate() {
            let (scale, minimum) = six_bits::unpack(&block[SCALES..QUANTS], group);
            let (scale, minimum) = (d * f32::from(scale), e * f32::from(minimum));
            let quants = &block[QUANTS + group / 2 * GROUP..];
            for (value, pair) in values.iter_mut().zip(quants) {
                *value = scale * f32::from(pair >> (group % 2 * 4) & 15) - minimum;
            }
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let fitted: Offset<GROUPS> = fit::offset(values, 15, 63);
        write_f16(fitted.scale, block);
        write_f16(fitted.minimum, &mut block[2..]);
        six_bits::pack(&fitted.scales, &fitted.minima, &mut block[SCALES..QUANTS]);
        for (i, pair) in block[QUANTS..].iter_mut().enumerate() {
            let low = i / GROUP * 2 * GROUP + i % GROUP;
            *pair = fitted.quants[low] | fitted.quants[low + GROUP] << 4;
        }
    }
}
