//! Products of many tokens with the head, which find what a draw is told of each tile of rows on the way.
//!
//! Must not know how a draw is made.

use fornax_backend::BackendError;

use super::products::{FEW, draw_of};
use super::{Action, Plan, Searched};
use crate::head::Head;
use crate::kernels::{Module, SKINNY_ROWS};
use crate::launch::Launch;
use crate::operation::{HeadTable, Linear, Operation, Sampling};
use crate::sampler::tiles;
use crate::tensor_map::TensorMap;

// As in `kernels/vocabulary.cu`.
const ROWS: usize = 64;
const SLAB: usize = 64;
const GROUPS: usize = 2;
const GROUP: usize = 128;
const MOST_STAGES: usize = 8;
const CHUNK: usize = 64;
const PITCH: usize = ROWS + 4;
/// Bytes where sums meet: of each group a chunk of tokens.
const SUMS: usize = GROUPS * CHUNK * PITCH * 4;
/// What the kernel itself keeps in shared memory, and what is lost before a multiple of 1,024.
const OWN_SHARED: usize = 4 << 10;

/// `struct Vocabulary` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table {
    x: TensorMap,
    weight: TensorMap,
    tiled: u64,
    logits: u64,
    best: u64,
    weights: u64,
    draws: u64,
    slots: u64,
    n: u32,
    drawn: u32,
    slabs: u32,
    rows: u32,
    stages: u32,
    /// Up to a multiple of 64 bytes.
    spare: [u32; 15],
}

impl Plan<'_> {
    /// Whether the kernel for the head multiplies.
    pub(super) fn is_of_head(&self, linear: &Linear) -> bool {
        linear.matrix.head.is_some()
            && linear.bias.is_none()
            && self.parts(linear) == 1
            && linear.n > FEW
    }

    /// A product with the head, as many tokens at a time as its kernel takes, and the draw behind it; says how
    /// many operations that were.
    pub(super) fn vocabulary(
        &mut self,
        linear: &Linear,
        head: Head,
        behind: &[Operation],
    ) -> Result<usize, BackendError> {
        let Linear { x, n, .. } = *linear;
        let rounded = match self.rounded_of(x, 1) {
            Some(rounded) => rounded,
            None => self.round(x, n, linear.matrix.cols, 1)?,
        };
        assert!(
            rounded.halved.is_none(),
            "invariant: halves of norms are of products that fit"
        );
        let sampling = draw_of(linear, behind);
        let most = SKINNY_ROWS[SKINNY_ROWS.len() - 1];
        for first in (0..n).step_by(most) {
            let tokens = first..n.min(first + most);
            self.tiles_of_head(linear, head, rounded.at, sampling, tokens)?;
        }
        let Some(sampling) = sampling else {
            return Ok(1);
        };
        let (brains, tiled) = match head {
            Head::Brains(at) => (at, 0),
            Head::Tiles(at) => (0, at),
        };
        let table = HeadTable {
            x: rounded.at,
            brains,
            tiled,
            cols: linear.matrix.cols as u32,
            rows: linear.matrix.rows as u32,
        };
        self.sample(sampling, Searched::ByHead(tiles(linear.matrix.rows), table))?;
        Ok(2)
    }

    /// Launches the kernel for some of the tokens, which lie in bf16 at `x`.
    fn tiles_of_head(
        &mut self,
        linear: &Linear,
        head: Head,
        x: u64,
        sampling: Option<Sampling>,
        tokens: std::ops::Range<usize>,
    ) -> Result<(), BackendError> {
        let (rows, cols) = (linear.matrix.rows, linear.matrix.cols);
        let (first, n) = (tokens.start, tokens.len());
        let most = SKINNY_ROWS.into_iter().find(|most| n <= *most);
        let most = most.expect("invariant: no more tokens than the kernel takes");
        let brains = matches!(head, Head::Brains(_));
        let module = Module::Vocabulary { rows: most, brains };
        let kernel = self.shop.kernels.kernel(module, "vocabulary")?;
        let device = &self.shop.device;
        let (row, slab, half) = (2 * cols, 2 * SLAB, ROWS / 2);
        let (weight, tiled, of_tile) = match head {
            Head::Brains(at) => {
                let shape = [SLAB, half, rows / half, cols / SLAB];
                let strides = [row, half * row, slab];
                let map = TensorMap::of_brains(device, at, shape, strides, [SLAB, half, 2, 1])?;
                (map, 0, 2 * ROWS * SLAB)
            }
            Head::Tiles(at) => (TensorMap::default(), at, crate::tiles::TILE_BYTES),
        };
        let of_token = |bytes: usize| (first * bytes) as u64;
        let x = TensorMap::of_brains(
            device,
            x + of_token(row),
            [SLAB, n, cols / SLAB],
            [row, slab],
            [SLAB, most, 1],
        )?;
        let stage = 2 * SLAB * most + GROUPS * of_tile;
        let room = device.shared_memory() - OWN_SHARED - SUMS;
        let stages = (room / stage).min(MOST_STAGES);
        let table = sampling.map(|sampling| sampling.table);
        let parts = tiles(rows);
        let table = Table {
            x,
            weight,
            tiled,
            logits: linear.out + of_token(4 * rows),
            best: table.map_or(0, |table| table.best + of_token(16 * parts)),
            weights: table.map_or(0, |table| table.weights + of_token(4 * parts)),
            draws: table.map_or(0, |table| table.draws + of_token(16)),
            slots: table.map_or(0, |table| table.slots),
            n: n as u32,
            drawn: sampling.map_or(0, |sampling| sampling.n.saturating_sub(first).min(n) as u32),
            slabs: (cols / SLAB) as u32,
            rows: rows as u32,
            stages: stages as u32,
            spare: [0; 15],
        };
        let blocks = parts
            .div_ceil(GROUPS)
            .min(device.multiprocessors() as usize);
        let launch = Launch::new(kernel, [blocks, 1, 1], (GROUPS + 1) * GROUP);
        let launch = launch.shared(stages * stage + SUMS).structure(&table);
        self.actions.push(Action::Launch(launch));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Table>(), 384);
        assert_eq!(std::mem::offset_of!(Table, tiled), 256);
        assert_eq!(std::mem::offset_of!(Table, stages), 320);
    }
}
