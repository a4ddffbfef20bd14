//! The block formats of files: how many bits, which scales, and where in a block each is.
//!
//! Owns nothing else: how panels lie and are multiplied is in `blocks.rs` and `strip.rs`. What a
//! format *is* stands in `fornax_gguf::quant`, with its scalar `decode`, which tests compare with.

use fornax_gguf::{BlockFormat, DType, quant};

use super::{
    blocks::{Blocks, Integers, LARGEST, Quantised, Scales},
    strip::StripShape,
};

/// Declares the formats: their quants' bits, the values that share a scale, the kind of their
/// scales, and anything else; then how a block is taken apart.
macro_rules! formats {
    ($($name:ident: $bits:literal bits, $sharing:literal share $scales:ident
        $(, $constant:ident = $value:expr)*; |$block:ident, $to:ident| $body:block)*) => {$(
        #[allow(non_camel_case_types, reason = "the format's name")]
        pub(crate) enum $name {}

        impl Blocks for $name {
            const VALUES: usize = <quant::$name as BlockFormat>::ELEMENTS;
            const BYTES: usize = <quant::$name as BlockFormat>::BYTES;
            const BITS: usize = $bits;
            const SHARING: usize = $sharing;
            const SCALES: Scales = Scales::$scales;
            $(formats! { @ $constant = $value })*

            fn take_apart($block: &[u8], $to: &mut Integers) $body
        }
    )*

        /// What strips of each hold.
        pub(super) const STRIPS: &[StripShape] = &[$(Quantised::<$name>::STRIP),*];
    };
    (@ table = $value:expr) => { const TABLE: Option<[i8; 16]> = Some($value); };
    (@ factor = $value:expr) => { const FACTOR: f32 = $value; };
}

/// Levels of IQ4_NL and IQ4_XS.
const UNEVEN: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// Levels of MXFP4, doubled.
const FLOATS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// Levels of IQ2_XXS.
const MAGNITUDES: [i8; 16] = [8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43, 0, 0, 0, 0, 0];

formats! {
    Q8_0: 8 bits, 32 share Half; |block, to| {
        to.scale = word(block, 0);
        for (quant, byte) in to.quants.iter_mut().zip(&block[2..34]) {
            *quant = byte ^ 0x80;
        }
    }
    Q4_0: 4 bits, 32 share Half; |block, to| {
        to.scale = word(block, 0);
        halves(&mut to.quants, &block[2..18]);
    }
    Q4_1: 4 bits, 32 share HalfMin; |block, to| {
        (to.scale, to.min) = (word(block, 0), word(block, 2));
        halves(&mut to.quants, &block[4..20]);
    }
    Q5_0: 5 bits, 32 share Half; |block, to| {
        to.scale = word(block, 0);
        halves(&mut to.quants, &block[6..22]);
        fifth_bits(&mut to.quants, &block[2..6]);
    }
    Q5_1: 5 bits, 32 share HalfMin; |block, to| {
        (to.scale, to.min) = (word(block, 0), word(block, 2));
        halves(&mut to.quants, &block[8..24]);
        fifth_bits(&mut to.quants, &block[4..8]);
    }
    Q2_K: 2 bits, 16 share SuperMin; |block, to| {
        (to.scale, to.min) = (word(block, 80), word(block, 82));
        for (index, byte) in block[..16].iter().enumerate() {
            to.scales[index] = (byte & 15).cast_signed();
            to.mins[index] = (byte >> 4).cast_signed();
        }
        quarters(&mut to.quants, &block[16..80]);
    }
    Q3_K: 3 bits, 16 share Super; |block, to| {
        to.scale = word(block, 108);
        let packed = &block[96..108];
        for (index, scale) in to.scales.iter_mut().enumerate() {
            let low = packed[index % 8] >> (index / 8 * 4) & 15;
            let high = packed[8 + index % 4] >> (index / 4 * 2) & 3;
            *scale = (low | high << 4).cast_signed() - 32;
        }
        quarters(&mut to.quants, &block[32..96]);
        for (part, quants) in to.quants.chunks_exact_mut(32).enumerate() {
            for (quant, bits) in quants.iter_mut().zip(&block[..32]) {
                *quant |= (bits >> part & 1) << 2;
            }
        }
    }
    Q4_K: 4 bits, 32 share SuperMin; |block, to| {
        (to.scale, to.min) = (word(block, 0), word(block, 2));
        six_bits(to, &block[4..16]);
        eighths(&mut to.quants, &block[16..144]);
    }
    Q5_K: 5 bits, 32 share SuperMin; |block, to| {
        (to.scale, to.min) = (word(block, 0), word(block, 2));
        six_bits(to, &block[4..16]);
        eighths(&mut to.quants, &block[48..176]);
        for (part, quants) in to.quants.chunks_exact_mut(32).enumerate() {
            for (quant, bits) in quants.iter_mut().zip(&block[16..48]) {
                *quant |= (bits >> part & 1) << 4;
            }
        }
    }
    Q6_K: 6 bits, 16 share Super; |block, to| {
        to.scale = word(block, 208);
        for (scale, byte) in to.scales.iter_mut().zip(&block[192..208]) {
            *scale = byte.cast_signed();
        }
        let (low, high) = (&block[..128], &block[128..192]);
        for (half, quants) in to.quants.chunks_exact_mut(128).enumerate() {
            for (place, quant) in quants.iter_mut().enumerate() {
                let low = low[64 * half + place % 64] >> (place / 64 * 4) & 15;
                let high = high[32 * half + place % 32] >> (place / 32 * 2) & 3;
                *quant = low | high << 4;
            }
        }
    }
    IQ2_XXS: 4 bits, 32 share Super, table = MAGNITUDES, factor = 0.125; |block, to| {
        // The patterns stay with `decode`: under this scale it gives the levels themselves.
        let mut plain = [0; <quant::IQ2_XXS as BlockFormat>::BYTES];
        plain.copy_from_slice(block);
        plain[..2].copy_from_slice(&half::f16::from_f32(8.0).to_le_bytes());
        for (index, group) in plain[2..].chunks_exact_mut(8).enumerate() {
            to.scales[index] = (2 * (group[7] >> 4) + 1).cast_signed();
            group[7] &= 15;
        }
        let mut levels = [0.0; LARGEST];
        DType::IQ2_XXS.decode(&plain, &mut levels);
        for (quant, level) in to.quants.iter_mut().zip(levels) {
            let index = MAGNITUDES.iter().position(|known| f32::from(*known) == level);
            *quant = index.expect("invariant: a pattern is made of three magnitudes") as u8;
        }
        to.scale = word(block, 0);
    }
    IQ4_NL: 4 bits, 32 share Half, table = UNEVEN; |block, to| {
        to.scale = word(block, 0);
        halves(&mut to.quants, &block[2..18]);
    }
    IQ4_XS: 4 bits, 32 share Super, table = UNEVEN; |block, to| {
        to.scale = word(block, 0);
        let high = word(block, 2);
        for (index, scale) in to.scales.iter_mut().take(8).enumerate() {
            let low = block[4 + index / 2] >> (index % 2 * 4) & 15;
            let high = (high >> (2 * index) & 3) as u8;
            *scale = (low | high << 4).cast_signed() - 32;
        }
        for (quants, bytes) in to.quants.chunks_exact_mut(32).zip(block[8..].chunks_exact(16)) {
            halves(quants, bytes);
        }
    }
    MXFP4: 4 bits, 32 share Brain, table = FLOATS; |block, to| {
        // Half of 2^(exponent - 127), for the levels are doubled; subnormal for the lowest two.
        to.scale = match block[0] {
            exponent @ 0..2 => 0x20 << exponent,
            exponent => u16::from(exponent - 1) << 7,
        };
        halves(&mut to.quants, &block[1..17]);
    }
}

/// Two bytes as a number.
fn word(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// 32 quants of 4 bits: byte `i` holds those of `i` and of `i + 16`.
fn halves(quants: &mut [u8], bytes: &[u8]) {
    for (place, byte) in bytes.iter().enumerate() {
        quants[place] = byte & 15;
        quants[place + 16] = byte >> 4;
    }
}

/// Adds the uppermost of 5 bits, one of a word a quant.
fn fifth_bits(quants: &mut [u8], bytes: &[u8]) {
    for (place, quant) in quants.iter_mut().take(32).enumerate() {
        *quant |= (bytes[place / 8] >> (place % 8) & 1) << 4;
    }
}

/// 256 quants of 4 bits: 32 bytes hold 32 quants and the next 32.
fn eighths(quants: &mut [u8], bytes: &[u8]) {
    for (quants, bytes) in quants.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        for (place, byte) in bytes.iter().enumerate() {
            quants[place] = byte & 15;
            quants[place + 32] = byte >> 4;
        }
    }
}

/// 256 quants of 2 bits: 32 bytes hold four times 32 quants.
fn quarters(quants: &mut [u8], bytes: &[u8]) {
    for (quants, bytes) in quants.chunks_exact_mut(128).zip(bytes.chunks_exact(32)) {
        for (place, quant) in quants.iter_mut().enumerate() {
            *quant = bytes[place % 32] >> (place / 32 * 2) & 3;
        }
    }
}

/// 8 scales and 8 minimums of 6 bits in 12 bytes: four of each in the lower bits of 8 bytes; the
/// others share the last 4 bytes and have their upper bits in the first ones.
fn six_bits(to: &mut Integers, packed: &[u8]) {
    for index in 0..4 {
        let (scale, min, both) = (packed[index], packed[index + 4], packed[index + 8]);
        to.scales[index] = (scale & 63).cast_signed();
        to.mins[index] = (min & 63).cast_signed();
        to.scales[index + 4] = (both & 15 | scale >> 6 << 4).cast_signed();
        to.mins[index + 4] = (both >> 4 | min >> 6 << 4).cast_signed();
    }
}
