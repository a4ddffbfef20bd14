//! Activations as register tiles read them: the columns of a product.
//!
//! Owns the quantisation of activations and the order in which tiles read them. Must not know
//! weights. Columns stand in groups (one for a plain product, one an expert for a mixture), each
//! cut into tiles; a product runs through tiles of one group.
//!
//! Activations are quantised in blocks of 32 under one single-precision scale, 127 steps either
//! way: finer than the half-precision scale of Q8_0.

use std::ops::Range;

use crate::{
    isa::Isa,
    memory::Parts,
    panel::BLOCK,
    pool::Pool,
    rows::grow,
    simd::{Kernel, LANES, Simd},
};

/// Columns of some products. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// Values of a column.
    pub cols: usize,
    tiles: Vec<Tile>,
    /// Row of the activations that each column comes from. `[columns]`
    sources: Vec<usize>,
    /// `[tiles][blocks][width][32]`
    quants: Vec<i8>,
    /// `[tiles][blocks][width]`
    scales: Vec<f32>,
    /// -128 times the sum of each block's quants. `[tiles][blocks][width]`
    starts: Vec<i32>,
    /// `[tiles][cols][width]`
    floats: Vec<f32>,
}

/// Columns side by side in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// Its first column.
    pub first: usize,
    /// 1, 2, 4, 8 or 16 columns.
    pub width: usize,
}

/// Where a tile's activations begin; meaningless in a precision that [`Columns`] does not hold.
#[derive(Clone, Copy)]
pub(crate) struct TileColumns {
    /// `[blocks][width][32]`
    pub quants: *const i8,
    /// `[blocks][width]`
    pub scales: *const f32,
    /// `[blocks][width]`
    pub starts: *const i32,
    /// `[cols][width]`
    pub floats: *const f32,
}

/// In which precisions columns are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Precisions {
    pub quants: bool,
    pub floats: bool,
}

impl Columns {
    /// Starts over with no columns of `cols` values.
    pub fn clear(&mut self, cols: usize) {
        self.cols = cols;
        self.tiles.clear();
        self.sources.clear();
    }

    /// Adds a group of columns that come from these rows, and returns its tiles.
    pub fn push_group(&mut self, isa: Isa, rows: impl Iterator<Item = usize>) -> Range<usize> {
        let (mut first, first_tile) = (self.sources.len(), self.tiles.len());
        self.sources.extend(rows);
        let widest = isa.columns();
        while first < self.sources.len() {
            let left = self.sources.len() - first;
            // The widest power of two that is left.
            let width = widest.min(1 << left.ilog2());
            self.tiles.push(Tile { first, width });
            first += width;
        }
        first_tile..self.tiles.len()
    }

    /// The tile with a number.
    pub fn tile(&self, index: usize) -> Tile {
        self.tiles[index]
    }

    /// Where the activations of a tile are.
    #[inline(always)]
    pub fn of_tile(&self, tile: Tile) -> TileColumns {
        let blocks = self.cols / BLOCK;
        TileColumns {
            quants: self
                .quants
                .as_ptr()
                .wrapping_add(tile.first * blocks * BLOCK),
            scales: self.scales.as_ptr().wrapping_add(tile.first * blocks),
            starts: self.starts.as_ptr().wrapping_add(tile.first * blocks),
            floats: self.floats.as_ptr().wrapping_add(tile.first * self.cols),
        }
    }

    /// Whether a product may read these columns in those precisions.
    pub fn holds(&self, precisions: Precisions) -> bool {
        let blocks = self.cols / BLOCK;
        let quants = self.quants.len() >= self.sources.len() * blocks * BLOCK;
        let floats = self.floats.len() >= self.sources.len() * self.cols;
        (quants || !precisions.quants) && (floats || !precisions.floats)
    }

    /// Fills the columns from `x`, whose rows are `cols` long.
    pub fn fill(&mut self, isa: Isa, pool: &mut Pool, x: &[f32], precisions: Precisions) {
        let (count, cols) = (self.sources.len(), self.cols);
        assert!(
            !precisions.quants || cols.is_multiple_of(BLOCK),
            "whole blocks of activations"
        );
        let blocks = cols / BLOCK;
        if precisions.quants {
            grow(&mut self.quants, count * blocks * BLOCK);
            grow(&mut self.scales, count * blocks);
            grow(&mut self.starts, count * blocks);
        }
        if precisions.floats {
            grow(&mut self.floats, count * cols);
        }
        let quants = Parts::new(&mut self.quants);
        let (scales, starts) = (Parts::new(&mut self.scales), Parts::new(&mut self.starts));
        let floats = Parts::new(&mut self.floats);
        let (tiles, sources) = (&self.tiles, &self.sources);
        pool.run(tiles.len(), |index, _| {
            let Tile { first, width } = tiles[index];
            let sources = &sources[first..first + width];
            // SAFETY: tiles have different columns.
            unsafe {
                if precisions.quants {
                    isa.run(Quantise {
                        x,
                        cols,
                        sources,
                        quants: quants.part(first * cols, width * cols),
                        scales: scales.part(first * blocks, width * blocks),
                        starts: starts.part(first * blocks, width * blocks),
                    });
                }
                if precisions.floats {
                    interleave(x, cols, sources, floats.part(first * cols, width * cols));
                }
            }
        });
    }
}

/// `[width][cols]` to `[cols][width]`.
fn interleave(x: &[f32], cols: usize, sources: &[usize], floats: &mut [f32]) {
    for (column, source) in sources.iter().enumerate() {
        let row = &x[source * cols..(source + 1) * cols];
        let places = floats[column..].iter_mut().step_by(sources.len());
        places.zip(row).for_each(|(place, value)| *place = *value);
    }
}

/// Quantises the columns of a tile.
struct Quantise<'a> {
    /// `[rows, cols]`
    x: &'a [f32],
    cols: usize,
    /// `[width]`
    sources: &'a [usize],
    /// `[blocks][width][32]`
    quants: &'a mut [i8],
    /// `[blocks][width]`
    scales: &'a mut [f32],
    /// `[blocks][width]`
    starts: &'a mut [i32],
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.sources.len();
        for (column, source) in self.sources.iter().enumerate() {
            let row = &self.x[source * self.cols..(source + 1) * self.cols];
            for (block, values) in row.chunks_exact(BLOCK).enumerate() {
                let place = block * width + column;
                let quants = &mut self.quants[place * BLOCK..(place + 1) * BLOCK];
                let (scale, sum) = quantise_block(s, values, quants);
                self.scales[place] = scale;
                self.starts[place] = -128 * sum;
            }
        }
    }
}

/// Returns the scale and the sum of the quants. The scale of a block with an infinity or a NaN is
/// NaN, so that a broken activation is seen in the logits.
#[inline(always)]
fn quantise_block<S: Simd>(s: S, values: &[f32], quants: &mut [i8]) -> (f32, i32) {
    let (low, high) = (s.read(values), s.read(&values[LANES..]));
    let largest = s.largest_magnitude(low, high);
    if !largest.is_finite() {
        quants.fill(0);
        return (f32::NAN, 0);
    }
    // Below, the inverse would overflow; so small a block counts as zeros.
    let inverse = if largest > 1e-30 {
        127.0 / largest
    } else {
        0.0
    };
    let inverse = s.splat(inverse);
    let low = s.to_i32(s.mul(low, inverse));
    let high = s.to_i32(s.mul(high, inverse));
    assert!(quants.len() == BLOCK);
    // SAFETY: room for both was asserted.
    unsafe {
        s.store_bytes(quants.as_mut_ptr(), low);
        s.store_bytes(quants.as_mut_ptr().add(LANES), high);
    }
    (largest / 127.0, s.sum_i32(low) + s.sum_i32(high))
}
