//! A tile of up to 24 queries that meets a block of unpacked keys, in single precision throughout.
//!
//! Owns the arithmetic of [`many`](super::many). Must not know where K and V lie. Scores and weighted
//! values are the same product: vectors, each a line that is read once, times numbers of every query.
//! For 24 queries that is 12 cycles of two units, in which the next line comes from the second level.

use super::{
    Attention, Tile,
    blocks::{KEYS, Panel},
    softmax::{RUN, STRIDE, State},
};
use crate::{
    ahead::Ahead,
    simd::{Kernel, LANES, Simd, each},
};

/// From a vector of the values of a block to the next: a line more than the keys take, so that a row
/// does not fall on one place of a cache.
pub(super) const VALUES: usize = (KEYS + 1) * LANES;

/// Queries of the widest tile, where products have tiles of so many columns: with 32 registers of
/// 16 lanes, sums that keep both units busy until a line has come from the second level.
pub(super) const fn widest(columns: usize) -> usize {
    match columns {
        16 => 24,
        columns => columns,
    }
}

/// Columns of a tile that has room for so many queries.
pub(super) const fn width(columns: usize, queries: usize) -> usize {
    match widest(columns) {
        24 if queries <= 16 => queries.next_multiple_of(8),
        widest => widest,
    }
}

/// [`each!`] for up to 24.
macro_rules! each_query {
    ($index:ident in $count:expr => $body:expr) => {
        each!(
            $index in $count,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 => $body
        )
    };
}

/// A tile that meets a block.
pub(super) struct TileBlock<'a, 'b> {
    pub attention: &'a Attention<'a>,
    pub tile: &'a Tile,
    /// Of the block, what the tile sees.
    pub panels: &'a [Panel],
    pub state: State<'b>,
    /// `[panels][k_dim][16 keys]`
    pub keys: &'a [f32],
    /// `[vectors of a value][VALUES]`
    pub values: &'a [f32],
    /// Scores, then weights. `[queries][STRIDE]`
    pub scores: &'a mut [f32],
    /// What the output so far has to be multiplied with. `[queries up to a multiple of 16]`
    pub factors: &'a mut [f32],
    /// K and V of the next block.
    pub ahead: &'a mut [Ahead; 2],
    /// Lines of each to ask for at a time.
    pub lines: [usize; 2],
}

impl Kernel for TileBlock<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match width(S::COLUMNS, self.tile.queries) {
            24 if const { widest(S::COLUMNS) == 24 } => self.compute::<S, 24>(s),
            16 if const { widest(S::COLUMNS) == 24 } => self.compute::<S, 16>(s),
            8 if const { widest(S::COLUMNS) == 24 } => self.compute::<S, 8>(s),
            4 if const { widest(S::COLUMNS) == 4 } => self.compute::<S, 4>(s),
            width => unreachable!("a tile of {width} queries"),
        }
    }
}

impl TileBlock<'_, '_> {
    #[inline(always)]
    fn compute<S: Simd, const N: usize>(mut self, s: S) {
        self.add_scores::<S, N>(s);
        let (scores, factors) = (&mut *self.scores, &mut *self.factors);
        let state = &mut self.state;
        state.weigh(s, self.attention, self.tile, self.panels, scores, factors);
        self.add_values::<S, N>(s);
    }

    #[inline(always)]
    fn ask<S: Simd>(&mut self, s: S) {
        let asked = self.ahead.iter_mut().zip(self.lines);
        asked.for_each(|(ahead, lines)| ahead.ask(s, lines));
    }

    #[inline(always)]
    fn add_scores<S: Simd, const N: usize>(&mut self, s: S) {
        let k_dim = self.attention.kv.shape().k_dim;
        let keys = self.keys.chunks_exact(k_dim * LANES);
        for (place, keys) in keys.enumerate().take(self.panels.len()) {
            let mut sums = [s.splat(0.0); N];
            let runs = self.state.q.chunks_exact(N * STRIDE);
            for (keys, q) in keys.chunks(RUN * LANES).zip(runs) {
                multiply(s, keys, q, &mut sums);
            }
            each_query!(c in N => {
                s.write(&mut self.scores[c * STRIDE + place * LANES..], sums[c]);
            });
            let asked = self.ahead.iter_mut().zip(self.lines);
            asked.for_each(|(ahead, lines)| ahead.ask(s, lines));
        }
    }

    /// Adds the weighted values of the block to those before.
    #[inline(always)]
    fn add_values<S: Simd, const N: usize>(&mut self, s: S) {
        let stride = self.state.sums_stride;
        for (vector, values) in self.values.chunks_exact(VALUES).enumerate() {
            let so_far = &mut self.state.sums[vector * LANES..];
            assert!((N - 1) * stride + LANES <= so_far.len() && N <= self.factors.len());
            let so_far = so_far.as_mut_ptr();
            let mut sums = [s.splat(0.0); N];
            each_query!(c in N => {
                // SAFETY: asserted.
                let (so_far, factor) =
                    unsafe { (s.load(so_far.add(c * stride)), *self.factors.get_unchecked(c)) };
                sums[c] = s.mul(so_far, s.splat(factor));
            });
            for (place, panel) in self.panels.iter().enumerate() {
                let keys = place * LANES + panel.first..place * LANES + panel.end;
                let values = &values[keys.start * LANES..keys.end * LANES];
                multiply(s, values, &self.scores[keys.start..], &mut sums);
            }
            each_query!(c in N => {
                // SAFETY: asserted.
                unsafe { s.store(so_far.add(c * stride), sums[c]) };
            });
            self.ask(s);
        }
    }
}

/// Adds to the sums of `N` queries the products of vectors with their numbers, which begin [`STRIDE`]
/// apart.
#[inline(always)]
fn multiply<S: Simd, const N: usize>(
    s: S,
    vectors: &[f32],
    numbers: &[f32],
    sums: &mut [S::F32; N],
) {
    let count = vectors.len() / LANES;
    assert!((N - 1) * STRIDE + count <= numbers.len());
    let (vectors, numbers) = (vectors.as_ptr(), numbers.as_ptr());
    for index in 0..count {
        // SAFETY: there are so many vectors, and asserted are as many numbers of each query.
        unsafe {
            let vector = s.load(vectors.add(index * LANES));
            let numbers = numbers.add(index);
            each_query!(c in N => {
                sums[c] = s.mul_add(vector, s.splat(*numbers.add(c * STRIDE)), sums[c]);
            });
        }
    }
}
