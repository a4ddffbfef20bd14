//! The largest of many products with one token: all of them with the sketch of the matrix, and with the
//! matrix itself those of rows that can have it.
//!
//! Must not know which rows these are.

use fornax_backend::BackendError;

use super::products::{Table, WARPS, draw_of, tile_rows};
use super::{Action, Plan, Searched};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::operation::{Linear, Operation};
use crate::sampler::MOST_PARTS;
use crate::sketch::SketchLayout;

/// Blocks of a multiprocessor, each with an equal share of the rows: as many as run at once.
const BLOCKS: usize = 2;
/// What the kernels themselves keep in shared memory.
const OWN_SHARED: usize = 6 << 10;

/// `struct Sketched` of `kernels/largest.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Sketched {
    rows: u64,
    spreads: u64,
    peaks: u64,
    longest: f32,
    pitch: u32,
    parts: u32,
}

impl Plan<'_> {
    /// The sketch that is multiplied first, where only the largest product of one token is asked for.
    pub(super) fn sketch_of(&self, linear: &Linear) -> Option<SketchLayout> {
        let sketch = linear.sketch.as_ref()?;
        let room = self.shop.device.shared_memory().saturating_sub(OWN_SHARED);
        let fits = 4 * linear.matrix.padded() <= room;
        (linear.n == 1 && linear.bias.is_none() && fits).then(|| sketch.clone())
    }

    /// The largest product, with the norm before it that `table` has and the draw behind it; says how many
    /// operations were done, without the norm.
    pub(super) fn largest(
        &mut self,
        linear: &Linear,
        sketch: &SketchLayout,
        table: Table,
        behind: &[Operation],
    ) -> Result<usize, BackendError> {
        let part = &linear.matrix.parts[0];
        let padded = linear.matrix.padded();
        let blocks = (BLOCKS * self.shop.device.multiprocessors() as usize).min(MOST_PARTS);
        let sampling = draw_of(linear, behind);
        let table = Table {
            weight: part.pointer,
            rows: part.rows as u32,
            pitch: part.pitch as u32,
            tile_rows: tile_rows(part, 1) as u32,
            best: sampling.map_or(0, |sampling| sampling.table.best),
            ..table
        };
        let sketched = Sketched {
            rows: sketch.rows,
            spreads: sketch.spreads,
            peaks: sketch.peaks,
            longest: sketch.longest,
            pitch: sketch.pitch as u32,
            parts: blocks as u32,
        };
        // A token in two bytes and two numbers a block, and as products with the matrix want it.
        for (name, shared) in [
            ("sketched", 2 * padded + padded / 4),
            ("largest", 4 * padded),
        ] {
            let module = Module::Largest(part.format);
            let kernel = self.shop.kernels.kernel(module, name)?;
            let launch = Launch::new(kernel, [blocks, 1, 1], 32 * WARPS)
                .shared(shared)
                .structure(&table)
                .structure(&sketched);
            self.actions.push(Action::Launch(launch));
        }
        let Some(sampling) = sampling else {
            return Ok(1);
        };
        self.sample(sampling, Searched::Apart(blocks))?;
        Ok(2)
    }
}
