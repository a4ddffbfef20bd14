//! Words on their way between the device and page-locked memory of the host, by a kernel.
//!
//! Must not know what they say.

use std::ops::Range;

use fornax_backend::BackendError;

use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;

/// `Pieces` of `kernels/ferry.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Pieces {
    begin: [u32; 4],
    end: [u32; 4],
}

/// Threads of a block, and the most blocks that a piece has.
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 32;

/// Copies pieces of words, at the same places on both sides, behind all that was launched. One side
/// is memory of the device, the other too or page-locked; both must be there until then.
pub(crate) fn carry(
    device: &Device,
    kernels: &mut Kernels,
    to: u64,
    from: u64,
    pieces: &[Range<usize>],
) -> Result<(), BackendError> {
    let kernel = kernels.kernel(Module::Ferry, "carry")?;
    for pieces in pieces.chunks(4) {
        let longest = pieces.iter().map(ExactSizeIterator::len).max();
        let blocks = longest.unwrap_or(0).div_ceil(THREADS).min(MOST_BLOCKS);
        Launch::new(kernel, [blocks, pieces.len(), 1], THREADS)
            .wide(to)
            .wide(from)
            .structure(&Pieces::of(pieces))
            .start(device)?;
    }
    Ok(())
}

impl Pieces {
    fn of(pieces: &[Range<usize>]) -> Self {
        let word = |at: usize| u32::try_from(at).expect("invariant: tables have fewer words");
        let mut all = Self::default();
        for (index, piece) in pieces.iter().enumerate() {
            all.begin[index] = word(piece.start);
            all.end[index] = word(piece.end);
        }
        all
    }
}
