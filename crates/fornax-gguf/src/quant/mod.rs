//! How numbers are packed into blocks: one file per format, each in plain scalar code.
//!
//! Owns the bits of a block, equal to those that the `gguf` Python package reads and writes; must
//! not know tensors or files. A new format is one file here and one row in `dtype.rs`.

mod bf16;
mod f16;
mod f32;
mod q4_0;
mod q8_0;

pub use bf16::BF16;
pub use f16::F16;
pub use f32::F32;
pub use q4_0::Q4_0;
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

/// The scale that leads a block.
fn read_f16(block: &[u8]) -> f32 {
    half::f16::from_le_bytes([block[0], block[1]]).to_f32()
}

/// Writes the scale that leads a block, rounded to nearest even.
fn write_f16(value: f32, block: &mut [u8]) {
    block[..2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// `1 / scale`, and 0 for a block of zeros.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}
