//! The head as the kernel for many tokens has it: in bf16 as it lies, or as tiles of bytes and their scales.
//!
//! Owns which matrices can be had so. Must not know what they are multiplied with.

use std::sync::Arc;

use fornax_backend::BackendError;
use fornax_gguf::DType;

use crate::device::Device;
use crate::kernels::Kernels;
use crate::memory::Memory;
use crate::sampler::tiles;
use crate::tiles::tiles_of;
use crate::weight::Layout;

/// Tiles of the smallest head that is worth a kernel of its own.
const LEAST_TILES: usize = 16;

/// The head's rows for the kernel of many tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// In bf16. `[rows, cols]`
    Brains(u64),
    /// As tiles. `[rows / 64, cols / 64, TILE_BYTES]`
    Tiles(u64),
}

impl Head {
    /// A matrix as that kernel wants it, with the memory of its tiles where it has to be made so; `None` of one
    /// that the kernel does not multiply.
    ///
    /// # Errors
    /// There is no memory for tiles.
    pub fn of(
        device: &Arc<Device>,
        kernels: &mut Kernels,
        matrix: &Layout,
    ) -> Result<Option<(Self, Option<Memory>)>, BackendError> {
        let [part] = &matrix.parts[..] else {
            return Ok(None);
        };
        let (rows, cols) = (part.rows, matrix.cols);
        let shape = rows.is_multiple_of(32) && cols.is_multiple_of(64) && matrix.experts == 1;
        if !(device.is_only_hopper() && shape && tiles(rows) >= LEAST_TILES) {
            return Ok(None);
        }
        if part.format == DType::BF16 {
            return Ok(Some((Self::Brains(part.pointer), None)));
        }
        if let Some(tiles) = matrix.tiles {
            return Ok(Some((Self::Tiles(tiles), None)));
        }
        let Some(tiles) = tiles_of(device, kernels, matrix)? else {
            return Ok(None);
        };
        // The kernel asks for them before the launch before it has ended.
        device.synchronize()?;
        Ok(Some((Self::Tiles(tiles.pointer()), Some(tiles))))
    }
}
