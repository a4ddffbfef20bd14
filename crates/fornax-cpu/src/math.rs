//! Exponentials, sigmoid and tanh of vectors. Must not know operations.

use fornax_backend::Activation;

use crate::simd::Simd;

/// `e^x` within about 2 units in the last place; 0 below -87, where `f32` begins to lose bits, and
/// its largest power above 88.
///
/// `x = k ln 2 + f` with whole `k` and `|f| ≤ ln 2 / 2`; a Taylor polynomial gives `e^f`.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const LOWEST: f32 = -87.0;
    // ln 2 in two parts, the first with zeros at its end so that k times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const TAYLOR: [f32; 6] = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0];
    let clamped = s.min(s.max(x, s.splat(LOWEST)), s.splat(88.0));
    let whole = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let f = s.mul_add(whole, s.splat(-LN_2_HIGH), clamped);
    let f = s.mul_add(whole, s.splat(-LN_2_LOW), f);
    let mut sum = s.splat(1.0 / 5040.0);
    for coefficient in TAYLOR {
        sum = s.mul_add(sum, f, s.splat(coefficient));
    }
    let sum = s.mul_add(sum, f, s.splat(1.0));
    let power = s.mul(sum, s.power_of_two(whole));
    s.select_below(x, LOWEST, s.splat(0.0), power)
}

/// `1 / (1 + e^-x)`
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `tanh x = 1 - 2 / (e^2x + 1)`, within about 1e-7 of it.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let one = s.splat(1.0);
    let power = exp(s, s.add(x, x));
    s.sub(one, s.div(s.splat(2.0), s.add(power, one)))
}

/// `activation(gate) * up`
#[inline(always)]
pub(crate) fn glu<S: Simd>(s: S, activation: Activation, gate: S::F32, up: S::F32) -> S::F32 {
    match activation {
        Activation::Silu => s.mul(s.mul(gate, sigmoid(s, gate)), up),
        Activation::GeluTanh => {
            const SQRT_2_OVER_PI: f32 = 0.797_884_6;
            let cube = s.mul(s.mul(gate, gate), gate);
            let inner = s.mul_add(cube, s.splat(0.044_715), gate);
            let tanh = tanh(s, s.mul(inner, s.splat(SQRT_2_OVER_PI)));
            let half = s.mul(gate, s.splat(0.5));
            s.mul(s.mul_add(half, tanh, half), up)
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let gate = s.min(gate, s.splat(limit));
            let up = s.max(s.min(up, s.splat(limit)), s.splat(-limit));
            let gated = s.mul(gate, sigmoid(s, s.mul(gate, s.splat(alpha))));
            s.mul_add(gated, up, gated)
        }
    }
}
