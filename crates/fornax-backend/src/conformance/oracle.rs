//! What each operation must give, in `f64` and in the most obvious code.
//!
//! Shares no code with any backend: an error would have to be made twice.

pub(crate) mod sampling;

use crate::{Activation, ExpertGroups, RopeStyle, Scoring};

/// `x / sqrt(mean(x²) + eps) * weight`
pub(super) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mut squares = 0.0;
    for value in x {
        squares += value * value;
    }
    let root = (squares / x.len() as f64 + eps).sqrt();
    (0..x.len()).map(|i| x[i] / root * weight[i]).collect()
}

/// `x · weightᵀ + bias`. `x` is `[n, cols]`, `weight` `[rows, cols]`, the answer `[n, rows]`.
pub(super) fn linear(x: &[f64], weight: &[f64], bias: Option<&[f64]>, cols: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks(cols) {
        for (row, weight) in weight.chunks(cols).enumerate() {
            out.push(bias.map_or(0.0, |bias| bias[row]) + dot(weight, x));
        }
    }
    out
}

/// `a · b`, by eight sums of which none waits for another: the suite spends its time here.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "factors of a product");
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for i in 0..a.len() {
            sums[i] += a[i] * b[i];
        }
    }
    sums.iter().sum()
}

/// The norm that a product of unrelated factors would have: `sqrt(Σ ‖x‖² ‖w‖² / cols)`.
pub(super) fn natural_norm(x: &[f64], weight: &[f64], cols: usize) -> f64 {
    let squares = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>();
    (squares(x) * squares(weight) / cols as f64).sqrt()
}

/// Turns one head. The angle is the `f32` product that models are trained with.
pub(super) fn rope(
    head: &[f64],
    position: usize,
    frequencies: &[f32],
    style: RopeStyle,
    magnitude: f64,
) -> Vec<f64> {
    let mut out = head.to_vec();
    let half = frequencies.len();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = match style {
            RopeStyle::HalfSplit => (i, i + half),
            RopeStyle::AdjacentPairs => (2 * i, 2 * i + 1),
        };
        let angle = f64::from(position as f32 * frequency);
        out[a] = magnitude * (head[a] * angle.cos() - head[b] * angle.sin());
        out[b] = magnitude * (head[b] * angle.cos() + head[a] * angle.sin());
    }
    out
}

/// `activation(gate) * up`; `gate_up` holds both, gate first.
pub(super) fn glu(gate_up: &[f64], activation: Activation) -> Vec<f64> {
    let width = gate_up.len() / 2;
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let one = |gate: f64, up: f64| match activation {
        Activation::Silu => gate * sigmoid(gate) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            gate / 2.0 * (1.0 + inner.tanh()) * up
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let gate = if gate > limit { limit } else { gate };
            let up = up.max(-limit).min(limit);
            gate * sigmoid(alpha * gate) * (up + 1.0)
        }
    };
    (0..width)
        .map(|i| one(gate_up[i], gate_up[width + i]))
        .collect()
}

/// How one query weighs what it sees.
pub(super) struct Query<'a> {
    pub q: &'a [f64],
    pub scale: f64,
    pub soft_cap: Option<f64>,
    pub sink: Option<f64>,
}

impl Query<'_> {
    /// The mean of the values under the softmax of the scores. `seen` holds pairs of K and V.
    pub fn attend(&self, seen: &[(&[f64], &[f64])]) -> Vec<f64> {
        let mut scores = Vec::new();
        for (key, _) in seen {
            let mut score = dot(self.q, key) * self.scale;
            if let Some(cap) = self.soft_cap {
                score = cap * (score / cap).tanh();
            }
            scores.push(score);
        }
        let mut sum = self.sink.map_or(0.0, f64::exp);
        let weights: Vec<f64> = scores.into_iter().map(f64::exp).collect();
        for weight in &weights {
            sum += weight;
        }
        let mut out = vec![0.0; seen[0].1.len()];
        for (weight, (_, value)) in weights.iter().zip(seen) {
            let share = weight / sum;
            for i in 0..out.len() {
                out[i] += share * value[i];
            }
        }
        out
    }
}

/// How one token chooses its experts.
pub(super) struct Router<'a> {
    /// Empty or `[experts]`.
    pub bias: &'a [f64],
    pub used: usize,
    pub scoring: Scoring,
    pub normalise: bool,
    pub scale: f64,
    pub groups: Option<ExpertGroups>,
}

impl Router<'_> {
    /// Experts and weights of one token.
    pub fn route(&self, logits: &[f64]) -> Vec<(u32, f64)> {
        let all: f64 = logits.iter().map(|logit| logit.exp()).sum();
        let score = |expert: usize| match self.scoring {
            Scoring::Softmax => logits[expert].exp() / all,
            Scoring::Sigmoid => 1.0 / (1.0 + (-logits[expert]).exp()),
        };
        let biased = |expert: usize| score(expert) + self.bias.get(expert).unwrap_or(&0.0);
        let ranks: Vec<f64> = (0..logits.len()).map(biased).collect();
        let mut chosen = Vec::new();
        let open = self.open(&ranks);
        for _ in 0..self.used {
            let left = |expert: &usize| open.contains(expert) && !chosen.contains(expert);
            chosen.push(first_highest(&ranks, left));
        }
        let mut sum = 1.0;
        if self.normalise {
            sum = chosen.iter().map(|expert| score(*expert)).sum();
        }
        let weigh = |expert: &usize| (*expert as u32, score(*expert) / sum * self.scale);
        chosen.iter().map(weigh).collect()
    }

    /// Experts of the open groups.
    fn open(&self, ranks: &[f64]) -> Vec<usize> {
        let Some(groups) = self.groups else {
            return (0..ranks.len()).collect();
        };
        let size = ranks.len() / groups.count;
        let mut sums = vec![0.0; groups.count];
        for (group, sum) in sums.iter_mut().enumerate() {
            let mut taken = Vec::new();
            for _ in 0..groups.summed {
                let left = |expert: &usize| expert / size == group && !taken.contains(expert);
                taken.push(first_highest(ranks, left));
            }
            *sum = taken.iter().map(|expert| ranks[*expert]).sum();
        }
        let mut open: Vec<usize> = Vec::new();
        for _ in 0..groups.open {
            open.push(first_highest(&sums, |group| !open.contains(group)));
        }
        (0..ranks.len())
            .filter(|expert| open.contains(&(expert / size)))
            .collect()
    }
}

/// The first of the highest values among the places that count.
fn first_highest(values: &[f64], counts: impl Fn(&usize) -> bool) -> usize {
    let mut places = (0..values.len()).filter(counts);
    let first = places.next().expect("invariant: a place that counts");
    places.fold(first, |best, place| match values[place] > values[best] {
        true => place,
        false => best,
    })
}
