//! One tile of attention: scores, running softmax and weighted values of up to 16 queries, 64 keys
//! at a time (Dao et al. 2022, arXiv:2205.14135; Milakov & Gimelshein 2018, arXiv:1805.02867).
//!
//! Must not know threads. Queries are the columns of a register tile; keys (for scores) and
//! elements of a value (for the output) are its lanes. Blocks of keys begin at multiples of 64
//! positions, wherever a tile does: what is out of sight weighs nothing.

use std::{marker::PhantomData, ops::Range};

use super::{Attention, STRETCH, Tile, divide, fold};
use crate::{
    ahead::Ahead,
    isa::Isa,
    kv::{Element, Kv, with_element},
    math,
    memory::Parts,
    simd::{Kernel, LANES, Simd, each},
};

/// Panels of keys between two updates of the running softmax.
const PANELS: usize = 4;
/// Keys of those panels.
const KEYS: usize = PANELS * LANES;
/// Queries that are through with a block sooner than memory brings the next.
const FEW: usize = 4;

/// Elements of scratch for tiles of up to so many queries.
pub(super) fn scratch_len(queries: usize, kv: &Kv) -> usize {
    let of_each = kv.shape().k_dim + KEYS + 1 + 2 * (2 + kv.v_stride());
    (queries * of_each).next_multiple_of(LANES)
}

/// A tile and where its result goes.
pub(super) struct TileWork<'a> {
    pub attention: &'a Attention<'a>,
    pub tile: &'a Tile,
    /// What this thread most likely computes next.
    pub next: Option<&'a Tile>,
    /// Of [`scratch_len`].
    pub scratch: &'a mut [f32],
    pub out: Parts<'a, f32>,
    /// Largest score, sum and output of each query. `[queries][2 + v_stride]`
    pub partial: Option<&'a mut [f32]>,
}

impl TileWork<'_> {
    /// # Safety
    /// Nobody else has the outputs of these queries.
    pub unsafe fn compute(self, isa: Isa) {
        let element = self.attention.kv.shape().element;
        with_element!(element, E => isa.run(Typed::<E>(self, PhantomData)));
    }
}

/// A tile whose element type is known.
struct Typed<'a, E>(TileWork<'a>, PhantomData<E>);

impl<E: Element> Kernel for Typed<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.0.tile.queries.next_power_of_two() {
            1 => Flash::<S, E, 1>::run(s, self.0),
            2 => Flash::<S, E, 2>::run(s, self.0),
            4 if const { S::COLUMNS >= 4 } => Flash::<S, E, 4>::run(s, self.0),
            8 if const { S::COLUMNS >= 8 } => Flash::<S, E, 8>::run(s, self.0),
            16 if const { S::COLUMNS >= 16 } => Flash::<S, E, 16>::run(s, self.0),
            width => unreachable!("a tile of {width} queries"),
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

/// Up to 16 keys that lie side by side.
#[derive(Clone, Copy)]
struct Panel {
    page: usize,
    /// Panel of the page.
    index: usize,
    /// Position of lane 0.
    base: usize,
    /// First lane inside of the positions of a stretch.
    first: usize,
    /// Behind the last one.
    end: usize,
}

/// A tile of `N` queries, some of which may be padding, at work.
struct Flash<'a, S: Simd, E, const N: usize> {
    s: S,
    attention: &'a Attention<'a>,
    tile: Tile,
    /// Scaled, zero for padding. `[k_dim][N]`
    q: &'a mut [f32],
    /// Scores, then weights. `[N][64 keys]`
    scores: &'a mut [f32],
    /// What the output so far has to be multiplied with. `[N]`
    factors: &'a mut [f32],
    /// Of this stretch: largest score, sum of weights, output so far. `[N][2 + v_stride]`
    sums: &'a mut [f32],
    /// Of the stretches before it, likewise.
    totals: &'a mut [f32],
    /// K and V of the block after this one.
    ahead: [Ahead; 2],
    element: PhantomData<E>,
}

impl<'a, S: Simd, E: Element, const N: usize> Flash<'a, S, E, N> {
    #[inline(always)]
    fn run(s: S, work: TileWork<'a>) {
        let TileWork {
            attention,
            tile,
            next,
            scratch,
            out,
            partial,
        } = work;
        let mut flash = Self::new(s, attention, *tile, scratch);
        let mut stretches = stretches(tile).peekable();
        while let Some(stretch) = stretches.next() {
            flash.begin(&stretch);
            let panels = panels(attention, &stretch);
            let behind = stretches.peek().or(next);
            for first in panels.clone().step_by(PANELS) {
                flash.look_ahead(&stretch, first + PANELS, behind);
                flash.block(&stretch, first, PANELS.min(panels.end - first));
            }
            flash.end();
        }
        flash.finish(out, partial);
    }

    /// Packs the queries.
    #[inline(always)]
    fn new(s: S, attention: &'a Attention<'a>, tile: Tile, scratch: &'a mut [f32]) -> Self {
        let (k_dim, v_stride) = (attention.kv.shape().k_dim, attention.kv.v_stride());
        let (scores, rest) = scratch.split_at_mut(N * KEYS);
        let (q, rest) = rest.split_at_mut(N * k_dim);
        let (factors, rest) = rest.split_at_mut(N);
        let (sums, rest) = rest.split_at_mut(N * (2 + v_stride));
        let totals = &mut rest[..N * (2 + v_stride)];
        let (spec, group) = (&attention.spec, attention.group());
        q.fill(0.0);
        for query in 0..tile.queries {
            let place = tile.first + query;
            let token = tile.row.start + place / group;
            let head = tile.kv_head * group + place % group;
            let start = token * spec.q.stride + spec.q.offset + head * spec.q.dim;
            let from = &attention.q[start..start + k_dim];
            let to = q[query..].iter_mut().step_by(N);
            to.zip(from).for_each(|(to, from)| *to = from * spec.scale);
        }
        for total in totals.chunks_exact_mut(2 + v_stride) {
            total[0] = f32::NEG_INFINITY;
        }
        let (ahead, element) = ([Ahead::nothing(); 2], PhantomData);
        Self {
            s,
            attention,
            tile,
            q,
            scores,
            factors,
            sums,
            totals,
            ahead,
            element,
        }
    }

    /// Starts the softmax of a stretch of a tile that these queries belong to.
    #[inline(always)]
    fn begin(&mut self, stretch: &Tile) {
        let (spec, group) = (&self.attention.spec, self.attention.group());
        let (tile, v_stride) = (&self.tile, self.attention.kv.v_stride());
        let first_seen = self
            .attention
            .first_seen(tile.row.cached + stretch.first / group);
        self.sums.fill(0.0);
        let sums = self.sums.chunks_exact_mut(2 + v_stride);
        for (query, sums) in sums.enumerate() {
            let place = tile.first + query;
            sums[0] = f32::NEG_INFINITY;
            // A sink is one more score; of the stretches of a context the first one takes it.
            if let Some(sinks) = spec.sinks
                && stretch.start == first_seen
                && query < tile.queries
            {
                sums[0] = sinks.vector()[tile.kv_head * group + place % group];
                sums[1] = 1.0;
            }
        }
    }

    /// Adds the stretch to those before it.
    #[inline(always)]
    fn end(&mut self) {
        let each = 2 + self.attention.kv.v_stride();
        let totals = self.totals.chunks_exact_mut(each);
        for (total, part) in totals.zip(self.sums.chunks_exact(each)) {
            fold(total, part);
        }
    }

    /// Goes on over `count` panels of a stretch.
    #[inline(always)]
    fn block(&mut self, stretch: &Tile, first: usize, count: usize) {
        let panels = panels_from(self.attention, stretch, first, count);
        let panels = &panels[..count];
        if const { at_once(S::COLUMNS, N) == 4 } {
            self.scores_of::<4>(panels);
        } else if const { at_once(S::COLUMNS, N) == 2 } {
            self.scores_of::<2>(panels);
        } else {
            self.scores_of::<1>(panels);
        }
        self.softmax(panels);
        if const { at_once(S::COLUMNS, N) == 4 } {
            self.values_of::<4>(panels);
        } else if const { at_once(S::COLUMNS, N) == 2 } {
            self.values_of::<2>(panels);
        } else {
            self.values_of::<1>(panels);
        }
        let rest = self.ahead.iter_mut();
        rest.for_each(|ahead| ahead.ask_for_all(self.s));
    }

    /// Has K and V of the block that begins with a panel asked for while this one is computed.
    /// Behind the last panel of its stretch that is the first block of another tile.
    #[inline(always)]
    fn look_ahead(&mut self, stretch: &Tile, panel: usize, behind: Option<&Tile>) {
        let attention = self.attention;
        let kv = attention.kv;
        let next = match panel < panels(attention, stretch).end {
            true => Some((stretch, panel)),
            false => behind.map(|tile| (tile, panels(attention, tile).start)),
        };
        let Some((tile, panel)) = next.filter(|_| N <= FEW) else {
            return;
        };
        let Panel { page, index, .. } = panel_of(attention, tile, panel);
        let count = PANELS.min(kv.panels() - index);
        let tokens = (count * LANES).min(kv.shape().page_size - index * LANES);
        self.ahead = [
            Ahead::of(kv.k_panels(page, tile.kv_head, index, count)),
            Ahead::of(kv.v_rows(page, tile.kv_head, index * LANES, tokens)),
        ];
    }

    #[inline(always)]
    fn scores_of<const P: usize>(&mut self, panels: &[Panel]) {
        let whole = panels.len() / P * P;
        for first in (0..whole).step_by(P) {
            self.dot_panels::<P>(&panels[first..first + P], first);
        }
        for first in whole..panels.len() {
            self.dot_panels::<1>(&panels[first..first + 1], first);
        }
    }

    /// Scores of `P` panels, the first of which is number `place` of the block.
    #[inline(always)]
    fn dot_panels<const P: usize>(&mut self, panels: &[Panel], place: usize) {
        let (s, kv) = (self.s, self.attention.kv);
        let k_dim = kv.shape().k_dim;
        let mut keys = [std::ptr::null(); P];
        for (keys, panel) in keys.iter_mut().zip(panels) {
            *keys = kv
                .k_panel(panel.page, self.tile.kv_head, panel.index)
                .as_ptr();
        }
        let mut sums = [[s.splat(0.0); N]; P];
        let lines = self.ahead[0].lines_each(k_dim);
        for (step, q) in self.q.chunks_exact(N).enumerate() {
            if N <= FEW {
                self.ahead[0].ask(s, lines);
            }
            each!(p in P, 0 1 2 3 => {
                // SAFETY: a panel has `k_dim` vectors, `q` as many rows.
                let key = unsafe { E::key(s, keys[p], k_dim, step) };
                each!(c in N => sums[p][c] = s.mul_add(key, s.splat(q[c]), sums[p][c]));
            });
        }
        each!(p in P, 0 1 2 3 => each!(c in N => {
            s.write(&mut self.scores[c * KEYS + (place + p) * LANES..], sums[p][c]);
        }));
    }

    /// Turns the scores of a block into weights and updates the running softmax.
    #[inline(always)]
    fn softmax(&mut self, panels: &[Panel]) {
        let (s, each) = (self.s, 2 + self.attention.kv.v_stride());
        for query in 0..self.tile.queries {
            let scores = &mut self.scores[query * KEYS..(query + 1) * KEYS];
            let position =
                self.tile.row.cached + (self.tile.first + query) / self.attention.group();
            let first_seen = self.attention.first_seen(position);
            let [so_far, sum_so_far, ..] = &mut self.sums[query * each..] else {
                unreachable!("a query has sums")
            };
            let mut largest = s.splat(*so_far);
            for (scores, panel) in scores.chunks_exact_mut(LANES).zip(panels) {
                let mut score = s.read(scores);
                if let Some(cap) = self.attention.spec.soft_cap {
                    let tanh = math::tanh(s, s.mul(score, s.splat(1.0 / cap)));
                    score = s.mul(tanh, s.splat(cap));
                }
                let end = panel.end.min((position + 1).saturating_sub(panel.base));
                let first = panel
                    .first
                    .max(first_seen.saturating_sub(panel.base))
                    .min(end);
                let score = s.keep_lanes(score, first, end, f32::NEG_INFINITY);
                s.write(scores, score);
                largest = s.max(largest, score);
            }
            let largest = s.largest(largest);
            let scores = scores.chunks_exact_mut(LANES).take(panels.len());
            if largest == f32::NEG_INFINITY {
                // Nothing in sight yet.
                scores.for_each(|scores| scores.fill(0.0));
                self.factors[query] = 1.0;
                continue;
            }
            let mut sum = s.splat(0.0);
            for scores in scores {
                let weight = math::exp(s, s.sub(s.read(scores), s.splat(largest)));
                s.write(scores, weight);
                sum = s.add(sum, weight);
            }
            let factor = (*so_far - largest).exp();
            self.factors[query] = factor;
            *sum_so_far = *sum_so_far * factor + s.sum(sum);
            *so_far = largest;
        }
    }

    #[inline(always)]
    fn values_of<const D: usize>(&mut self, panels: &[Panel]) {
        let vectors = self.attention.kv.v_stride() / LANES;
        let whole = vectors / D * D;
        let lines = self.ahead[1].lines_each(KEYS * vectors.div_ceil(D));
        for first in (0..whole).step_by(D) {
            self.add_values::<D>(panels, first, lines);
        }
        for first in whole..vectors {
            self.add_values::<1>(panels, first, lines);
        }
    }

    /// Adds the weighted values of a block to `D` vectors of the output, and asks for so many lines
    /// of the next block with each row.
    #[inline(always)]
    fn add_values<const D: usize>(&mut self, panels: &[Panel], first: usize, lines: usize) {
        let (s, kv) = (self.s, self.attention.kv);
        let v_stride = kv.v_stride();
        let mut sums = [[s.splat(0.0); N]; D];
        each!(c in N => each!(d in D, 0 1 2 3 => {
            let so_far = s.read(&self.sums[c * (2 + v_stride) + 2 + (first + d) * LANES..]);
            sums[d][c] = s.mul(so_far, s.splat(self.factors[c]));
        }));
        for (place, panel) in panels.iter().enumerate() {
            let token = panel.index * LANES + panel.first;
            let count = panel.end - panel.first;
            let rows = kv.v_rows(panel.page, self.tile.kv_head, token, count);
            let weights = self.scores[place * LANES + panel.first..].as_ptr();
            for (row, values) in rows.chunks_exact(kv.v_row_bytes()).enumerate() {
                if N <= FEW {
                    self.ahead[1].ask(s, lines);
                }
                let mut value = [s.splat(0.0); D];
                each!(d in D, 0 1 2 3 => {
                    // SAFETY: a row has `v_stride / 16` vectors.
                    value[d] = unsafe { E::value(s, values.as_ptr(), v_stride, first + d) };
                });
                each!(c in N => {
                    // SAFETY: a query has 64 weights, `row` counts from the panel's first one.
                    let weight = s.splat(unsafe { *weights.add(c * KEYS + row) });
                    each!(d in D, 0 1 2 3 => sums[d][c] = s.mul_add(value[d], weight, sums[d][c]));
                });
            }
        }
        each!(c in N => each!(d in D, 0 1 2 3 => {
            s.write(&mut self.sums[c * (2 + v_stride) + 2 + (first + d) * LANES..], sums[d][c]);
        }));
    }

    /// Writes what the stretches came to: the output, or for [`join`](super::join).
    #[inline(always)]
    fn finish(&mut self, out: Parts<'_, f32>, partial: Option<&mut [f32]>) {
        let (spec, group) = (&self.attention.spec, self.attention.group());
        let each = 2 + self.attention.kv.v_stride();
        let totals = self.totals.chunks_exact(each).take(self.tile.queries);
        if let Some(partial) = partial {
            let partial = partial.chunks_exact_mut(each);
            partial
                .zip(totals)
                .for_each(|(to, total)| to.copy_from_slice(total));
            return;
        }
        for (query, total) in totals.enumerate() {
            let place = self.tile.first + query;
            let token = self.tile.row.start + place / group;
            let head = self.tile.kv_head * group + place % group;
            let start = (token * spec.q.count + head) * spec.v_dim;
            // SAFETY: `compute` was promised the outputs of these queries.
            divide(total, unsafe { out.part(start, spec.v_dim) });
        }
    }
}

/// The stretches of a tile, as tiles.
fn stretches(tile: &Tile) -> impl Iterator<Item = Tile> {
    let tile = *tile;
    (tile.start / STRETCH..tile.end.div_ceil(STRETCH)).map(move |stretch| Tile {
        start: tile.start.max(stretch * STRETCH),
        end: tile.end.min((stretch + 1) * STRETCH),
        ..tile
    })
}

/// Numbers of the panels that hold the positions of a stretch, from a multiple of [`PANELS`] on.
fn panels(attention: &Attention<'_>, stretch: &Tile) -> Range<usize> {
    let first = number(attention.kv, stretch.start);
    first / PANELS * PANELS..number(attention.kv, stretch.end - 1) + 1
}

/// Number of the panel that holds a position: `page entry * panels of a page + panel`.
fn number(kv: &Kv, position: usize) -> usize {
    let page_size = kv.shape().page_size;
    position / page_size * kv.panels() + position % page_size / LANES
}

/// A panel of a stretch by its number. One before the stretch has no keys, and a place that has: a
/// page that nobody sees may be anywhere.
#[inline(always)]
fn panel_of(attention: &Attention<'_>, stretch: &Tile, wanted: usize) -> Panel {
    let kv = attention.kv;
    let number = wanted.max(number(kv, stretch.start));
    let (entry, index) = (number / kv.panels(), number % kv.panels());
    let page_size = kv.shape().page_size;
    let base = entry * page_size + index * LANES;
    let lanes = LANES.min(page_size - index * LANES);
    let end = match wanted < number {
        true => 0,
        false => lanes.min(stretch.end - base),
    };
    Panel {
        page: attention.tables[stretch.row_index][entry] as usize,
        index,
        base,
        first: stretch.start.saturating_sub(base).min(end),
        end,
    }
}

/// `count` panels of a stretch from a number on; behind them the first one again.
#[inline(always)]
fn panels_from(
    attention: &Attention<'_>,
    stretch: &Tile,
    first: usize,
    count: usize,
) -> [Panel; PANELS] {
    let mut panels = [panel_of(attention, stretch, first); PANELS];
    for (index, panel) in panels.iter_mut().enumerate().take(count).skip(1) {
        *panel = panel_of(attention, stretch, first + index);
    }
    panels
}
