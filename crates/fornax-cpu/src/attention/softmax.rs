//! The running softmax of the queries of a tile (Milakov & Gimelshein 2018, arXiv:1805.02867).
//!
//! Owns what a tile keeps from block to block. Must not know how scores are computed or values are
//! added: both [`few`](super::few) and [`many`](super::many) do that, each query by the same
//! operations in the same order.

use super::{
    Attention, STRETCH, Tile,
    arithmetic::{Arithmetic, Outputs, Products, Scores},
    blocks::{KEYS, Panel},
    fold,
};
use crate::{
    ahead::ask_near,
    kv::Kv,
    math,
    memory::Parts,
    simd::{LANES, Simd},
};

/// Words of a query that lie side by side: its scores of a block, or the words of so many elements.
pub(super) const RUN: usize = KEYS;
/// From the words of a query to those of the next: a line more, so that they do not all fall on the
/// same few places of a cache; and known, so that instructions find them without arithmetic.
pub(super) const STRIDE: usize = RUN + LANES;

/// Queries between one and another whose elements, or place, are asked for.
const AHEAD: usize = 4;

/// From the weighted values of a query to those of the next, likewise.
pub(super) fn sums_stride(kv: &Kv) -> usize {
    kv.v_stride() + LANES
}

/// What a tile keeps from block to block.
pub(super) struct State<'a> {
    /// Words of the queries; zero for padding. Behind the first run of each is what makes scores of its
    /// sums. `[runs of words][queries][STRIDE]`
    pub q: &'a mut [f32],
    /// Of this stretch: weighted values, and behind them the weights by lane. `[queries][sums_stride]`
    pub sums: &'a mut [f32],
    /// From the sums of a query to those of the next.
    pub sums_stride: usize,
    /// Largest score of this stretch. `[queries, up to a multiple of 16]`
    largest: &'a mut [f32],
    /// Of the stretches before it: weighted values, largest score, sum of weights.
    /// `[queries][sums_stride]`
    totals: &'a mut [f32],
}

impl<'a> State<'a> {
    /// Elements of the queries, where each is a word, of the sums and of the largest scores.
    fn lens(kv: &Kv, queries: usize) -> [usize; 3] {
        [
            kv.shape().k_dim.div_ceil(RUN) * queries * STRIDE,
            queries * sums_stride(kv),
            queries.next_multiple_of(LANES),
        ]
    }

    /// Elements of scratch for so many queries.
    pub fn len(kv: &Kv, queries: usize) -> usize {
        let [q, sums, largest] = Self::lens(kv, queries);
        q + 2 * sums + largest
    }

    /// Of so many queries; scratch is [`len`](Self::len) elements.
    pub fn of(kv: &Kv, queries: usize, scratch: &'a mut [f32]) -> Self {
        let [q_len, sums_len, largest_len] = Self::lens(kv, queries);
        let (q, rest) = scratch.split_at_mut(q_len);
        let (sums, rest) = rest.split_at_mut(sums_len);
        let (totals, rest) = rest.split_at_mut(sums_len);
        Self {
            q,
            sums,
            sums_stride: sums_stride(kv),
            largest: &mut rest[..largest_len],
            totals,
        }
    }

    /// Takes the queries of a tile and begins with nothing.
    #[inline(always)]
    pub fn start<A: Arithmetic>(&mut self, a: A, attention: &Attention<'_>, tile: &Tile) {
        let spec = &attention.spec;
        let k_dim = attention.kv.shape().k_dim;
        let scores = a.scores();
        let queries = self.sums.len() / self.sums_stride;
        if tile.queries < queries {
            self.q.fill(0.0);
        }
        let elements = |query| {
            let (token, head) = attention.place(tile, query);
            let start = token * spec.q.stride + spec.q.offset + head * spec.q.dim;
            &attention.q[start..start + k_dim]
        };
        for query in 0..tile.queries {
            // Heads of a token lie side by side, but those of another head of K and V between them.
            if query + AHEAD < tile.queries {
                let next: &[f32] = elements(query + AHEAD);
                ask_near(a.simd(), next.as_ptr(), k_dim);
            }
            let from: &[f32] = elements(query);
            let [factor, of_sums] = scores.factors(from, spec.scale);
            self.q[query * STRIDE + RUN] = of_sums;
            let from = from.chunks(RUN * A::Scores::DEPTH);
            let to = self.q.chunks_exact_mut(queries * STRIDE);
            for (from, to) in from.zip(to) {
                let to = to[query * STRIDE..].chunks_exact_mut(LANES);
                for (from, to) in from.chunks(LANES * A::Scores::DEPTH).zip(to) {
                    scores.write(to, scores.words(from, factor));
                }
            }
        }
        for total in self.totals.chunks_exact_mut(self.sums_stride) {
            total[self.sums_stride - LANES] = f32::NEG_INFINITY;
        }
    }

    /// Starts the softmax of a tile over the stretch that a position is in.
    #[inline(always)]
    pub fn begin(&mut self, attention: &Attention<'_>, tile: &Tile, position: usize) {
        self.sums.fill(0.0);
        self.largest.fill(f32::NEG_INFINITY);
        let Some(sinks) = attention.spec.sinks else {
            return;
        };
        // A sink is one more score; of the stretches of a query the first one takes it.
        let rows = self.sums.chunks_exact_mut(self.sums_stride);
        for (query, sums) in rows.enumerate().take(tile.queries) {
            let first_seen = attention.first_seen(attention.position(tile, query));
            if first_seen / STRETCH == position / STRETCH {
                let (_, head) = attention.place(tile, query);
                self.largest[query] = sinks.vector()[head];
                sums[self.sums_stride - LANES] = 1.0;
            }
        }
    }

    /// Turns the scores of a block into weights, which are words then. What was summed so far has to be multiplied with
    /// `factors`, which is as long as there are queries, up to a multiple of 16. `scores` are
    /// `[queries][STRIDE]`.
    #[inline(always)]
    pub fn weigh<A: Arithmetic>(
        &mut self,
        a: A,
        attention: &Attention<'_>,
        tile: &Tile,
        panels: &[Panel],
        scores: &mut [f32],
        factors: &mut [f32],
    ) {
        let s = a.simd();
        if let Some(cap) = attention.spec.soft_cap {
            for scores in scores.chunks_exact_mut(STRIDE).take(tile.queries) {
                for scores in scores.chunks_exact_mut(LANES).take(panels.len()) {
                    let tanh = math::tanh(s, s.mul(s.read(scores), s.splat(1.0 / cap)));
                    s.write(scores, s.mul(tanh, s.splat(cap)));
                }
            }
        }
        if !all_in_sight(attention, tile, panels) {
            hide(s, attention, tile, panels, scores);
        }
        let rows = scores.chunks_exact_mut(STRIDE).take(tile.queries);
        for (scores, next) in rows.zip(factors.iter_mut()) {
            let scores = scores.as_chunks::<LANES>().0.iter().take(panels.len());
            let mut largest = s.splat(f32::NEG_INFINITY);
            scores.for_each(|scores| largest = s.max(largest, s.read(scores)));
            *next = s.largest(largest);
        }
        factors[tile.queries..].fill(f32::NEG_INFINITY);
        let vectors = self.largest.chunks_exact_mut(LANES);
        for (so_far, next) in vectors.zip(factors.chunks_exact_mut(LANES)) {
            let before = s.read(so_far);
            let largest = s.max(before, s.read(next));
            s.write(so_far, largest);
            s.write(next, math::exp(s, s.sub(before, subtrahend(s, largest))));
        }
        let rows = scores.chunks_exact_mut(STRIDE).take(tile.queries);
        let sums = self.sums.chunks_exact_mut(self.sums_stride);
        for (query, (scores, sums)) in rows.zip(sums).enumerate() {
            let largest = subtrahend(s, s.splat(self.largest[query]));
            let sums = &mut sums[self.sums_stride - LANES..];
            let sum = s.mul(s.read(sums), s.splat(factors[query]));
            let sum = a
                .outputs()
                .weigh(&mut scores[..panels.len() * LANES], largest, sum);
            s.write(sums, sum);
        }
    }

    /// Adds the stretch to those before it, unless it is the only one.
    #[inline(always)]
    pub fn end<S: Simd>(&mut self, s: S, is_only: bool) {
        let values = self.sums_stride - LANES;
        let totals = self.totals.chunks_exact_mut(self.sums_stride);
        let sums = self.sums.chunks_exact_mut(self.sums_stride);
        for (largest, (total, part)) in self.largest.iter().zip(totals.zip(sums)) {
            let sum = s.sum(s.read(&part[values..]));
            part[values] = *largest;
            part[values + 1] = sum;
            if !is_only {
                fold(total, part);
            }
        }
    }

    /// Writes what the stretches came to, or the only one: the output, or for [`join`](super::join).
    ///
    /// # Safety
    /// Nobody else has the outputs of these queries.
    #[inline(always)]
    pub unsafe fn finish<S: Simd>(
        &mut self,
        s: S,
        attention: &Attention<'_>,
        tile: &Tile,
        out: Parts<'_, f32>,
        partial: Option<&mut [f32]>,
        is_only: bool,
    ) {
        let totals = match is_only {
            true => &self.sums,
            false => &self.totals,
        };
        let totals = totals.chunks_exact(self.sums_stride).take(tile.queries);
        if let Some(partial) = partial {
            let partial = partial.chunks_exact_mut(self.sums_stride);
            partial
                .zip(totals)
                .for_each(|(to, total)| to.copy_from_slice(total));
            return;
        }
        for (query, total) in totals.enumerate() {
            let start = attention.output(tile, query);
            if query + AHEAD < tile.queries {
                let next = out.at(attention.output(tile, query + AHEAD));
                ask_near(s, next, attention.spec.v_dim);
            }
            // SAFETY: the caller's.
            let out = unsafe { out.part(start, attention.spec.v_dim) };
            let inverse = s.splat(1.0 / total[self.sums_stride - LANES + 1]);
            let values = total.chunks_exact(LANES);
            for (out, values) in out.chunks_mut(LANES).zip(values) {
                let values = s.mul(s.read(values), inverse);
                match out.len() {
                    LANES => s.write(out, values),
                    _ => s.write_up_to(out, values),
                }
            }
        }
    }
}

/// What is taken off scores before they become weights. A query that has nothing in sight yet has no
/// largest score, and -∞ less than -∞ is no number.
#[inline(always)]
fn subtrahend<S: Simd>(s: S, largest: S::F32) -> S::F32 {
    s.max(largest, s.splat(f32::MIN))
}

/// Whether every query of a tile sees all lanes of some panels.
#[inline(always)]
fn all_in_sight(attention: &Attention<'_>, tile: &Tile, panels: &[Panel]) -> bool {
    let (Some(first), Some(last)) = (panels.first(), panels.last()) else {
        return true;
    };
    let whole = |panel: &Panel| (panel.first, panel.end) == (0, LANES);
    panels.iter().all(whole)
        && last.base + LANES <= attention.position(tile, 0) + 1
        && attention.first_seen(attention.position(tile, tile.queries - 1)) <= first.base
}

/// Takes the scores of keys that a query does not see out of the comparison.
#[inline(always)]
fn hide<S: Simd>(
    s: S,
    attention: &Attention<'_>,
    tile: &Tile,
    panels: &[Panel],
    scores: &mut [f32],
) {
    let rows = scores.chunks_exact_mut(STRIDE).take(tile.queries);
    for (query, scores) in rows.enumerate() {
        let position = attention.position(tile, query);
        let first_seen = attention.first_seen(position);
        for (scores, panel) in scores.chunks_exact_mut(LANES).zip(panels) {
            let end = panel.end.min((position + 1).saturating_sub(panel.base));
            let first = panel.first.max(first_seen.saturating_sub(panel.base));
            let score = s.read(scores);
            let score = s.keep_lanes(score, first.min(end), end, f32::NEG_INFINITY);
            s.write(scores, score);
        }
    }
}
