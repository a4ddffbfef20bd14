//! Columns filled in from rows of activations, tile by tile.
//!
//! Owns which precision comes how; quantising is in `quantise.rs`. Must not know which tiles there are.

use std::ops::Range;

use super::{COARSE_TILE, Columns, Precisions, Tile};
use crate::{
    ahead::ask_near,
    isa::Isa,
    memory::Parts,
    panel::BLOCK,
    simd::{Kernel, LANES, Simd},
};

/// Columns that there is room for.
#[derive(Clone, Copy)]
pub(crate) struct Filler<'a> {
    pub(super) cols: usize,
    pub(super) tiles: &'a [Tile],
    pub(super) sources: &'a [usize],
    pub(super) precisions: Precisions,
    pub(super) places: Places<'a>,
}

/// Values that columns are filled from.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub values: &'a [f32],
    /// From a row to the next.
    pub stride: usize,
    /// Row of the activations that the values begin with.
    pub first_row: usize,
    /// Block of each row that they begin with.
    pub first_block: usize,
}

impl Filler<'_> {
    /// Whether a tile has the same columns as that of others with the same number.
    pub fn shares_tile(&self, columns: &Columns, tile: usize) -> bool {
        let (own, others) = (self.tiles[tile], columns.tile(tile));
        (own.first, own.used, own.width) == (others.first, others.used, others.width)
    }

    /// Asks for where blocks of a tile go, which are too few for the processor to see a stream in them.
    pub fn ask(&self, isa: Isa, tile: usize, blocks: Range<usize>) {
        struct Ask<'a>(Places<'a>, usize, usize, bool);
        impl Kernel for Ask<'_> {
            type Output = ();

            #[inline(always)]
            fn run<S: Simd>(self, s: S) {
                let Self(places, first, count, coarse) = self;
                ask_near(s, places.quants.at(first * BLOCK), count * BLOCK);
                ask_near(s, places.scales.at(first), count);
                ask_near(s, places.starts.at(first), count);
                if coarse {
                    ask_near(s, places.coarse.at(3 * first), 3 * count);
                }
            }
        }
        let Tile { width, start, .. } = self.tiles[tile];
        let first = start * (self.cols / BLOCK) + blocks.start * width;
        let count = blocks.len() * width;
        let coarse = self.precisions.coarse && width == COARSE_TILE;
        isa.run(Ask(self.places, first, count, coarse));
    }

    /// Fills some blocks of a tile.
    ///
    /// # Safety
    /// Nobody else fills them meanwhile, or reads them.
    pub unsafe fn fill(&self, isa: Isa, tile: usize, blocks: Range<usize>, rows: Rows<'_>) {
        let tile = self.tiles[tile];
        isa.run(Fill {
            rows,
            cols: self.cols,
            tile,
            blocks,
            sources: &self.sources[tile.first..tile.first + tile.used],
            precisions: self.precisions,
            places: self.places,
        });
    }
}

/// The arrays of [`Columns`], for threads that fill different tiles.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    pub quants: Parts<'a, i8>,
    pub scales: Parts<'a, f32>,
    pub coarse: Parts<'a, i32>,
    pub starts: Parts<'a, i32>,
    pub half_starts: Parts<'a, i32>,
    pub sums: Parts<'a, f32>,
    pub half_sums: Parts<'a, f32>,
    pub floats: Parts<'a, f32>,
    pub brains: Parts<'a, u16>,
}

/// Fills some blocks of a tile.
pub(super) struct Fill<'a> {
    pub(super) rows: Rows<'a>,
    pub(super) cols: usize,
    pub(super) tile: Tile,
    /// The last block of a row may be shorter than the others.
    pub(super) blocks: Range<usize>,
    /// `[used]`
    pub(super) sources: &'a [usize],
    pub(super) precisions: Precisions,
    pub(super) places: Places<'a>,
}

impl Kernel for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Precisions {
            quants,
            floats,
            brains,
            ..
        } = self.precisions.of(&self.tile);
        if quants {
            self.quantise(s);
        }
        if floats {
            self.interleave();
        }
        if brains {
            self.round(s);
        }
    }
}

impl Fill<'_> {
    /// The values of a column in these blocks.
    pub(super) fn values(&self, column: usize) -> &[f32] {
        // What fills a tile up may be anything finite or not: nobody reads what comes of it.
        let source = self.sources[column.min(self.sources.len() - 1)];
        let Rows {
            values,
            stride,
            first_row,
            first_block,
        } = self.rows;
        let (start, end) = (
            self.blocks.start * BLOCK,
            self.cols.min(self.blocks.end * BLOCK),
        );
        let values = &values[(source - first_row) * stride..];
        &values[start - first_block * BLOCK..end - first_block * BLOCK]
    }

    /// Brain floats.
    #[inline(always)]
    fn round<S: Simd>(&self, s: S) {
        let Tile { width, start, .. } = self.tile;
        let first = start * self.cols.next_multiple_of(BLOCK) + self.blocks.start * width * BLOCK;
        // SAFETY: pieces have different blocks.
        let brains = unsafe {
            let places = self.places.brains;
            places.part(first, self.blocks.len() * width * BLOCK)
        };
        for column in 0..width {
            let all = self.values(column);
            for block in 0..self.blocks.len() {
                let place = (block * width + column) * BLOCK;
                let to = &mut brains[place..place + BLOCK];
                for (to, half) in to.chunks_exact_mut(LANES).zip([0, LANES]) {
                    let values = &all[all.len().min(block * BLOCK + half)..];
                    let values = match values.len() >= LANES {
                        true => s.read(values),
                        false => s.read_up_to(values, 0.0),
                    };
                    // SAFETY: room for 16.
                    unsafe { s.store_bf16(to.as_mut_ptr(), values) };
                }
            }
        }
    }

    /// `[width][cols]` to `[cols][width]`.
    fn interleave(&self) {
        let Tile { width, start, .. } = self.tile;
        let (first, count) = (self.blocks.start * BLOCK, self.values(0).len());
        // SAFETY: pieces have different blocks.
        let floats = unsafe {
            let places = self.places.floats;
            places.part(start * self.cols + first * width, count * width)
        };
        for column in 0..width {
            let places = floats[column..].iter_mut().step_by(width);
            let values = self.values(column);
            places
                .zip(values)
                .for_each(|(place, value)| *place = *value);
        }
    }
}
