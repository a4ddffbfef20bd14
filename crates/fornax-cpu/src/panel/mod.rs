//! Panels: 16 rows of a weight, interleaved so that one vector holds the same place of all of them.
//!
//! Owns the layout of each element type, how rows get in and out, and how a panel is multiplied
//! with columns of activations. Must not know threads or whole matrices.
//!
//! - [`float`]: elements as the file has them.
//! - [`blocks`]: quantised blocks, in as many bits as the file spends on them, under their own
//!   scales. What a file's block looks like is in [`formats`], a few lines a format.
//! - [`strip`]: a panel whose bits were spread to bytes, for products with many columns.

pub(crate) mod blocks;
pub(crate) mod float;
pub(crate) mod formats;
pub(crate) mod strip;

use fornax_gguf::DType;

use crate::{
    columns::TileColumns,
    simd::{LANES, Simd},
};
use strip::StripShape;

/// Values in a block of the kernels, and under one scale of quantised activations.
pub(crate) const BLOCK: usize = 32;
/// Vectors of 4 values × 16 rows in a block.
pub(crate) const GROUPS: usize = BLOCK / 4;
/// Columns of a tile that is through with a panel about as soon as memory brings the next.
pub(crate) const FEW: usize = 8;

/// Calls a generic function with the layout of an element type.
macro_rules! with_format {
    ($dtype:expr, $format:ident => $body:expr) => {
        match $dtype {
            fornax_gguf::DType::F32 => {
                type $format = crate::panel::float::F32;
                $body
            }
            fornax_gguf::DType::F16 => {
                type $format = crate::panel::float::F16;
                $body
            }
            fornax_gguf::DType::BF16 => {
                type $format = crate::panel::float::Bf16;
                $body
            }
            quantised => crate::panel::with_blocks!(quantised, $format => $body),
        }
    };
}
pub(crate) use with_format;

/// Calls a generic function with the layout of a quantised element type.
macro_rules! with_blocks {
    (@ $dtype:expr, $format:ident => $body:expr; $($name:ident)*) => {
        match $dtype {
            $(fornax_gguf::DType::$name => {
                type $format = crate::panel::blocks::Quantised<crate::panel::formats::$name>;
                $body
            })*
            float => unreachable!("invariant: only block formats come here, {float} is none"),
        }
    };
    ($dtype:expr, $format:ident => $body:expr) => {
        crate::panel::with_blocks!(@ $dtype, $format => $body;
            Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ4_NL IQ4_XS MXFP4)
    };
}
pub(crate) use with_blocks;

/// Whether it is multiplied with quantised activations.
pub(crate) fn is_quantised(dtype: DType) -> bool {
    dtype.block_len() > 1
}

/// Bytes of a panel, a multiple of a cache line.
pub(crate) fn panel_bytes(dtype: DType, cols: usize) -> usize {
    with_format!(dtype, F => F::panel_bytes(cols)).next_multiple_of(64)
}

/// Whether its activations may have coarse scales: its own noise is far above theirs, and no row has a scale
/// of 0.
pub(crate) fn is_coarse(dtype: DType) -> bool {
    is_quantised(dtype) && with_blocks!(dtype, F => F::IS_COARSE)
}

/// What a strip of a quantised type holds.
pub(crate) fn strip_shape(dtype: DType) -> StripShape {
    with_blocks!(dtype, F => F::STRIP)
}

/// One layout.
pub(crate) trait Format {
    /// Columns of the widest tile that goes over panels themselves.
    const WIDEST: usize;

    /// Bytes of a panel.
    fn panel_bytes(cols: usize) -> usize;

    /// Puts a row, as the file has it, into its lane of a panel of zeros.
    fn pack(panel: &mut [u8], lane: usize, row: &[u8]);

    /// Takes a row out. `[cols]`
    fn unpack(panel: &[u8], lane: usize, row: &mut [f32]);

    /// The 16 rows times each of `N` columns, `N` up to [`WIDEST`](Self::WIDEST).
    ///
    /// # Safety
    /// `panel` points to a panel of `cols` columns, `columns` to a tile of `N` such columns in the
    /// precision that the layout is multiplied with.
    unsafe fn multiply<S: Simd, const N: usize>(
        s: S,
        panel: *const u8,
        cols: usize,
        columns: TileColumns,
    ) -> [S::F32; N];
}

/// Bytes of a vector of 16 half-precision or brain floats.
const HALVES: usize = 2 * LANES;
