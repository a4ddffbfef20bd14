//! A matrix as tiles of bytes, for products of some tokens by tensor cores.
//!
//! Owns which matrices can be had so, and makes the tiles. Must not know what they are multiplied with.

use std::sync::Arc;

use fornax_backend::BackendError;
use fornax_gguf::DType;

use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::memory::Memory;
use crate::ways::ways;
use crate::weight::Layout;

/// Rows of a tile, and its columns.
pub(crate) const TILE: usize = 64;
/// Bytes of a tile: quants, and two scales a row. As in `kernels/tile.cu`.
pub(crate) const TILE_BYTES: usize = TILE * TILE + 4 * TILE;

/// Bytes of a matrix's tiles, with those of zeros behind its last row.
pub(crate) fn tiled_bytes(rows: usize, cols: usize) -> usize {
    rows.div_ceil(TILE) * (cols / TILE) * TILE_BYTES
}

/// Whether rows of a format and so many columns can be tiles.
pub(crate) fn is_tileable(format: DType, cols: usize) -> bool {
    ways(format).tiles && cols.is_multiple_of(TILE)
}

/// Makes the tiles of a matrix, `[rows / 64, cols / 64, TILE_BYTES]` with zeros behind the last row, on the device's
/// stream; `None` of one that has other formats than Q8_0 or Q4_0, more than one, or columns that are no multiple
/// of 64.
///
/// # Errors
/// There is no memory for them.
pub(crate) fn tiles_of(
    device: &Arc<Device>,
    kernels: &mut Kernels,
    matrix: &Layout,
) -> Result<Option<Memory>, BackendError> {
    let [part] = &matrix.parts[..] else {
        return Ok(None);
    };
    if matrix.experts > 1 || !is_tileable(part.format, matrix.cols) {
        return Ok(None);
    }
    let bytes = tiled_bytes(part.rows, matrix.cols);
    let memory = Memory::new(device, bytes, "tiles of weights")?;
    let kernel = kernels.kernel(Module::Product(part.format), "tiles")?;
    Launch::new(kernel, [part.rows.div_ceil(TILE), 1, 1], 128)
        .wide(memory.pointer())
        .wide(part.pointer)
        .wide(part.pitch as u64)
        .number(matrix.padded())
        .number(part.rows)
        .start(device)?;
    Ok(Some(memory))
}
