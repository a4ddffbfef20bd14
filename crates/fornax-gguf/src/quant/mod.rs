//! How numbers are packed into blocks: one file per format, each in plain scalar code.
//!
//! Owns the bits of a block, which decode to what the `gguf` Python package reads in them, bit for
//! bit; must not know tensors or files. A new format is one file here and one row in `dtype.rs`.
//!
//! The formats come in three families. The plain ones (F32, F16, BF16) hold numbers one by one. The
//! `_0` and `_1` formats, IQ4_NL and MXFP4 hold 32 values under one scale. The `_K` formats, IQ4_XS
//! and IQ2_XXS hold 256 values in groups of 16 or 32 whose scales are small integers under one
//! scale of the block; `fit` searches them.

mod bf16;
mod f16;
mod f32;
mod fit;
mod iq2_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod six_bits;

pub use bf16::BF16;
pub use f16::F16;
pub use f32::F32;
pub use iq2_xxs::IQ2_XXS;
pub use iq4_nl::IQ4_NL;
pub use iq4_xs::IQ4_XS;
pub use mxfp4::MXFP4;
pub use q2_k::Q2_K;
pub use q3_k::Q3_K;
pub use q4_0::Q4_0;
pub use q4_1::Q4_1;
pub use q4_k::Q4_K;
pub use q5_0::Q5_0;
pub use q5_1::Q5_1;
pub use q5_k::Q5_K;
pub use q6_k::Q6_K;
pub use q8_0::Q8_0;

/// A packing of a fixed number of consecutive values of a row into a fixed number of bytes.
pub trait BlockFormat {
    /// Values per block.
    const ELEMENTS: usize;
    /// Bytes per block.
    const BYTES: usize;

    /// Unpacks one block of [`Self::BYTES`] bytes into [`Self::ELEMENTS`] values.
    fn decode(block: &[u8], out: &mut [f32]);

    /// Packs [`Self::ELEMENTS`] values into one block of [`Self::BYTES`] bytes.
    ///
    /// Any input gives a valid block. Infinities and NaN keep their meaning only in formats without
    /// a scale per block.
    fn encode(values: &[f32], block: &mut [u8]);
}

/// Values of a block of the formats with groups.
const SUPER: usize = 256;
/// Half the values of a block of 32: its 4-bit formats pair value `i` with value `i + 16`.
const HALF: usize = 16;

/// A half-precision number at the front of `bytes`, such as the scale that leads a block.
fn read_f16(bytes: &[u8]) -> f32 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Writes a number at the front of `bytes`, rounded to nearest even.
fn write_f16(value: f32, bytes: &mut [u8]) {
    bytes[..2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// `1 / scale`, and 0 for a block of zeros.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The value farthest from zero, with its sign; of several the first.
fn of_largest_magnitude(values: &[f32]) -> f32 {
    let farther = |a: f32, b: f32| if b.abs() > a.abs() { b } else { a };
    values
        .iter()
        .copied()
        .reduce(farther)
        .expect("invariant: a block has values")
}

/// The least and the greatest value.
fn range(values: &[f32]) -> (f32, f32) {
    let first = values[0];
    values.iter().fold((first, first), |(least, greatest), &x| {
        (
            if x < least { x } else { least },
            if x > greatest { x } else { greatest },
        )
    })
}
