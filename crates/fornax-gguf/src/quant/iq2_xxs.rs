//! IQ2_XXS: 256 values in 32 octets from a table of 256 patterns, in 8 groups with 4-bit scales. Must
//! not know other formats.
//!
//! Layout: the scale of scales `d` (2 bytes), then 8 bytes per group of 32: four table indices, and
//! a number of 32 bits with four times 7 signs and, in its top 4 bits, the scale `s`. The eighth
//! sign of an octet makes the number of minus signs even. Value = `d * (s + 1/2) / 4 * pattern`.

use super::{BlockFormat, SUPER, inverse, read_f16, write_f16};

/// 256 values by pattern and sign, under 8 scales of 4 bits: 2.0625 bits per value.
#[expect(non_camel_case_types, reason = "the format's name")]
pub enum IQ2_XXS {}

const GROUPS: usize = 8;
const GROUP: usize = SUPER / GROUPS;
const OCTET: usize = 8;
const OCTETS: usize = GROUP / OCTET;
/// Bytes of a group.
const GROUP_BYTES: usize = 8;

/// The magnitudes of which patterns are made.
const MAGNITUDES: [u8; 3] = [8, 25, 43];

impl BlockFormat for IQ2_XXS {
    const ELEMENTS: usize = SUPER;
    const BYTES: usize = 2 + GROUPS * GROUP_BYTES;

    fn decode(block: &[u8], out: &mut [f32]) {
        let d = read_f16(block);
        let groups = block[2..].chunks_exact(GROUP_BYTES);
        for (packed, values) in groups.zip(out.chunks_exact_mut(GROUP)) {
            let tail = u32::from_le_bytes([packed[4], packed[5], packed[6], packed[7]]);
            let scale = d * (0.5 + (tail >> 28) as f32) * 0.25;
            for (octet, values) in values.chunks_exact_mut(OCTET).enumerate() {
                let signs = with_even_parity(tail >> (7 * octet) & 127);
                for (i, value) in values.iter_mut().enumerate() {
                    let sign = if signs >> i & 1 == 0 { 1.0 } else { -1.0 };
                    *value = scale * magnitude(packed[octet], i) * sign;
                }
            }
        }
    }

    fn encode(values: &[f32], block: &mut [u8]) {
        let mut groups = [Group::default(); GROUPS];
        for (group, values) in groups.iter_mut().zip(values.chunks_exact(GROUP)) {
            *group = Group::fit(values);
        }
        let largest = groups
            .iter()
            .fold(0.0, |largest: f32, group| largest.max(group.scale));
        write_f16(largest * 4.0 / 15.5, block);
        let unit = read_f16(block) * 0.25;
        for (group, packed) in groups
            .iter_mut()
            .zip(block[2..].chunks_exact_mut(GROUP_BYTES))
        {
            let scale = ((group.scale * inverse(unit)) as u32).min(15);
            group.scale = unit * (scale as f32 + 0.5);
            group.choose();
            packed[..OCTETS].copy_from_slice(&group.patterns);
            let signs =
                |tail: u32, octet: usize| tail | u32::from(group.signs[octet] & 127) << (7 * octet);
            let tail = (0..OCTETS).fold(scale << 28, signs);
            packed[OCTETS..].copy_from_slice(&tail.to_le_bytes());
        }
    }
}

/// Seven signs and the eighth that makes the number of set bits even.
fn with_even_parity(signs: u32) -> u32 {
    signs | (signs.count_ones() & 1) << 7
}

/// Value `i` of a pattern.
fn magnitude(pattern: u8, i: usize) -> f32 {
    let choice = PATTERNS[usize::from(pattern)] >> (2 * i) & 3;
    f32::from(MAGNITUDES[usize::from(choice)])
}

/// A group that is being encoded.
#[derive(Clone, Copy, Default)]
struct Group {
    /// The values with the signs that the format cannot hold taken off: where the number of minus
    /// signs was odd, the least value of the octet is below zero.
    rest: [f32; GROUP],
    /// A set bit for each minus sign.
    signs: [u8; OCTETS],
    patterns: [u8; OCTETS],
    scale: f32,
}

impl Group {
    /// Alternates between the best patterns for the scale and the best scale for the patterns.
    fn fit(values: &[f32]) -> Self {
        let mut group = Self::default();
        let octets = values
            .chunks_exact(OCTET)
            .zip(group.rest.chunks_exact_mut(OCTET));
        for ((values, rest), signs) in octets.zip(&mut group.signs) {
            *signs = split_signs(values, rest);
        }
        let largest = group.rest.iter().fold(0.0, |a: f32, &b| a.max(b));
        group.scale = largest / f32::from(MAGNITUDES[2]);
        for _ in 0..2 {
            group.choose();
            let (mut product, mut square) = (0.0, 0.0);
            for (i, rest) in group.rest.iter().enumerate() {
                let level = magnitude(group.patterns[i / OCTET], i % OCTET);
                product += rest * level;
                square += level * level;
            }
            group.scale = (product / square).max(0.0);
        }
        group
    }

    /// The patterns nearest to the values under the scale.
    fn choose(&mut self) {
        let inverse = inverse(self.scale);
        for (octet, values) in self.rest.chunks_exact(OCTET).enumerate() {
            // How much worse each magnitude of each value is than the first.
            let cost: [[f32; 3]; OCTET] = std::array::from_fn(|i| {
                MAGNITUDES.map(|level| {
                    let level = f32::from(level);
                    level * (level - 2.0 * values[i] * inverse)
                })
            });
            let cost = |pattern: &u8| -> f32 {
                let bits = PATTERNS[usize::from(*pattern)];
                (0..OCTET)
                    .map(|i| cost[i][usize::from(bits >> (2 * i) & 3)])
                    .sum()
            };
            let mut best = (0, cost(&0));
            for pattern in 1..=255 {
                let cost = cost(&pattern);
                if cost < best.1 {
                    best = (pattern, cost);
                }
            }
            self.patterns[octet] = best.0;
        }
    }
}

/// The signs that the format holds for eight values; `rest` takes the values without them.
fn split_signs(values: &[f32], rest: &mut [f32]) -> u8 {
    let mut signs = 0;
    for (i, (value, rest)) in values.iter().zip(&mut *rest).enumerate() {
        *rest = value.abs();
        signs |= u8::from(*value < 0.0) << i;
    }
    if signs.count_ones() % 2 == 1 {
        let least = (0..OCTET).min_by(|&a, &b| rest[a].total_cmp(&rest[b]));
        let least = least.expect("invariant: an octet has values");
        signs ^= 1 << least;
        rest[least] = -rest[least];
    }
    signs
}

/// The patterns: two bits for each of eight magnitudes, the first lowest.
#[rustfmt::skip]
const PATTERNS: [u16; 256] = [
    0x0000, 0x0002, 0x0005, 0x0008, 0x000a, 0x0011, 0x0014, 0x0020, 0x0022, 0x0028, 0x002a, 0x0041,
    0x0044, 0x0050, 0x0058, 0x0061, 0x0064, 0x0080, 0x0082, 0x008a, 0x00a2, 0x0101, 0x0104, 0x0110,
    0x0115, 0x0140, 0x0184, 0x0198, 0x0200, 0x0202, 0x0222, 0x0282, 0x0401, 0x0404, 0x0410, 0x0421,
    0x0424, 0x0440, 0x0442, 0x0448, 0x0460, 0x0481, 0x0484, 0x0490, 0x04a4, 0x0500, 0x0502, 0x0508,
    0x0520, 0x0546, 0x0569, 0x0580, 0x0591, 0x0609, 0x0610, 0x0640, 0x0684, 0x06a4, 0x0800, 0x0805,
    0x0808, 0x0814, 0x0828, 0x0841, 0x0844, 0x0850, 0x0852, 0x0888, 0x0904, 0x0940, 0x0a02, 0x0a14,
    0x1001, 0x1004, 0x1010, 0x1021, 0x1040, 0x1060, 0x1084, 0x1090, 0x1095, 0x1100, 0x1108, 0x1120,
    0x1150, 0x115a, 0x1180, 0x1224, 0x1245, 0x1400, 0x1408, 0x1420, 0x1425, 0x1449, 0x1480, 0x1518,
    0x1562, 0x1600, 0x1616, 0x1801, 0x1804, 0x1810, 0x1840, 0x1881, 0x1900, 0x1905, 0x19a0, 0x1a51,
    0x2000, 0x2002, 0x200a, 0x2044, 0x2061, 0x2080, 0x2082, 0x2129, 0x2148, 0x2200, 0x2202, 0x2401,
    0x2404, 0x2410, 0x2440, 0x2456, 0x2500, 0x2541, 0x2564, 0x2690, 0x2808, 0x2820, 0x2894, 0x2a44,
    0x4001, 0x4004, 0x4010, 0x4018, 0x4021, 0x4024, 0x4040, 0x4048, 0x4056, 0x4060, 0x4081, 0x4084,
    0x4090, 0x4100, 0x4120, 0x4161, 0x4180, 0x4185, 0x4201, 0x4210, 0x4248, 0x4256, 0x4268, 0x4400,
    0x4408, 0x4420, 0x4480, 0x4499, 0x4512, 0x4524, 0x4600, 0x4801, 0x4804, 0x4810, 0x4840, 0x4845,
    0x4900, 0x4958, 0x4961, 0x4982, 0x4a45, 0x4a90, 0x5000, 0x5008, 0x5011, 0x5019, 0x5020, 0x5080,
    0x5088, 0x5104, 0x5142, 0x51a4, 0x5291, 0x5490, 0x5492, 0x550a, 0x5601, 0x5654, 0x5800, 0x5811,
    0x5819, 0x5864, 0x5940, 0x5a08, 0x6004, 0x6010, 0x6040, 0x6068, 0x6100, 0x6155, 0x6218, 0x6260,
    0x6400, 0x6405, 0x6510, 0x6512, 0x6584, 0x6842, 0x8000, 0x8002, 0x800a, 0x8041, 0x8082, 0x8104,
    0x8118, 0x8140, 0x8211, 0x8401, 0x8404, 0x8410, 0x8415, 0x8440, 0x8460, 0x8500, 0x8546, 0x8594,
    0x8609, 0x8640, 0x8660, 0x8802, 0x8904, 0x8a11, 0x9004, 0x9010, 0x9024, 0x9040, 0x90a1, 0x9116,
    0x9180, 0x9245, 0x9400, 0x9422, 0x9444, 0x9551, 0x9881, 0x9920, 0xa002, 0xa050, 0xa085, 0xa109,
    0xa200, 0xa418, 0xa850, 0xa904,
];
