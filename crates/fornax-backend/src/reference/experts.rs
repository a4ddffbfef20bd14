//! Mixture of experts: who is chosen, and what the chosen ones compute.

use super::elementwise::{glu, sigmoid};
use super::linear::linear;
use super::memory::Weight;
use crate::{ExpertGroups, ExpertsSpec, RouteSpec, Scoring};

/// See [`Backend::route`](crate::Backend::route).
pub(super) fn route(
    ids: &mut [u32],
    weights: &mut [f32],
    logits: &[f32],
    spec: RouteSpec<'_, Weight>,
    n: usize,
) {
    assert!(spec.used <= spec.experts, "route: more used than there are");
    let bias = spec.selection_bias.map(Weight::vector);
    let ids = ids[..n * spec.used].chunks_exact_mut(spec.used);
    let weights = weights[..n * spec.used].chunks_exact_mut(spec.used);
    let logits = logits[..n * spec.experts].chunks_exact(spec.experts);
    for (logits, (ids, weights)) in logits.zip(ids.zip(weights)) {
        let scores = score(logits, spec.scoring);
        let biased =
            |expert: usize| scores[expert] + bias.as_ref().map_or(0.0, |bias| bias[expert]);
        let mut ranks: Vec<f32> = (0..spec.experts).map(biased).collect();
        if let Some(groups) = spec.groups {
            close_groups(&mut ranks, groups);
        }
        let mut order: Vec<usize> = (0..spec.experts).collect();
        // Stable, so that equal scores stay in the order of their ids.
        order.sort_by(|a, b| ranks[*b].total_cmp(&ranks[*a]));
        for ((id, weight), &expert) in ids.iter_mut().zip(weights.iter_mut()).zip(&order) {
            *id = expert as u32;
            *weight = scores[expert];
        }
        let sum: f32 = match spec.normalise {
            true => weights.iter().sum(),
            false => 1.0,
        };
        for weight in weights {
            *weight = *weight / sum * spec.scale;
        }
    }
}

/// Puts the experts of all but the highest groups behind every other.
fn close_groups(ranks: &mut [f32], groups: ExpertGroups) {
    let size = ranks.len() / groups.count;
    let sum = |group: &[f32]| -> f32 {
        let mut group = group.to_vec();
        group.sort_by(|a, b| b.total_cmp(a));
        group[..groups.summed].iter().sum()
    };
    let sums: Vec<f32> = ranks.chunks_exact(size).map(sum).collect();
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|a, b| sums[*b].total_cmp(&sums[*a]));
    for &closed in &order[groups.open..] {
        ranks[closed * size..(closed + 1) * size].fill(f32::NEG_INFINITY);
    }
}

fn score(logits: &[f32], scoring: Scoring) -> Vec<f32> {
    match scoring {
        Scoring::Sigmoid => logits.iter().map(|logit| sigmoid(*logit)).collect(),
        Scoring::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut scores: Vec<f32> = logits.iter().map(|logit| (logit - max).exp()).collect();
            let sum: f32 = scores.iter().sum();
            scores.iter_mut().for_each(|score| *score /= sum);
            scores
        }
    }
}

/// The experts of each token and their weights, both `[n, used]`.
#[derive(Clone, Copy)]
pub(super) struct Chosen<'a> {
    pub ids: &'a [u32],
    pub weights: &'a [f32],
}

/// See [`Backend::experts`](crate::Backend::experts). Expert by expert, so that each weight row
/// is unpacked once for all tokens that chose it.
pub(super) fn experts(
    out: &mut [f32],
    x: &[f32],
    chosen: Chosen<'_>,
    gate_up: &Weight,
    down: &Weight,
    spec: ExpertsSpec<'_, Weight>,
) {
    let ExpertsSpec { width, hidden, .. } = spec;
    assert_eq!(
        (gate_up.rows(), gate_up.cols()),
        (2 * hidden, width),
        "experts: gate_up"
    );
    assert_eq!((down.rows(), down.cols()), (width, hidden), "experts: down");
    let biases = spec.biases.map(|biases| {
        let [gate_up, down] = [biases.gate_up, biases.down].map(Weight::vector);
        let lengths = (gate_up.len(), down.len());
        let expected = (spec.experts * 2 * hidden, spec.experts * width);
        assert_eq!(lengths, expected, "experts: biases");
        (gate_up, down)
    });
    let n = chosen.ids.len() / spec.used;
    out[..n * width].fill(0.0);
    for expert in 0..spec.experts {
        let of_expert = |index: &usize| chosen.ids[*index] as usize == expert;
        let places: Vec<usize> = (0..chosen.ids.len()).filter(of_expert).collect();
        let token = |place: &usize| place / spec.used;
        let row = |place| &x[token(place) * width..(token(place) + 1) * width];
        let tokens: Vec<f32> = places.iter().flat_map(row).copied().collect();
        let mut projected = vec![0.0; places.len() * 2 * hidden];
        let bias = biases
            .as_ref()
            .map(|(bias, _)| &bias[expert * 2 * hidden..][..2 * hidden]);
        linear(&mut projected, gate_up, expert, bias, &tokens, places.len());
        let mut activated = vec![0.0; places.len() * hidden];
        let rows = projected.chunks_exact(2 * hidden);
        for (activated, row) in activated.chunks_exact_mut(hidden).zip(rows) {
            glu(activated, row, spec.activation);
        }
        let mut answers = vec![0.0; places.len() * width];
        let bias = biases
            .as_ref()
            .map(|(_, bias)| &bias[expert * width..][..width]);
        linear(&mut answers, down, expert, bias, &activated, places.len());
        for (place, answer) in places.iter().zip(answers.chunks_exact(width)) {
            let out = &mut out[token(place) * width..(token(place) + 1) * width];
            for (out, answer) in out.iter_mut().zip(answer) {
                *out += chosen.weights[*place] * answer;
            }
        }
    }
}
