//! Operations on one row or one head at a time: norm, rotation, activation, mean.

use std::f32::consts::FRAC_2_PI;

use super::linear::dot;
use crate::{Activation, Heads, RopeStyle};

/// The heads in one token's row.
pub(super) fn heads_mut(row: &mut [f32], heads: Heads) -> impl Iterator<Item = &mut [f32]> {
    let columns = heads.offset..heads.offset + heads.count * heads.dim;
    row[columns].chunks_exact_mut(heads.dim)
}

/// `x / sqrt(mean(x²) + eps) * weight`, in place.
pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    assert_eq!(x.len(), weight.len(), "rms_norm: length of the weight");
    let mean = dot(x, x) / x.len() as f32;
    let factor = 1.0 / (mean + eps).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x *= factor * weight;
    }
}

/// Turns the leading elements of a head, pair by pair. `frequencies` is `[rotary / 2]`.
pub(super) fn rope(
    head: &mut [f32],
    position: usize,
    frequencies: &[f32],
    style: RopeStyle,
    magnitude: f32,
) {
    for (pair, frequency) in frequencies.iter().enumerate() {
        let (first, second) = match style {
            RopeStyle::HalfSplit => (pair, pair + frequencies.len()),
            RopeStyle::AdjacentPairs => (2 * pair, 2 * pair + 1),
        };
        let (sine, cosine) = (position as f32 * frequency).sin_cos();
        let (sine, cosine) = (sine * magnitude, cosine * magnitude);
        let (x, y) = (head[first], head[second]);
        head[first] = x * cosine - y * sine;
        head[second] = x * sine + y * cosine;
    }
}

/// `out = activation(gate) * up`. `gate_up` is `[2 * width]`, gate first; `out` `[width]`.
pub(super) fn glu(out: &mut [f32], gate_up: &[f32], activation: Activation) {
    let (gate, up) = gate_up.split_at(out.len());
    for (out, (&gate, &up)) in out.iter_mut().zip(gate.iter().zip(up)) {
        *out = match activation {
            Activation::Silu => gate * sigmoid(gate) * up,
            Activation::GeluTanh => gelu_tanh(gate) * up,
            Activation::ClampedSwiglu { alpha, limit } => {
                let gate = gate.min(limit);
                gate * sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1.0)
            }
        };
    }
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The tanh approximation of `x · Φ(x)` (Hendrycks & Gimpel 2016, arXiv:1606.08415).
fn gelu_tanh(x: f32) -> f32 {
    let inner = FRAC_2_PI.sqrt() * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// The mean of the rows of `x` `[rows, width]`. `out` is `[width]`.
pub(super) fn mean(out: &mut [f32], x: &[f32]) {
    let rows = x.len() / out.len();
    out.fill(0.0);
    for row in x.chunks_exact(out.len()) {
        for (out, x) in out.iter_mut().zip(row) {
            *out += x;
        }
    }
    out.iter_mut().for_each(|out| *out /= rows as f32);
}
