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
        let widest = const { widest(A::Simd::COLUMNS) };
        match self.0.tile.queries.next_power_of_two() {
            1 => Flash::<A, E, 1>::run(a, self.0),
            2 => Flash::<A, E, 2>::run(a, self.0),
            4 if widest >= 4 => Flash::<A, E, 4>::run(a, self.0),
            8 if widest >= 8 => Flash::<A, E, 8>::run(a, self.0),
            width => unreachable!("invariant: no tile has {width} queries"),
        }
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

/// A tile of `N` queries, some of which may be padding, at work.
struct Flash<'a, A, E, const N: usize> {
    a: A,
    attention: &'a Attention<'a>,
    /// Of the head whose turn it is.
    tile: Tile,
    /// Which of the heads that is.
    head: usize,
    /// Of all heads.
    states: [State<'a>; HEADS],
    /// Scores, then weights. `[N][STRIDE]`
    scores: &'a mut [f32],
    /// What the output so far has to be multiplied with. `[16]`
    factors: &'a mut [f32],
    /// What is wanted next.
    ahead: Ahead,
    element: PhantomData<E>,
}

impl<'a, A: Arithmetic, E: Element, const N: usize> Flash<'a, A, E, N> {
    /// Vectors that queries meet at once.
    const AT_ONCE: usize = at_once(A::Simd::COLUMNS, N);

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
        let (scores, rest) = scratch.split_at_mut(N * STRIDE);
        let (factors, rest) = rest.split_at_mut(LANES);
        let mut rest = rest.chunks_exact_mut(State::len(attention.kv, N));
        let states = std::array::from_fn(|_| {
            let state = rest.next();
            let state = state.expect("invariant: scratch has room for all heads");
            State::of(attention.kv, N, state)
        });
        let mut flash = Self {
            a,
            attention,
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
        if const { Self::AT_ONCE == 4 } {
            self.scores_of::<4>(block.panels());
        } else if const { Self::AT_ONCE == 2 } {
            self.scores_of::<2>(block.panels());
        } else {
            self.scores_of::<1>(block.panels());
        }
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
        if const { Self::AT_ONCE == 4 } {
            self.values_of::<4>(block.panels());
        } else if const { Self::AT_ONCE == 2 } {
            self.values_of::<2>(block.panels());
        } else {
            self.values_of::<1>(block.panels());
        }
        self.ahead.ask_for_all(self.a.simd());
    }

    #[inline(always)]
    fn scores_of<const P: usize>(&mut self, panels: &[Panel]) {
        let whole = panels.len() / P * P;
        let turns = whole / P + panels.len() - whole;
        let lines = self
            .ahead
            .lines_each(turns * self.attention.kv.shape().k_dim.div_ceil(A::Scores::DEPTH));
        for first in (0..whole).step_by(P) {
            self.dot_panels::<P>(&panels[first..first + P], first, lines);
        }
        for first in whole..panels.len() {
            self.dot_panels::<1>(&panels[first..first + 1], first, lines);
        }
    }

    /// Scores of `P` panels, the first of which is number `place` of the block. Asks for so many
    /// lines with each element.
    #[inline(always)]
    fn dot_panels<const P: usize>(&mut self, panels: &[Panel], place: usize, lines: usize) {
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
        for (run, q) in self.states[self.head]
            .q
            .chunks_exact(N * STRIDE)
            .enumerate()
        {
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
        each!(p in P, 0 1 2 3 => each!(c in N => {
            let q = &self.states[self.head].q;
            let score = a.score(sums[p][c], scale[p], q[c * STRIDE + RUN]);
            s.write(&mut self.scores[c * STRIDE + (place + p) * LANES..], score);
        }));
    }

    #[inline(always)]
    fn values_of<const D: usize>(&mut self, panels: &[Panel]) {
        let vectors = self.attention.kv.v_stride() / LANES;
        let whole = vectors / D * D;
        let turns = whole / D + vectors - whole;
        let lines = self.ahead.lines_each(KEYS / A::Outputs::DEPTH * turns);
        for first in (0..whole).step_by(D) {
            self.add_values::<D>(panels, first, lines);
        }
        for first in whole..vectors {
            self.add_values::<1>(panels, first, lines);
        }
    }

    /// Adds the weighted values of a block to `D` vectors of the output. Asks for so many lines with
    /// each row.
    #[inline(always)]
    fn add_values<const D: usize>(&mut self, panels: &[Panel], first: usize, lines: usize) {
        let (a, s, kv) = (self.a.outputs(), self.a.simd(), self.attention.kv);
        let state = &mut self.states[self.head];
        let (v_stride, stride) = (kv.v_stride(), state.sums_stride);
        let mut sums = [[s.splat(0.0); N]; D];
        each!(c in N => each!(d in D, 0 1 2 3 => {
            let so_far = s.read(&state.sums[c * stride + (first + d) * LANES..]);
            sums[d][c] = s.mul(so_far, s.splat(self.factors[c]));
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
            s.write(&mut state.sums[c * stride + (first + d) * LANES..], sums[d][c]);
        }));
    }
}
