//! IQ4_XS: 256 values of 4 bits that stand for the levels of IQ4_NL, in 8 groups with 6-bit scales.
//!
//! Layout: the scale of scales `d` (2 bytes); the high 2 bits of the groups' scales (2 bytes, group
//! `g` in bits `2 * g`); their low 4 bits (4 bytes, group `g` in half `g % 2` of byte `g / 2`); 128
//! bytes of quants: of group `g`, byte `16 * g + i` holds value `i` in its low and value `i + 16` in
//! its high half. Value = `d * (s - 32) * LEVELS[q]`.

use super::fit::{self, Signed};
use super::iq4_nl::{LEVELS, Uneven, code};
use super::{BlockFormat, HALF, SUPER, read_f16, write_f16};

/// 256 values of 4 uneven bits under 8 scales of 6 bits: 4.25 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum IQ4_XS {}

const GROUPS: usize = 8;
const GROUP: usize = SUPER / GROUPS;
/// Where the high bits of the scales begin.
const HIGH: usize = 2;
/// Where the low bits of the scales begin.
const LOW: usize = 4;
/// Where the quants begin.
const QUANTS: usize = 8;

impl BlockFormat for IQ4_XS {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = QUANTS + SUPER / 2;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = read_f16(block);
        let high = u16::from_le_bytes([block[HIGH], block[HIGH + 1]]);
        for (group, values) in out.chunks_exact_mut(GROUP).enumerate() {
            let low = block[LOW + group / 2] >> (group % 2 * 4) & 15;
            let scale = low | ((high >> (2 * group) & 3) as u8) << 4;
            let scale = d * f32::from(scale.cast_signed() - 32);
            for i in 0..HALF {
                let pair = block[QUANTS + group * HALF + i];
                values[i] = scale * f32::from(LEVELS[usize::from(pair & 15)]);
                values[i + HALF] = scale * f32::from(LEVELS[usize::from(pair >> 4)]);
            }
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let fitted: Signed<GROUPS> = fit::signed(values, &Uneven, -32, 31);
        block.fill(0);
        write_f16(fitted.scale, block);
        let mut high = 0;
        for (group, &scale) in fitted.scales.iter().enumerate() {
            let scale = (scale + 32).cast_unsigned();
            block[LOW + group / 2] |= (scale & 15) << (group % 2 * 4);
            high |= u16::from(scale >> 4) << (2 * group);
            let levels = &fitted.levels[group * GROUP..][..GROUP];
            for i in 0..HALF {
                block[QUANTS + group * HALF + i] = code(levels[i]) | code(levels[i + HALF]) << 4;
            }
        }
        block[HIGH..LOW].copy_from_slice(&high.to_le_bytes());
    }
}
