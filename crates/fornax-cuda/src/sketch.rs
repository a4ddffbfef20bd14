//! A matrix in four bits beside the matrix itself, which says which of its rows need not be read.
//!
//! Owns what is kept of a sketch and when one is worth its memory; how values are rounded is in
//! `kernels/sketch.cu`, what that promises in `fornax_backend`. Must not know what it is used for.

use std::sync::Arc;

use fornax_backend::{BackendError, SKETCH_BLOCK, SKETCH_DEVIATIONS};
use fornax_gguf::DType;

use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::matrix;
use crate::memory::Memory;
use crate::sampler::MOST_PARTS;
use crate::weight::Layout;

/// Bytes of the smallest matrix that is sketched: with less, the launch more costs what is not read.
const LEAST_BYTES: usize = 16 << 20;
/// Blocks that make one, at most, and their threads.
const BLOCKS: usize = 4096;
const THREADS: usize = 256;

/// A matrix in four bits, kept on the device.
pub(crate) struct Sketch {
    layout: SketchLayout,
    /// Bytes that are read of it.
    bytes: usize,
    /// What the layout points into.
    _memory: [Memory; 3],
}

/// Where a sketch is.
#[derive(Clone, Debug)]
pub(crate) struct SketchLayout {
    /// `[rows, pitch]`
    pub rows: u64,
    /// Bytes of a row.
    pub pitch: usize,
    /// How far a product with the sketch is from the matrix's, times the loudness of what is multiplied.
    /// `f32 [rows]`
    pub spreads: u64,
    /// Room for what comes of multiplying it. `[MOST_PARTS, 4]`
    pub peaks: u64,
    /// Length of the matrix's longest row.
    pub longest: f32,
}

impl Sketch {
    /// The sketch of a matrix of one format, no stack, that is large and has more bits than its sketch;
    /// `None` of any other, and of one that cannot be sketched.
    pub fn of(
        device: &Arc<Device>,
        kernels: &mut Kernels,
        matrix: &Layout,
    ) -> Result<Option<Self>, BackendError> {
        let [from] = &matrix.parts[..] else {
            return Ok(None);
        };
        if matrix.experts != 1 || !is_worth_it(from.format, from.rows, matrix.cols) {
            return Ok(None);
        }
        let (rows, pitch) = (from.rows, row_bytes(matrix.cols));
        let what = "a sketch of the head";
        // Scales of no block are not written.
        let blocks = Memory::zeroed(device, rows * pitch, what)?;
        let spreads = Memory::new(device, 4 * rows, what)?;
        let peaks = Memory::zeroed(device, 16 * MOST_PARTS, what)?;
        let kernel = kernels.kernel(Module::Product(from.format), "sketch")?;
        let grid = [rows.div_ceil(THREADS / 32).min(BLOCKS), 1, 1];
        // The longest length comes where peaks will be.
        Launch::new(kernel, grid, THREADS)
            .wide(blocks.pointer())
            .wide(pitch as u64)
            .wide(spreads.pointer())
            .wide(peaks.pointer())
            .wide(from.pointer)
            .wide(from.pitch as u64)
            .number(matrix.padded())
            .number(rows)
            .number(matrix.cols)
            .float(0.5 * SKETCH_DEVIATIONS)
            .start(device)?;
        let mut squares = [0.0_f32];
        peaks.read(&mut squares)?;
        let layout = SketchLayout {
            rows: blocks.pointer(),
            pitch,
            spreads: spreads.pointer(),
            peaks: peaks.pointer(),
            // Their sum was rounded.
            longest: 1.001 * squares[0].sqrt(),
        };
        Ok(layout.longest.is_finite().then_some(Self {
            bytes: rows * (pitch + size_of::<f32>()),
            layout,
            _memory: [blocks, spreads, peaks],
        }))
    }

    pub fn layout(&self) -> &SketchLayout {
        &self.layout
    }

    /// Bytes that are read of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes of a row of `cols` numbers: 16 for each block of 32, and 64 for the scales of 32 blocks.
fn row_bytes(cols: usize) -> usize {
    let blocks = matrix::padded(cols) / SKETCH_BLOCK;
    16 * blocks + 64 * blocks.div_ceil(32)
}

/// Whether a sketch is read in so much less time that a second launch is paid for.
fn is_worth_it(format: DType, rows: usize, cols: usize) -> bool {
    let bytes = rows * matrix::row_bytes(format, cols);
    let less = 4 * rows * row_bytes(cols) <= 3 * bytes;
    // Numbers of 32 bits are multiplied in plain loops.
    format != DType::F32 && less && bytes >= LEAST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_matrices_of_more_bits_are_sketched() {
        for (format, worth) in [
            (DType::BF16, true),
            (DType::F16, true),
            (DType::Q8_0, true),
            (DType::Q6_K, true),
            (DType::Q5_K, false),
            (DType::Q4_K, false),
            (DType::Q4_0, false),
            (DType::F32, false),
        ] {
            assert_eq!(is_worth_it(format, 151_936, 1024), worth, "{format}");
            assert!(!is_worth_it(format, 4096, 1024), "{format}");
        }
    }
}
