//! Exponentials and their sums over a vocabulary, in loops that a compiler can vectorise.

/// Entries whose `f32` terms are summed before they meet the `f64` total, and steps of a draw.
const BLOCK: usize = 256;
/// Partial sums side by side: enough for the compiler to use vectors.
const LANES: usize = 8;
/// Below it `exp` is 0: `e^-87` is about the smallest normal `f32`.
const LOWEST: f32 = -87.0;

/// The largest logit; `None` if one is NaN or +∞ or all are −∞.
#[inline(always)]
pub(super) fn largest(logits: &[f32]) -> Option<f32> {
    let mut largest = [f32::NEG_INFINITY; LANES];
    let mut unsound = [0_u32; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut last = [f32::NEG_INFINITY; LANES];
    last[..rest.len()].copy_from_slice(rest);
    for chunk in chunks.iter().chain([&last]) {
        for ((largest, unsound), &x) in largest.iter_mut().zip(&mut unsound).zip(chunk) {
            *unsound |= u32::from(x.is_nan() | (x == f32::INFINITY));
            *largest = if x > *largest { x } else { *largest };
        }
    }
    let largest = largest.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (unsound == [0; LANES] && largest > f32::NEG_INFINITY).then_some(largest)
}

/// Where the largest logit stands first.
#[inline(always)]
pub(super) fn first_of(logits: &[f32], largest: f32) -> usize {
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let mut found = false;
        for logit in block {
            found |= *logit == largest;
        }
        if found {
            let place = block.iter().position(|logit| *logit == largest);
            return index * BLOCK + place.expect("invariant: the block has it");
        }
    }
    unreachable!("invariant: one of the logits is the largest")
}

/// `e^x` for `x` up to 88, within 2 units in the last place; 0 below [`LOWEST`].
///
/// `x = k ln 2 + f` with whole `k` and `|f| ≤ ln 2 / 2`; a Taylor polynomial gives `e^f`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2²³ rounds to a whole number and leaves it in the low bits of the mantissa;
    // the 127 more is the exponent's bias.
    const SHIFT: f32 = 12_582_912.0 + 127.0;
    // ln 2 in two parts, the first with zeros at its end so that k times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let whole = shifted - SHIFT;
    let f = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    let taylor = 1.0 / 120.0 + f * (1.0 / 720.0 + f * (1.0 / 5040.0));
    let taylor = 1.0 + f * (1.0 + f * (0.5 + f * (1.0 / 6.0 + f * (1.0 / 24.0 + f * taylor))));
    let power = f32::from_bits(shifted.to_bits() << 23);
    if x < LOWEST { 0.0 } else { taylor * power }
}

/// `Σ e^(logit − max)`.
#[inline(always)]
pub(super) fn exp_sum(logits: &[f32], max: f32) -> f64 {
    let mut sum = 0.0;
    // Plain loops over whole blocks: an iterator's `sum` is a function of its own, without the
    // caller's instructions.
    for block in logits.chunks(BLOCK) {
        let mut terms = [f32::NEG_INFINITY; BLOCK];
        terms[..block.len()].copy_from_slice(block);
        for term in &mut terms {
            *term = exp(*term - max);
        }
        let mut lanes = [0.0_f32; LANES];
        for chunk in terms.as_chunks::<LANES>().0 {
            for (lane, term) in lanes.iter_mut().zip(chunk) {
                *lane += term;
            }
        }
        for lane in lanes {
            sum += f64::from(lane);
        }
    }
    sum
}

/// The first index whose running sum of `weights` exceeds `uniform` times their sum.
pub(super) fn first_above(weights: &[f32], uniform: f32) -> usize {
    let block_sum = |block: &[f32]| block.iter().map(|weight| f64::from(*weight)).sum::<f64>();
    let total: f64 = weights.chunks(BLOCK).map(block_sum).sum();
    let target = f64::from(uniform) * total;
    let mut before = 0.0;
    for (index, block) in weights.chunks(BLOCK).enumerate() {
        let after = before + block_sum(block);
        if after > target {
            return index * BLOCK + first_above_in(block, target - before);
        }
        before = after;
    }
    unreachable!("invariant: the sum of some weights exceeds a part of itself")
}

/// The first index in a block whose running sum exceeds `target`; where rounding hides it, the
/// last one with a weight.
fn first_above_in(block: &[f32], target: f64) -> usize {
    let mut sum = 0.0;
    let exceeds = |weight: &f32| {
        sum += f64::from(*weight);
        sum > target
    };
    let last = |block: &[f32]| block.iter().rposition(|weight| *weight > 0.0);
    let found = block.iter().position(exceeds).or_else(|| last(block));
    found.expect("invariant: a block that exceeds something has a weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0.0_f64;
        for step in 0..400_000 {
            let x = -87.0 + step as f32 * (170.0 / 400_000.0);
            let expected = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - expected).abs() / expected);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-87.01), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn largest_refuses_what_cannot_be_drawn_from() {
        for length in [1, 7, 8, 9, 100] {
            for place in 0..length {
                let mut logits = vec![-1.0; length];
                logits[place] = 2.0;
                assert_eq!(largest(&logits), Some(2.0));
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY] {
                    logits[place] = bad;
                    assert_eq!(largest(&logits), None, "{bad} at {place} of {length}");
                }
                logits.fill(f32::NEG_INFINITY);
                assert_eq!(largest(&logits), None);
                logits[place] = f32::MIN;
                assert_eq!(largest(&logits), Some(f32::MIN));
            }
        }
    }

    #[test]
    fn the_draw_meets_every_weight_at_its_edges() {
        let weights: Vec<f32> = (0..1000).map(|i| (i % 2) as f32).collect();
        for drawn in 0..500_u16 {
            let index = first_above(&weights, f32::from(drawn) / 500.0 + 1e-5);
            assert_eq!(index, usize::from(drawn) * 2 + 1);
        }
        assert_eq!(first_above(&weights, 0.0), 1);
        assert_eq!(first_above(&weights, 1.0 - f32::EPSILON / 2.0), 999);
    }
}
