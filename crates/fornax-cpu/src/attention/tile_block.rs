//! A tile of up to 24 queries that meets a block of unpacked keys.
//!
//! Owns the arithmetic of [`many`](super::many). Must not know where K and V lie. Scores and weighted
//! values are the same product: vectors, each a line that is read once, times numbers of every query.
//!
//! With 32 registers, 12 queries meet two vectors at a time: 14 loads for 24 products, which are 12
//! cycles of two units. 24 queries and one vector are 25 loads, for which a processor that loads two a
//! cycle takes longer than for the products.

use std::{
    ops::Range,
    sync::atomic::{Ordering, compiler_fence},
};

use super::{
    Attention, Tile,
    arithmetic::{Arithmetic, Products, Scores, Work},
    blocks::{KEYS, Panel},
    softmax::{RUN, STRIDE, State},
};
use crate::{
    ahead::Ahead,
    simd::{LANES, Simd, each},
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

/// Vectors that meet queries at a time, where products have tiles of so many columns.
const fn vectors_at_once(columns: usize) -> usize {
    match widest(columns) {
        24 => 2,
        _ => 1,
    }
}

/// A tile that meets a block.
pub(super) struct TileBlock<'a, 'b> {
    pub attention: &'a Attention<'a>,
    pub tile: &'a Tile,
    /// Of the block, what the tile sees.
    pub panels: &'a [Panel],
    pub state: State<'b>,
    /// `[panels][words of a key, and what scales them][16 keys]`
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

impl Work for TileBlock<'_, '_> {
    #[inline(always)]
    fn compute<A: Arithmetic>(self, a: A) {
        let widest = const { widest(A::Simd::COLUMNS) };
        match width(A::Simd::COLUMNS, self.tile.queries) {
            24 if widest == 24 => self.meet::<A, 24, 12>(a),
            16 if widest == 24 => self.meet::<A, 16, 8>(a),
            8 if widest == 24 => self.meet::<A, 8, 8>(a),
            4 if widest == 4 => self.meet::<A, 4, 4>(a),
            width => unreachable!("invariant: no tile has {width} queries"),
        }
    }
}

impl TileBlock<'_, '_> {
    /// For `N` queries, `EACH` at a time.
    #[inline(always)]
    fn meet<A: Arithmetic, const N: usize, const EACH: usize>(mut self, a: A) {
        let each = const { vectors_at_once(A::Simd::COLUMNS) };
        for place in (0..self.panels.len()).step_by(each) {
            match each.min(self.panels.len() - place) {
                2 => self.add_scores::<A, N, EACH, 2>(a, place),
                _ => self.add_scores::<A, N, EACH, 1>(a, place),
            }
        }
        let (scores, factors) = (&mut *self.scores, &mut *self.factors);
        let state = &mut self.state;
        state.weigh(a, self.attention, self.tile, self.panels, scores, factors);
        let vectors = self.values.len() / VALUES;
        for vector in (0..vectors).step_by(each) {
            match each.min(vectors - vector) {
                2 => self.add_values::<A, N, EACH, 2>(a, vector),
                _ => self.add_values::<A, N, EACH, 1>(a, vector),
            }
        }
    }

    #[inline(always)]
    fn ask<S: Simd>(&mut self, s: S, times: usize) {
        let asked = self.ahead.iter_mut().zip(self.lines);
        asked.for_each(|(ahead, lines)| ahead.ask(s, times * lines));
    }

    /// Scores of the keys of `P` panels, from a place on.
    #[inline(always)]
    fn add_scores<A: Arithmetic, const N: usize, const EACH: usize, const P: usize>(
        &mut self,
        a: A,
        place: usize,
    ) {
        let (s, a) = (a.simd(), a.scores());
        let len = self.attention.kv.shape().k_dim.div_ceil(A::Scores::DEPTH) * LANES;
        let panel_len = len + A::Scores::SCALE_LINES * LANES;
        for first in (0..N).step_by(EACH) {
            let mut sums = [[a.nothing(); EACH]; P];
            let runs = self.state.q.chunks_exact(N * STRIDE);
            for (run, q) in (0..len).step_by(RUN * LANES).zip(runs) {
                let run = run..len.min(run + RUN * LANES);
                let mut keys = [&self.keys[..0]; P];
                each!(p in P, 0 1 => keys[p] = &self.keys[(place + p) * panel_len..][run.clone()]);
                multiply(a, keys, &q[first * STRIDE..], &mut sums);
            }
            each!(p in P, 0 1 => {
                let scale = a.read_scale(&self.keys[(place + p) * panel_len + len..]);
                each!(c in EACH => {
                    let factor = self.state.q[(first + c) * STRIDE + RUN];
                    let score = a.score(sums[p][c], scale, factor);
                    let to = (first + c) * STRIDE + (place + p) * LANES;
                    s.write(&mut self.scores[to..], score);
                });
            });
        }
        self.ask(s, P);
    }

    /// Adds the weighted values of the block to those before, for `P` vectors of a value from one on.
    #[inline(always)]
    fn add_values<A: Arithmetic, const N: usize, const EACH: usize, const P: usize>(
        &mut self,
        a: A,
        vector: usize,
    ) {
        let s = a.simd();
        let words = words_seen(self.panels, A::Outputs::DEPTH);
        let lines = words.start * LANES..words.end * LANES;
        let stride = self.state.sums_stride;
        for first in (0..N).step_by(EACH) {
            let so_far = &mut self.state.sums[first * stride + vector * LANES..];
            assert!((EACH - 1) * stride + P * LANES <= so_far.len());
            let so_far = so_far.as_mut_ptr();
            let factors = &self.factors[first..first + EACH];
            let mut sums = [[s.splat(0.0); EACH]; P];
            each!(p in P, 0 1 => each!(c in EACH => {
                // SAFETY: asserted.
                let so_far = unsafe { s.load(so_far.add(c * stride + p * LANES)) };
                sums[p][c] = s.mul(so_far, s.splat(factors[c]));
            }));
            let mut values = [&self.values[..0]; P];
            each!(p in P, 0 1 => {
                values[p] = &self.values[(vector + p) * VALUES..][lines.clone()];
            });
            let weights = &self.scores[first * STRIDE + words.start..];
            multiply(a.outputs(), values, weights, &mut sums);
            each!(p in P, 0 1 => each!(c in EACH => {
                // SAFETY: asserted.
                unsafe { s.store(so_far.add(c * stride + p * LANES), sums[p][c]) };
            }));
        }
        self.ask(s, P);
    }
}

/// Words of a block from the first position in sight to the last. What is out of sight between them
/// weighs nothing.
fn words_seen(panels: &[Panel], depth: usize) -> Range<usize> {
    let first = panels.first().map_or(0, |panel| panel.first);
    let before = panels.len().saturating_sub(1) * LANES;
    let end = panels.last().map_or(0, |panel| before + panel.end);
    first / depth..end.div_ceil(depth)
}

/// Adds to the sums of `N` queries the products of `P` runs of vectors with their numbers, which begin
/// [`STRIDE`] apart.
#[inline(always)]
fn multiply<A: Products, const P: usize, const N: usize>(
    a: A,
    vectors: [&[f32]; P],
    numbers: &[f32],
    sums: &mut [[A::Sum; N]; P],
) {
    let count = vectors[0].len() / LANES;
    assert!((N - 1) * STRIDE + count <= numbers.len());
    assert!(vectors.iter().all(|vectors| vectors.len() >= count * LANES));
    let (vectors, numbers) = (vectors.map(<[f32]>::as_ptr), numbers.as_ptr());
    for index in 0..count {
        // SAFETY: asserted are so many vectors, and as many numbers of each query.
        unsafe {
            let mut line = [a.load(vectors[0].add(index * LANES)); P];
            each!(p in P, 1 => line[p] = a.load(vectors[p].add(index * LANES)));
            let numbers = numbers.add(index);
            each!(c in N => {
                // Loaded when their turn comes: all at once they would drive sums out of registers.
                if P == 2 {
                    compiler_fence(Ordering::SeqCst);
                }
                let number = a.splat(numbers.add(c * STRIDE));
                each!(p in P, 0 1 => sums[p][c] = a.mul_add(line[p], number, sums[p][c]));
            });
        }
    }
}
