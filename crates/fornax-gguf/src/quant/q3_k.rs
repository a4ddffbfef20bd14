//! Q3_K: 256 values of 3 bits in 16 groups, with 6-bit scales. Must not know other formats.
//!
//! Layout: 32 bytes of third bits: value `32 * k + i` in bit `k` of byte `i`; 64 bytes of low bits,
//! as in Q2_K; 12 bytes of scales; the scale of scales `d` (2 bytes). Of the scale of group `g`, the
//! low 4 bits are in half `g / 8` of byte `g % 8`, the high 2 bits in bits `2 * (g / 4)` of byte `8 +
//! g % 4`, and 32 is added. Value = `d * s * q` with q from -4 to 3.

use super::fit::{self, Signed, Uniform};
use super::{BlockFormat, SUPER, read_f16, write_f16};

/// 256 values of 3 bits under 16 scales of 6 bits: 3.4375 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum Q3_K {}

const GROUPS: usize = 16;
const GROUP: usize = SUPER / GROUPS;
/// Where the low bits begin.
const LOW: usize = SUPER / 8;
/// Where the scales of the groups begin.
const SCALES: usize = LOW + SUPER / 4;
/// Where the scale of the block is.
const SCALE: usize = SCALES + 12;

/// Byte of the low bits and bit in it where value `index` lies.
fn place(index: usize) -> (usize, usize) {
    (index / 128 * 32 + index % 32, index % 128 / 32 * 2)
}

impl BlockFormat for Q3_K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = SCALE + 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = read_f16(&block[SCALE..]);
        for (index, value) in out.iter_mut().enumerate() {
            let group = index / GROUP;
            let low = block[SCALES + group % 8] >> (group / 8 * 4) & 15;
            let high = block[SCALES + 8 + group % 4] >> (group / 4 * 2) & 3;
            let scale = d * f32::from((low | high << 4).cast_signed() - 32);
            let (byte, bit) = place(index);
            let third = block[index % 32] >> (index / 32) & 1;
            let quant = block[LOW + byte] >> bit & 3 | third << 2;
            *value = scale * f32::from(quant.cast_signed() - 4);
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let levels = Uniform {
            least: -4,
            greatest: 3,
        };
        let fitted: Signed<GROUPS> = fit::signed(values, &levels, -32, 31);
        block.fill(0);
        for (group, &scale) in fitted.scales.iter().enumerate() {
            let scale = (scale + 32).cast_unsigned();
            block[SCALES + group % 8] |= (scale & 15) << (group / 8 * 4);
            block[SCALES + 8 + group % 4] |= (scale >> 4) << (group / 4 * 2);
        }
        for (index, &level) in fitted.levels.iter().enumerate() {
            let quant = (level + 4).cast_unsigned();
            let (byte, bit) = place(index);
            block[LOW + byte] |= (quant & 3) << bit;
            block[index % 32] |= (quant >> 2) << (index / 32);
        }
        write_f16(fitted.scale, &mut block[SCALE..]);
    }
}
