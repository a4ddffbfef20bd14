//! Q6_K: 256 values of 6 bits in 16 groups, with signed 8-bit scales. Must not know other formats.
//!
//! Layout: 128 bytes of low bits, 64 of high ones, 16 scales `s` (i8), the scale of scales `d` (2
//! bytes). Of value `128 * h + 32 * k + i`, the low 4 bits are in half `k / 2` of byte
//! `64 * h + 32 * (k % 2) + i`, the high 2 bits in bits `2 * k` of byte `32 * h + i`. The value is
//! `d * s * (q - 32)`.

use super::fit::{self, Signed, Uniform};
use super::{BlockFormat, SUPER, read_f16, write_f16};

/// 256 values of 6 bits under 16 scales of 8 bits: 6.5625 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum Q6_K {}

const GROUPS: usize = 16;
const GROUP: usize = SUPER / GROUPS;
/// Where the high bits begin.
const HIGH: usize = SUPER / 2;
/// Where the scales of the groups begin.
const SCALES: usize = HIGH + SUPER / 4;
/// Where the scale of the block is.
const SCALE: usize = SCALES + GROUPS;

/// Where value `index` lies: byte and bit of its low bits, byte and bit of its high ones.
fn place(index: usize) -> [usize; 4] {
    let (h, k, i) = (index / 128, index % 128 / 32, index % 32);
    [64 * h + 32 * (k % 2) + i, k / 2 * 4, 32 * h + i, k * 2]
}

impl BlockFormat for Q6_K {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = SCALE + 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = read_f16(&block[SCALE..]);
        for (index, value) in out.iter_mut().enumerate() {
            let scale = d * f32::from(block[SCALES + index / GROUP].cast_signed());
            let [low_byte, low_bit, high_byte, high_bit] = place(index);
            let low = block[low_byte] >> low_bit & 15;
            let high = block[HIGH + high_byte] >> high_bit & 3;
            *value = scale * f32::from((low | high << 4).cast_signed() - 32);
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let levels = Uniform {
            least: -32,
            greatest: 31,
        };
        let fitted: Signed<GROUPS> = fit::signed(values, &levels, -128, 127);
        block.fill(0);
        for (index, &level) in fitted.levels.iter().enumerate() {
            let quant = (level + 32).cast_unsigned();
            let [low_byte, low_bit, high_byte, high_bit] = place(index);
            block[low_byte] |= (quant & 15) << low_bit;
            block[HIGH + high_byte] |= (quant >> 4) << high_bit;
        }
        for (byte, scale) in block[SCALES..SCALE].iter_mut().zip(fitted.scales) {
            *byte = scale.cast_unsigned();
        }
        write_f16(fitted.scale, &mut block[SCALE..]);
    }
}
