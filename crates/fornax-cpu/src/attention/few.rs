//! Tiles of up to 8 queries, as answers bring them: they are through with a key sooner than memory
//! brings the next, so K and V are read where they lie, and of several heads in turns: what heads have
//! of 64 positions lies side by side, and what goes on for long comes faster.
//!
//! Owns the arithmetic of such tiles, 64 keys at a time (Dao et al. 2022, arXiv:2205.14135). Must
//! not know threads. Queries are the columns of a register tile; keys (for scores) and elements of
//! a value (for the output) are its lanes.

use std::{marker::PhantomData, ops::Range};

use super::{
    Attention, Tile,
    arithmetic::{self, Arithmetic, Outputs, Products, Scores, Work},
    blocks::{
        Block, KEYS, PANELS, Panel, has_one_stretch, keys_ahead, panels, stretches, value_rows,
        values_ahead,
    },
    softmax::{RUN, STRIDE, State},
};
use crate::{
    ahead::Ahead,
    isa::Isa,
    kv::{Element, Kv, with_element},
    memory::Parts,
    simd::{LANES, Simd, each},
};

/// Queries of the widest tile.
const WIDEST: usize = 8;
/// KV heads in turns, at most.
pub(super) const HEADS: usize = 4;

/// Queries of the widest tile, where products have tiles of so many columns.
pub(super) const fn widest(columns: usize) -> usize {
    match columns < WIDEST {
        true => columns,
        false => WIDEST,
    }
}

/// Elements of scratch.
pub(super) fn scratch_len(kv: &Kv) -> usize {
    WIDEST * STRIDE + LANES + HEADS * State::len(kv, WIDEST)
}

/// Tiles of some heads and where their results go.
pub(super) struct FewQueries<'a> {
    pub attention: &'a Attention<'a>,
    /// That of the first head.
    pub tile: &'a Tile,
    /// Heads, up to [`HEADS`].
    pub heads: usize,
    /// What this thread most likely computes next.
    pub next: Option<&'a Tile>,
    /// Of [`scratch_len`].
    pub scratch: &'a mut [f32],
    pub out: Parts<'a, f32>,
    /// Results of a stretch: of each head as much, weighted values, largest score, sum of weights of
    /// each query.
    pub partial: Option<&'a mut [f32]>,
}

impl FewQueries<'_> {
    /// # Safety
    /// Nobody else has the outputs of these queries.
    pub unsafe fn compute(self, isa: Isa) {
        let element = self.attention.kv.shape().element;
        with_element!(element, E => {
            arithmetic::run(isa, element, Typed::<E>(self, PhantomData));
        });
    }
}

/// A tile whose element type is known.
struct Typed<'a, E>(FewQueries<'a>, PhantomData<E>);

impl<E: Element> Work for Typed<'_, E> {
    const IS_SINGLE: bool = E::IS_SINGLE;

    #[inline(always)]
    fn compute<A: Arithmetic>(self, a: A) {
        Flash::<A, E>::run(a, self.0);
    }
}

/// Vectors that queries meet at once: as many as there are registers for sums, up to 4.
const fn at_once(columns: usize, queries: usize) -> usize {
    match columns / queries {
        4.. => 4,
        2 | 3 => 2,
        _ => 1,
    }
}

/// Calls a method for as many queries as a tile is wide, and vectors that they meet at once: both are constants of the
/// innermost loops alone, for the rest would be compiled for each.
macro_rules! by_width {
    ($flash:ident.$method:ident($panels:expr)) => {
        match $flash.width {
            1 => by_width!(@ 1, $flash.$method($panels)),
            2 => by_width!(@ 2, $flash.$method($panels)),
            4 if const { widest(A::Simd::COLUMNS) >= 4 } => by_width!(@ 4, $flash.$method($panels)),
            8 if const { widest(A::Simd::COLUMNS) >= 8 } => by_width!(@ 8, $flash.$method($panels)),
            width => unreachable!("invariant: no tile has {width} queries"),
        }
    };
    (@ $n:literal, $flash:ident.$method:ident($panels:expr)) => {
        if const { at_once(A::Simd::COLUMNS, $n) == 4 } {
            $flash.$method::<$n, 4>($panels)
        } else if const { at_once(A::Simd::COLUMNS, $n) == 2 } {
            $flash.$method::<$n, 2>($panels)
        } else {
            $flash.$method::<$n, 1>($panels)
        }
    };
}

/// A tile at work.
struct Flash<'a, A, E> {
    a: A,
    attention: &'a Attention<'a>,
    /// Queries, of which some may be padding: 1, 2, 4 or 8.
    width: usize,
    /// Of the head whose turn it is.
    tile: Tile,
    /// Which of the heads that is.
    head: usize,
    /// Of all heads.
    states: [State<'a>; HEADS],
    /// Scores, then weights. `[width][STRIDE]`
    scores: &'a mut [f32],
    /// What the output so far has to be multiplied with. `[16]`
    factors: &'a mut [f32],
    /// What is wanted next.
    ahead: Ahead,
    element: PhantomData<E>,
}

impl<'a, A: Arithmetic, E: Element> Flash<'a, A, E> {
    #[inline(always)]
    fn run(a: A, work: FewQueries<'a>) {
        let s = a.simd();
        let FewQueries {
            attention,
            tile,
            heads,
            next,
            scratch,
            out,
            partial,
        } = work;
        let width = tile.queries.next_power_of_two();
        let (scores, rest) = scratch.split_at_mut(width * STRIDE);
        let (factors, rest) = rest.split_at_mut(LANES);
        let mut rest = rest.chunks_exact_mut(State::len(attention.kv, width));
        let states = std::array::from_fn(|_| {
            let state = rest.next();
            let state = state.expect("invariant: scratch has room for all heads");
            State::of(attention.kv, width, state)
        });
        let mut flash = Self {
            a,
            attention,
            width,
            tile: *tile,
            head: 0,
            states,
            scores,
            factors,
            ahead: Ahead::nothing(),
            element: PhantomData,
        };
        let tiles = (0..heads).map(|head| tile.of_head(head));
        for (state, tile) in flash.states.iter_mut().zip(tiles.clone()) {
            state.start(a, attention, &tile);
        }
        let is_only = has_one_stretch(tile);
        let mut stretches = stretches(tile).peekable();
        while let Some(stretch) = stretches.next() {
            for (state, tile) in flash.states.iter_mut().zip(tiles.clone()) {
                state.begin(attention, &tile, stretch.start);
            }
            let Range { start, end: last } = panels(attention, &stretch);
            let behind = stretches.peek().or(next);
            for first in (start..last).step_by(PANELS) {
                for (head, tile) in tiles.clone().enumerate() {
                    let then = if head + 1 < heads {
                        keys_ahead(attention, &stretch.of_head(head + 1), first)
                    } else if first + PANELS < last {
                        keys_ahead(attention, &stretch, first + PANELS)
                    } else {
                        behind.map_or(Ahead::nothing(), |tile| {
                            keys_ahead(attention, tile, panels(attention, tile).start)
                        })
                    };
                    (flash.head, flash.tile) = (head, tile);
                    flash.block(&stretch.of_head(head), first, then);
                }
            }
            for state in &mut flash.states[..heads] {
                state.end(s, is_only);
            }
        }
        let mut partials = partial.map(|partial| partial.chunks_exact_mut(partial.len() / heads));
        for (state, tile) in flash.states.iter_mut().zip(tiles) {
            let partial = partials.as_mut().map(|partials| {
                let partial = partials.next();
                partial.expect("invariant: a partial result for each head")
            });
            // SAFETY: `compute` was promised the outputs of these queries.
            unsafe { state.finish(s, attention, &tile, out, partial, is_only) };
        }
    }

    /// Goes on over the block of a stretch that begins with a panel, for the head whose turn it is.
    /// While scores are computed its values are asked for, and with the values what is wanted then.
    #[inline(always)]
    fn block(&mut self, stretch: &Tile, first: usize, then: Ahead) {
        let attention = self.attention;
        let block = Block::of(attention, stretch, first);
        self.ahead = values_ahead(attention, stretch, first);
        by_width!(self.scores_of(block.panels()));
        self.ahead.ask_for_all(self.a.simd());
        let (scores, factors) = (&mut *self.scores, &mut *self.factors);
        self.states[self.head].weigh(
            self.a,
            attention,
            &self.tile,
            block.panels(),
            scores,
            factors,
        );
        self.ahead = then;
        by_width!(self.values_of(block.panels()));
        self.ahead.ask_for_all(self.a.simd());
    }

    #[inline(always)]
    fn scores_of<const N: usize, const P: usize>(&mut self, panels: &[Panel]) {
        let whole = panels.len() / P * P;
        let turns = whole / P + panels.len() - whole;
        let lines = self
            .ahead
            .lines_each(turns * self.attention.kv.shape().k_dim.div_ceil(A::Scores::DEPTH));
        for first in (0..whole).step_by(P) {
            self.dot_panels::<N, P>(&panels[first..first + P], first, lines);
        }
        for first in whole..panels.len() {
            self.dot_panels::<N, 1>(&panels[first..first + 1], first, lines);
        }
    }

    /// Scores of `N` queries with `P` panels, of which the first is number `place` of the block. Asks for so many
    /// lines with each element.
    #[inline(always)]
    fn dot_panels<const N: usize, const P: usize>(
        &mut self,
        panels: &[Panel],
        place: usize,
        lines: usize,
    ) {
        let (a, s, kv) = (self.a.scores(), self.a.simd(), self.attention.kv);
        let k_dim = kv.shape().k_dim;
        let words = k_dim.div_ceil(A::Scores::DEPTH);
        let mut keys = [std::ptr::null(); P];
        for (keys, panel) in keys.iter_mut().zip(panels) {
            *keys = kv
                .k_panel(panel.page, self.tile.kv_head, panel.index)
                .as_ptr();
        }
        // SAFETY: a panel has `k_dim` vectors.
        let mut scale = [unsafe { a.scale::<E>(keys[0], k_dim) }; P];
        each!(p in P, 1 2 3 => {
            // SAFETY: as above.
            scale[p] = unsafe { a.scale::<E>(keys[p], k_dim) };
        });
        let mut sums = [[a.nothing(); N]; P];
        let q = &*self.states[self.head].q;
        for (run, q) in q.chunks_exact(N * STRIDE).enumerate() {
            let steps = RUN.min(words.saturating_sub(run * RUN));
            for step in 0..steps {
                self.ahead.ask(s, lines);
                let q = q[step..].as_ptr();
                // SAFETY: a panel has `k_dim` vectors, and `N` queries have words for as many.
                unsafe {
                    each!(p in P, 0 1 2 3 => {
                        let key = a.keys::<E>(keys[p], k_dim, run * RUN + step, scale[p]);
                        each!(c in N => {
                            sums[p][c] = a.mul_add(key, a.splat(q.add(c * STRIDE)), sums[p][c]);
                        });
                    });
                }
            }
        }
        let to = &mut self.scores[place * LANES..];
        assert!((N - 1) * STRIDE + P * LANES <= to.len());
        let to = to.as_mut_ptr();
        each!(c in N => {
            let factor = q[c * STRIDE + RUN];
            each!(p in P, 0 1 2 3 => {
                let score = a.score(sums[p][c], scale[p], factor);
                // SAFETY: asserted.
                unsafe { s.store(to.add(c * STRIDE + p * LANES), score) };
            });
        });
    }

    #[inline(always)]
    fn values_of<const N: usize, const D: usize>(&mut self, panels: &[Panel]) {
        let vectors = self.attention.kv.v_stride() / LANES;
        let whole = vectors / D * D;
        let turns = whole / D + vectors - whole;
        let lines = self.ahead.lines_each(KEYS / A::Outputs::DEPTH * turns);
        for first in (0..whole).step_by(D) {
            self.add_values::<N, D>(panels, first, lines);
        }
        for first in whole..vectors {
            self.add_values::<N, 1>(panels, first, lines);
        }
    }

    /// Adds the weighted values of a block to `D` vectors of the output of `N` queries. Asks for so many lines
    /// with each row.
    #[inline(always)]
    fn add_values<const N: usize, const D: usize>(
        &mut self,
        panels: &[Panel],
        first: usize,
        lines: usize,
    ) {
        let (a, s, kv) = (self.a.outputs(), self.a.simd(), self.attention.kv);
        let state = &mut self.states[self.head];
        let (v_stride, stride) = (kv.v_stride(), state.sums_stride);
        let so_far = &mut state.sums[first * LANES..];
        assert!((N - 1) * stride + D * LANES <= so_far.len());
        let so_far = so_far.as_mut_ptr();
        let factors = &self.factors[..N];
        let mut sums = [[s.splat(0.0); N]; D];
        each!(c in N => each!(d in D, 0 1 2 3 => {
            // SAFETY: asserted.
            let before = unsafe { s.load(so_far.add(c * stride + d * LANES)) };
            sums[d][c] = s.mul(before, s.splat(factors[c]));
        }));
        for (place, panel) in panels.iter().enumerate() {
            let weights = self.scores[place * LANES / A::Outputs::DEPTH..].as_ptr();
            for (word, rows) in value_rows(kv, self.tile.kv_head, panel, A::Outputs::DEPTH) {
                self.ahead.ask(s, lines);
                // SAFETY: a row has `v_stride / 16` vectors, a query words for 64 weights.
                unsafe {
                    let mut value = [a.values::<E>(rows, v_stride, first); D];
                    each!(d in D, 1 2 3 => {
                        value[d] = a.values::<E>(rows, v_stride, first + d);
                    });
                    each!(c in N => {
                        let weight = a.splat(weights.add(c * STRIDE + word));
                        each!(d in D, 0 1 2 3 => {
                            sums[d][c] = a.mul_add(value[d], weight, sums[d][c]);
                        });
                    });
                }
            }
        }
        each!(c in N => each!(d in D, 0 1 2 3 => {
            // SAFETY: asserted.
            unsafe { s.store(so_far.add(c * stride + d * LANES), sums[d][c]) };
        }));
    }
}
