//! The search for scales: which small integers, under which scale, come nearest to given weights.
//!
//! Owns the arithmetic of the formats with groups, and knows no format's bits.
//!
//! Rounding to levels and choosing the scale depend on each other. So a group tries some scales
//! around the one that just covers its values; each gives levels, and for given levels the best
//! scale is a weighted least-squares problem with a closed solution. The winner's scale is then
//! rounded to the block's own steps, which changes the levels again. So the block tries some scales
//! of its own, and solves for better ones in turn. A value counts by its magnitude: what is
//! multiplied with large weights matters more.
//!
//! A great outlier makes the sums of a group large and leaves the others' errors small, so what is
//! subtracted to find an error is summed in double precision.

use super::{SUPER, inverse, of_largest_magnitude, range};

/// The integers that a format can hold.
pub(super) trait Levels {
    /// The least level and the one above it.
    fn lowest(&self) -> [f32; 2];

    /// The level nearest to a value.
    fn nearest(&self, value: f32) -> f32;
}

/// All integers of a range.
pub(super) struct Uniform {
    pub least: i8,
    pub greatest: i8,
}

impl Levels for Uniform {
    fn lowest(&self) -> [f32; 2] {
        [f32::from(self.least), f32::from(self.least + 1)]
    }

    fn nearest(&self, value: f32) -> f32 {
        round(value.clamp(f32::from(self.least), f32::from(self.greatest)))
    }
}

/// A block of groups with signed scales: value = `scale * scales[group] * level`.
pub(super) struct Signed<const GROUPS: usize> {
    /// Exact in half precision.
    pub scale: f32,
    pub scales: [i8; GROUPS],
    pub levels: [i8; SUPER],
}

/// A block of groups with scales and minima: value = `scale * scales[group] * quant - minimum *
/// minima[group]`.
pub(super) struct Offset<const GROUPS: usize> {
    /// Exact in half precision.
    pub scale: f32,
    /// Exact in half precision.
    pub minimum: f32,
    pub scales: [u8; GROUPS],
    pub minima: [u8; GROUPS],
    pub quants: [u8; SUPER],
}

/// How many scales a block of signed groups starts from. Each rounds the largest values, which a
/// great outlier's whole error comes from, in another way.
const SIGNED_STARTS: u8 = 8;
/// The same for groups with minima, which take longer to round.
const OFFSET_STARTS: u8 = 3;
/// How often the scale of a block is then solved for and its groups are rounded again.
const ROUNDS: u8 = 2;
/// How many scales a group tries to each side of the one that covers its values, a tenth of a step
/// of its outermost level apart. Groups with minima try every other one, twice.
const TRIES: i8 = 10;

/// The scale of a block without groups.
pub(super) fn one_scale(values: &[f32], levels: &impl Levels) -> f32 {
    best_scale(values, &weights(values, values.len()), levels)
}

/// Fits groups with signed scales from `least` to `greatest`.
pub(super) fn signed<const GROUPS: usize>(
    values: &[f32],
    levels: &impl Levels,
    least: i8,
    greatest: i8,
) -> Signed<GROUPS> {
    let group = SUPER / GROUPS;
    // These formats have no minimum to give up: errors count most where values are largest.
    let mut weights = weights(values, group);
    for (weight, value) in weights.iter_mut().zip(values) {
        *weight *= value.abs();
    }
    let groups = || values.chunks_exact(group).zip(weights.chunks_exact(group));
    let mut ideal = [0.0; GROUPS];
    for (ideal, (values, weights)) in ideal.iter_mut().zip(groups()) {
        *ideal = best_scale(values, weights, levels);
    }
    let steps = Uniform { least, greatest };
    let largest = of_largest_magnitude(&ideal);
    let mut best = (f32::INFINITY, 0.0, [0.0; GROUPS]);
    let mut solved = 0.0;
    for round in 0..SIGNED_STARTS + ROUNDS {
        let scale = match round {
            0..SIGNED_STARTS => to_half(largest / (f32::from(least) + f32::from(round))),
            _ => solved,
        };
        let (mut error, mut product, mut square) = (0.0, 0.0, 0.0);
        let mut scales = [0.0; GROUPS];
        for (group, (values, weights)) in groups().enumerate() {
            let wanted = ideal[group] * inverse(scale);
            let [below, above] = [wanted.floor(), wanted.floor() + 1.0].map(|x| steps.nearest(x));
            let of = |step: f32| (step, Sums::of(values, weights, scale * step, levels));
            let (below, above) = (of(below), of(above));
            let (step, sums) = if above.1.error < below.1.error {
                above
            } else {
                below
            };
            scales[group] = step;
            error += sums.error;
            product += step * sums.product;
            square += step * step * sums.square;
        }
        if error < best.0 {
            best = (error, scale, scales);
            solved = to_half(product * inverse(square));
        }
    }
    let (_, scale, scales) = best;
    Signed {
        scale,
        scales: scales.map(|step| step as i8),
        levels: std::array::from_fn(|i| {
            let inverse = inverse(scale * scales[i / group]);
            levels.nearest(values[i] * inverse) as i8
        }),
    }
}

/// Fits groups of quants from 0 to `greatest` with scales and minima from 0 to `steps`.
pub(super) fn offset<const GROUPS: usize>(
    values: &[f32],
    greatest: u8,
    steps: u8,
) -> Offset<GROUPS> {
    let group = SUPER / GROUPS;
    let weights = weights(values, group);
    let groups = || values.chunks_exact(group).zip(weights.chunks_exact(group));
    let (greatest, steps) = (f32::from(greatest), f32::from(steps));
    let mut ideal = [Affine::default(); GROUPS];
    for (ideal, (values, weights)) in ideal.iter_mut().zip(groups()) {
        *ideal = best_affine(values, weights, greatest);
    }
    let largest = |of: fn(&Affine) -> f32| ideal.iter().map(of).fold(0.0, f32::max);
    let (scale, minimum) = (largest(|of| of.scale), largest(|of| of.minimum));
    let mut best = (
        f64::INFINITY,
        Affine::default(),
        [Affine::default(); GROUPS],
    );
    let mut solved = None;
    for round in 0..OFFSET_STARTS + ROUNDS {
        let unit = match (round, solved) {
            (OFFSET_STARTS.., Some(unit)) => unit,
            (OFFSET_STARTS.., None) => break,
            _ => Affine {
                scale: to_half(scale / (steps - f32::from(round))),
                minimum: to_half(minimum / (steps - f32::from(round))),
            },
        };
        let (mut error, mut solution) = (0.0, Solution::default());
        let mut chosen = [Affine::default(); GROUPS];
        for (group, (values, weights)) in groups().enumerate() {
            let (step, sums) = best_steps(values, weights, ideal[group], unit, greatest, steps);
            chosen[group] = step;
            error += sums.error_of(unit.times(step));
            solution.add(step, &sums);
        }
        if error < best.0 {
            best = (error, unit, chosen);
            solved = solution.solve();
        }
    }
    let (_, unit, chosen) = best;
    Offset {
        scale: unit.scale,
        minimum: unit.minimum,
        scales: chosen.map(|step| step.scale as u8),
        minima: chosen.map(|step| step.minimum as u8),
        quants: std::array::from_fn(|i| {
            unit.times(chosen[i / group]).quant(values[i], greatest) as u8
        }),
    }
}

/// What each value counts: its magnitude, and that of its group.
fn weights(values: &[f32], group: usize) -> [f32; SUPER] {
    let mut weights = [0.0; SUPER];
    for (weights, values) in weights.chunks_mut(group).zip(values.chunks(group)) {
        let square: f32 = values.iter().map(|value| value * value).sum();
        let usual = (square / group as f32).sqrt();
        for (weight, value) in weights.iter_mut().zip(values) {
            *weight = usual + value.abs();
        }
    }
    weights
}

/// The scale under which the values lie nearest to levels.
fn best_scale(values: &[f32], weights: &[f32], levels: &impl Levels) -> f32 {
    let extreme = inverse(of_largest_magnitude(values));
    let [least, next] = levels.lowest();
    let mut best = (0.0, 0.0);
    for offset in -TRIES..=TRIES {
        let inverse = (least + 0.1 * f32::from(offset) * (next - least)) * extreme;
        let (mut product, mut square) = (0.0, 0.0);
        for (value, weight) in values.iter().zip(weights) {
            let level = levels.nearest(value * inverse);
            product += f64::from(weight * value * level);
            square += f64::from(weight * level * level);
        }
        // The best scale for these levels, and what it takes off the error of no scale at all.
        let (scale, gain) = (product / square, product * product / square);
        if gain > best.1 {
            best = (scale, gain);
        }
    }
    best.0 as f32
}

/// What the block's scale is solved from, and the error under the present one.
struct Sums {
    error: f32,
    /// Of weight, value and level.
    product: f32,
    /// Of weight and squared level.
    square: f32,
}

impl Sums {
    fn of(values: &[f32], weights: &[f32], scale: f32, levels: &impl Levels) -> Self {
        let inverse = inverse(scale);
        let (mut error, mut product, mut square) = (0.0, 0.0, 0.0);
        for (value, weight) in values.iter().zip(weights) {
            let level = levels.nearest(value * inverse);
            let off = value - scale * level;
            error += weight * off * off;
            product += weight * value * level;
            square += weight * level * level;
        }
        Self {
            error,
            product,
            square,
        }
    }
}

/// The map from a quant to a value, `scale * quant - minimum`, or steps of both.
#[derive(Clone, Copy, Default)]
struct Affine {
    scale: f32,
    minimum: f32,
}

impl Affine {
    fn times(self, steps: Affine) -> Affine {
        Affine {
            scale: self.scale * steps.scale,
            minimum: self.minimum * steps.minimum,
        }
    }

    fn quant(self, value: f32, greatest: f32) -> f32 {
        round(((value + self.minimum) * inverse(self.scale)).clamp(0.0, greatest))
    }
}

/// The scale and the minimum, neither below zero, under which the values lie nearest to quants.
fn best_affine(values: &[f32], weights: &[f32], greatest: f32) -> Affine {
    let (least, most) = range(values);
    let least = least.min(0.0);
    let span = inverse(most - least);
    let mut best = Affine {
        scale: 0.0,
        minimum: -least,
    };
    let mut best_gain = f64::NEG_INFINITY;
    // Under an outlier a step is wider than the other values' range, which the least value would
    // then split between two quants; the best minimum lies between them. So the second half of the
    // tries goes out from the best one so far.
    for goes_on in [false, true] {
        for offset in (-TRIES..=TRIES).step_by(2) {
            let inverse = (greatest + 0.1 * f32::from(offset)) * span;
            let minimum = if goes_on { best.minimum } else { -least };
            let quant = |value: f32| round(((value + minimum) * inverse).clamp(0.0, greatest));
            let sums = Moments::of(values, weights, quant);
            let Some(affine) = sums.solve() else {
                continue;
            };
            let gain = sums.gain_of(affine);
            if gain > best_gain {
                (best, best_gain) = (affine, gain);
            }
        }
    }
    best
}

/// The steps of scale and minimum around the ideal ones that fit best.
fn best_steps(
    values: &[f32],
    weights: &[f32],
    ideal: Affine,
    unit: Affine,
    greatest: f32,
    steps: f32,
) -> (Affine, Moments) {
    let scale = (ideal.scale * inverse(unit.scale)).floor();
    let minimum = (ideal.minimum * inverse(unit.minimum)).floor();
    let mut best: Option<(f64, Affine, Moments)> = None;
    for (up, left) in [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)] {
        let step = Affine {
            scale: (scale + up).min(steps),
            minimum: (minimum + left).min(steps),
        };
        let affine = unit.times(step);
        let sums = Moments::of(values, weights, |value| affine.quant(value, greatest));
        let error = sums.error_of(affine);
        if best.as_ref().is_none_or(|best| error < best.0) {
            best = Some((error, step, sums));
        }
    }
    let (_, step, sums) = best.expect("invariant: one of four is the best");
    (step, sums)
}

/// Weighted sums over a group: of ones, values, quants and their products.
struct Moments {
    weight: f64,
    value: f64,
    quant: f64,
    square: f64,
    value_quant: f64,
    value_square: f64,
}

impl Moments {
    fn of(values: &[f32], weights: &[f32], quant: impl Fn(f32) -> f32) -> Self {
        let mut sums = [0.0f64; 6];
        for (&value, &weight) in values.iter().zip(weights) {
            let quant = f64::from(quant(value));
            let (value, weight) = (f64::from(value), f64::from(weight));
            let terms = [
                1.0,
                value,
                quant,
                quant * quant,
                value * quant,
                value * value,
            ];
            for (sum, term) in sums.iter_mut().zip(terms) {
                *sum += weight * term;
            }
        }
        let [weight, value, quant, square, value_quant, value_square] = sums;
        Self {
            weight,
            value,
            quant,
            square,
            value_quant,
            value_square,
        }
    }

    /// The best scale and minimum for these quants, with the minimum at zero where it would fall
    /// below; `None` where all quants are zero.
    fn solve(&self) -> Option<Affine> {
        let determinant = self.weight * self.square - self.quant * self.quant;
        let scale = self.weight * self.value_quant - self.value * self.quant;
        let minimum = self.quant * self.value_quant - self.square * self.value;
        let free = Affine {
            scale: (scale / determinant) as f32,
            minimum: (minimum / determinant) as f32,
        };
        if determinant > 0.0 && free.scale > 0.0 && free.minimum >= 0.0 {
            return Some(free);
        }
        let scale = self.value_quant / self.square;
        (scale > 0.0).then_some(Affine {
            scale: scale as f32,
            minimum: 0.0,
        })
    }

    /// What these quants under a scale and a minimum take off the weighted error of all zeros.
    fn gain_of(&self, Affine { scale, minimum }: Affine) -> f64 {
        let (scale, minimum) = (f64::from(scale), f64::from(minimum));
        let affine = scale * scale * self.square - 2.0 * scale * minimum * self.quant
            + minimum * minimum * self.weight;
        2.0 * (scale * self.value_quant - minimum * self.value) - affine
    }

    /// The weighted error of these quants under a scale and a minimum.
    fn error_of(&self, affine: Affine) -> f64 {
        self.value_square - self.gain_of(affine)
    }
}

/// The normal equations of a block's scale and minimum, given every group's steps and quants.
#[derive(Default)]
struct Solution {
    scale_scale: f64,
    scale_minimum: f64,
    minimum_minimum: f64,
    scale_value: f64,
    minimum_value: f64,
}

impl Solution {
    fn add(&mut self, step: Affine, sums: &Moments) {
        let step = (f64::from(step.scale), f64::from(step.minimum));
        self.scale_scale += step.0 * step.0 * sums.square;
        self.scale_minimum += step.0 * step.1 * sums.quant;
        self.minimum_minimum += step.1 * step.1 * sums.weight;
        self.scale_value += step.0 * sums.value_quant;
        self.minimum_value += step.1 * sums.value;
    }

    /// `None` where the equations leave one open, or a solution lies below zero.
    fn solve(&self) -> Option<Affine> {
        let determinant =
            self.scale_scale * self.minimum_minimum - self.scale_minimum * self.scale_minimum;
        let scale =
            self.scale_value * self.minimum_minimum - self.minimum_value * self.scale_minimum;
        let minimum = self.scale_value * self.scale_minimum - self.minimum_value * self.scale_scale;
        let unit = Affine {
            scale: to_half((scale / determinant) as f32),
            minimum: to_half((minimum / determinant) as f32),
        };
        (determinant > 0.0 && unit.scale > 0.0 && unit.minimum > 0.0).then_some(unit)
    }
}

/// To the nearest integer, halves to the even one, for magnitudes below 2^22.
fn round(value: f32) -> f32 {
    /// Above it, single precision holds integers only.
    const INTEGERS: f32 = 12_582_912.0;
    value + INTEGERS - INTEGERS
}

/// The nearest half-precision number.
fn to_half(value: f32) -> f32 {
    half::f16::from_f32(value).to_f32()
}
