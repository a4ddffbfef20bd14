//! Words on their way between the device and page-locked memory of the host, by a kernel.
//!
//! Must not know what they say.

use fornax_backend::BackendError;

use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;

/// Words that lie one behind the other on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub to: u64,
    pub from: u64,
    pub words: usize,
}

/// Pieces of a launch at most.
const MOST: usize = 4;
/// Threads of a block, and the most blocks that a piece has.
const THREADS: usize = 256;
const MOST_BLOCKS: usize = 32;

/// `Pieces` of `kernels/ferry.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Pieces {
    to: [u64; MOST],
    from: [u64; MOST],
    words: [u32; MOST],
}

/// Copies pieces behind all that was launched. Each side is memory of the device or page-locked, and must be there
/// until then.
pub(crate) fn carry(
    device: &Device,
    kernels: &mut Kernels,
    pieces: &[Piece],
) -> Result<(), BackendError> {
    let kernel = kernels.kernel(Module::Ferry, "carry")?;
    for pieces in pieces.chunks(MOST) {
        let longest = pieces.iter().map(|piece| piece.words).max();
        let blocks = longest.unwrap_or(0).div_ceil(THREADS).min(MOST_BLOCKS);
        Launch::new(kernel, [blocks, pieces.len(), 1], THREADS)
            .structure(&Pieces::of(pieces))
            .start(device)?;
    }
    Ok(())
}

impl Pieces {
    fn of(pieces: &[Piece]) -> Self {
        let mut all = Self::default();
        for (index, piece) in pieces.iter().enumerate() {
            all.to[index] = piece.to;
            all.from[index] = piece.from;
            all.words[index] =
                u32::try_from(piece.words).expect("invariant: tables have fewer words");
        }
        all
    }
}
