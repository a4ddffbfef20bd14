//! The head as the kernel for many tokens has it: in bf16 as it lies, or as tiles of bytes and their scales.
//!
//! Owns which matrices can be had so, and makes the tiles. Must not know what they are multiplied with.

use std::sync::Arc;

use fornax_backend::BackendError;
use fornax_gguf::DType;

use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::memory::Memory;
use crate::sampler::tiles;
use crate::weight::Layout;

/// Bytes of a tile of 64 rows and 64 columns: quants, and two scales a row. As in `kernels/tiles.cu`.
pub(crate) const TILE_BYTES: usize = 64 * 64 + 64 * 4;

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
        match part.format {
            DType::BF16 => Ok(Some((Self::Brains(part.pointer), None))),
            DType::Q8_0 | DType::Q4_0 => {
                let bytes = tiles(rows) * (cols / 64) * TILE_BYTES;
                let memory = Memory::new(device, bytes, "tiles of the head")?;
                let kernel = kernels.kernel(Module::Product(part.format), "tiles")?;
                Launch::new(kernel, [tiles(rows), 1, 1], 128)
                    .wide(memory.pointer())
                    .wide(part.pointer)
                    .wide(part.pitch as u64)
                    .number(matrix.padded())
                    .number(rows)
                    .start(device)?;
                // The kernel asks for them before the launch before it has ended.
                device.synchronize()?;
                Ok(Some((Self::Tiles(memory.pointer()), Some(memory))))
            }
            _ => Ok(None),
        }
    }
}
