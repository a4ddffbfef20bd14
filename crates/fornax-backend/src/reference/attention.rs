//! Causal attention in two passes: all scores, then their softmax over the values.

use super::kv::Kv;
use super::linear::dot;
use super::memory::Weight;
use crate::{AttentionSpec, RowSpan};

/// See [`Backend::attention`](crate::Backend::attention). `tables` is `[rows][pages]`.
pub(super) fn attention(
    out: &mut [f32],
    q: &[f32],
    kv: &Kv,
    rows: &[RowSpan],
    tables: &[Vec<u32>],
    spec: AttentionSpec<'_, Weight>,
    n: usize,
) {
    assert_eq!(kv.shape().kv_heads, spec.kv_heads, "attention: KV heads");
    assert_eq!(kv.shape().k_dim, spec.q.dim, "attention: head width");
    assert_eq!(kv.shape().v_dim, spec.v_dim, "attention: V head width");
    assert!(
        spec.q.count.is_multiple_of(spec.kv_heads),
        "attention: heads"
    );
    let group = spec.q.count / spec.kv_heads;
    let sinks = spec.sinks.map(Weight::vector);
    let mut scores = Vec::new();
    for (row, table) in rows.iter().zip(tables) {
        for kv_head in 0..spec.kv_heads {
            let cache = HeadCache::unpack(kv, table, kv_head, row, &spec);
            for token in row.start..(row.start + row.len).min(n) {
                let seen = cache.seen_from(row.cached + token - row.start, spec.window);
                for head in kv_head * group..(kv_head + 1) * group {
                    let start = token * spec.q.stride + spec.q.offset + head * spec.q.dim;
                    let q = &q[start..start + spec.q.dim];
                    let sink = sinks.as_ref().map(|sinks| sinks[head]);
                    cache.softmax(&mut scores, q, seen.clone(), sink, &spec);
                    let start = (token * spec.q.count + head) * spec.v_dim;
                    cache.weigh(&mut out[start..start + spec.v_dim], &scores, seen.clone());
                }
            }
        }
    }
}

/// What one KV head holds of a sequence, from the first position that any query of the step sees.
struct HeadCache {
    /// Position of the first entry.
    first: usize,
    k_dim: usize,
    /// `[positions, k_dim]`
    k: Vec<f32>,
    /// `[positions, v_dim]`
    v: Vec<f32>,
}

impl HeadCache {
    fn unpack(
        kv: &Kv,
        table: &[u32],
        head: usize,
        row: &RowSpan,
        spec: &AttentionSpec<'_, Weight>,
    ) -> Self {
        let first = first_seen(row.cached, spec.window);
        let positions = first..row.cached + row.len;
        let mut k = vec![0.0; positions.len() * spec.q.dim];
        let mut v = vec![0.0; positions.len() * spec.v_dim];
        let ks = k.chunks_exact_mut(spec.q.dim);
        for (position, (k, v)) in positions.zip(ks.zip(v.chunks_exact_mut(spec.v_dim))) {
            let place = kv.place(table, position);
            kv.read_k(place, head, k);
            kv.read_v(place, head, v);
        }
        Self {
            first,
            k_dim: spec.q.dim,
            k,
            v,
        }
    }

    /// The entries that a query at `position` sees.
    fn seen_from(&self, position: usize, window: Option<usize>) -> std::ops::Range<usize> {
        first_seen(position, window) - self.first..position + 1 - self.first
    }

    /// The probabilities that a query gives the entries it sees.
    fn softmax(
        &self,
        scores: &mut Vec<f32>,
        q: &[f32],
        seen: std::ops::Range<usize>,
        sink: Option<f32>,
        spec: &AttentionSpec<'_, Weight>,
    ) {
        let keys = self.k[seen.start * self.k_dim..seen.end * self.k_dim].chunks_exact(self.k_dim);
        let score = |key: &[f32]| {
            let score = dot(q, key) * spec.scale;
            match spec.soft_cap {
                Some(cap) => cap * (score / cap).tanh(),
                None => score,
            }
        };
        scores.clear();
        scores.extend(keys.map(score));
        let start = sink.unwrap_or(f32::NEG_INFINITY);
        let max = scores.iter().copied().fold(start, f32::max);
        let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
        for score in scores.iter_mut() {
            *score = (*score - max).exp();
            sum += *score;
        }
        scores.iter_mut().for_each(|score| *score /= sum);
    }

    /// The mean of the values under those probabilities. `out` is `[v_dim]`.
    fn weigh(&self, out: &mut [f32], scores: &[f32], seen: std::ops::Range<usize>) {
        let width = out.len();
        out.fill(0.0);
        let values = self.v[seen.start * width..seen.end * width].chunks_exact(width);
        for (score, value) in scores.iter().zip(values) {
            for (out, value) in out.iter_mut().zip(value) {
                *out += score * value;
            }
        }
    }
}

/// The first position that a query at `position` sees.
fn first_seen(position: usize, window: Option<usize>) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}
