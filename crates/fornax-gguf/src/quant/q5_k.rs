//! Q5_K: 256 values of 5 bits in 8 groups, with 6-bit scales and minima. Must not know other
//! formats.
//!
//! Layout: as Q4_K, with 32 bytes of fifth bits before the low ones: that of value `32 * g + i` is
//! bit `g` of byte `i`.

use super::fit::{self, Offset};
use super::six_bits::{self, GROUPS};
use super::{BlockFormat, SUPER, read_f16, write_f16};

/// 256 values of 5 bits under 8 scales and minima of 6 bits: 5.5 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum Q5_K {}

const GROUP: usize = SUPER / GROUPS;
/// Where the scales of the groups begin.
const SCALES: usize = 4;
/// Where the fifth bits begin.
const FIFTH: usize = SCALES + six_bits::BYTES;
/// Where the low bits begin.
const LOW: usize = FIFTH + SUPER / 8;

impl BlockFormat for Q5_K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = LOW + SUPER / 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, e) = (read_f16(block), read_f16(&block[2..]));
        for (group, values) in out.chunks_exact_mut(GROUP).enumerate() {
            let (scale, minimum) = six_bits::unpack(&block[SCALES..FIFTH], group);
            let (scale, minimum) = (d * f32::from(scale), e * f32::from(minimum));
            let low = &block[LOW + group / 2 * GROUP..];
            for ((value, pair), fifth) in values.iter_mut().zip(low).zip(&block[FIFTH..]) {
                let quant = pair >> (group % 2 * 4) & 15 | (fifth >> group & 1) << 4;
                *value = scale * f32::from(quant) - minimum;
            }
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let fitted: Offset<GROUPS> = fit::offset(values, 31, 63);
        block.fill(0);
        write_f16(fitted.scale, block);
        write_f16(fitted.minimum, &mut block[2..]);
        six_bits::pack(&fitted.scales, &fitted.minima, &mut block[SCALES..FIFTH]);
        for (index, &quant) in fitted.quants.iter().enumerate() {
            let (group, i) = (index / GROUP, index % GROUP);
            block[FIFTH + i] |= quant >> 4 << group;
            block[LOW + group / 2 * GROUP + i] |= (quant & 15) << (group % 2 * 4);
        }
    }
}
