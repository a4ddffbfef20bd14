//! Which kernels multiply weights of a format.
//!
//! Owns the table of all formats. Must not know how a product is launched.

use fornax_gguf::DType;

/// How weights of a format are multiplied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ways {
    /// With a single token as bytes, not as numbers (`SCALED` and `UNITS` of the kernels).
    pub bytes: bool,
    /// With a single token in chains: `kernels/one_token.cu` needs only a few instructions for them. With others one
    /// token is faster launch by launch, by more warps.
    pub chains: bool,
    /// With a single token in panels (`kernels/byte_panels.cu`, `kernels/brain_panels.cu`).
    pub panels: bool,
    /// With some tokens as tiles of bytes (`tiles.rs`).
    pub tiles: bool,
    /// With a few tokens `kernels/gemv.cu` decodes them first.
    pub decoded: bool,
}

/// Of each format; of one that has no line, by kernels that decode any.
pub(crate) fn ways(format: DType) -> Ways {
    use DType::{BF16, F16, F32, IQ4_NL, MXFP4, Q4_0, Q4_K, Q5_K, Q6_K, Q8_0};
    let [bytes, chains, panels, tiles, decoded] = match format {
        F32 => [0, 0, 0, 0, 0],
        F16 => [0, 1, 0, 0, 0],
        BF16 => [0, 1, 1, 0, 0],
        Q8_0 | Q4_0 => [1, 1, 1, 1, 0],
        Q4_K | Q5_K | Q6_K | IQ4_NL | MXFP4 => [1, 1, 0, 0, 1],
        _ => [0, 0, 0, 0, 1],
    }
    .map(|way| way == 1);
    Ways {
        bytes,
        chains,
        panels,
        tiles,
        decoded,
    }
}
