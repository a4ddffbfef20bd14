//! Operations that choose: experts, rows that go on to the head, rows that are pooled.
//!
//! They are small beside the products, and plain. Must not know weights other than vectors.

use fornax_backend::{Pooled, Pooling, RouteSpec, RowSpan, Scoring};

use crate::weight::Weight;

/// Ids and weights of the chosen experts, highest score first, ties by lower id. `logits` is
/// `[n, experts]`, `ids` and `weights` `[n, used]`.
pub(crate) fn route(
    ids: &mut [u32],
    weights: &mut [f32],
    logits: &[f32],
    spec: &RouteSpec<'_, Weight>,
) {
    let bias = spec.selection_bias.map(Weight::vector);
    let rows = logits.chunks_exact(spec.experts);
    let chosen = ids
        .chunks_exact_mut(spec.used)
        .zip(weights.chunks_exact_mut(spec.used));
    for (logits, (ids, weights)) in rows.zip(chosen) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        let score = |expert: usize| match spec.scoring {
            Scoring::Softmax => (logits[expert] - largest).exp() / total,
            Scoring::Sigmoid => 1.0 / (1.0 + (-logits[expert]).exp()),
        };
        let rank = |expert: usize| score(expert) + bias.map_or(0.0, |bias| bias[expert]);
        choose(ids, spec.experts, rank);
        for (weight, id) in weights.iter_mut().zip(&*ids) {
            *weight = score(*id as usize);
        }
        let sum: f32 = weights.iter().sum();
        let factor = if spec.normalise {
            spec.scale / sum
        } else {
            spec.scale
        };
        weights.iter_mut().for_each(|weight| *weight *= factor);
    }
}

/// The experts of the highest ranks, in order.
fn choose(ids: &mut [u32], experts: usize, rank: impl Fn(usize) -> f32) {
    for chosen in 0..ids.len() {
        let (taken, rest) = ids.split_at_mut(chosen);
        let left = (0..experts).filter(|expert| !taken.contains(&(*expert as u32)));
        let best = left.map(|expert| (expert, rank(expert)));
        let best = best.reduce(|best, next| if next.1 > best.1 { next } else { best });
        rest[0] = best.expect("route: fewer experts than are used").0 as u32;
    }
}

/// Collects rows. `x` is `[tokens, width]`, `out` `[indices, width]`.
pub(crate) fn gather(out: &mut [f32], x: &[f32], width: usize, indices: &[usize]) {
    for (out, index) in out.chunks_exact_mut(width).zip(indices) {
        out.copy_from_slice(&x[index * width..(index + 1) * width]);
    }
}

/// One vector for each pooled row. `x` is `[tokens, width]`, `out` `[pooled, width]`.
pub(crate) fn pool(out: &mut [f32], x: &[f32], width: usize, rows: &[RowSpan], pooled: &[Pooled]) {
    for (out, pooled) in out.chunks_exact_mut(width).zip(pooled) {
        let row = rows[pooled.row];
        let of_row = &x[row.start * width..(row.start + row.len) * width];
        match pooled.pooling {
            Pooling::Last => out.copy_from_slice(&of_row[of_row.len() - width..]),
            Pooling::Mean => {
                out.fill(0.0);
                for x in of_row.chunks_exact(width) {
                    out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
                }
                out.iter_mut().for_each(|out| *out /= row.len as f32);
            }
        }
    }
}
