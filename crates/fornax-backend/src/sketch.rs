//! A row of a matrix in four bits, rounded at random, and how far a product with it is from the row's.
//!
//! Who wants the few largest of many products need not read all rows: products with their sketches, 4.5
//! bits a value, leave only those rows that can be among the largest. Owns the rounding and the bound;
//! a backend decides how it multiplies. Must not know what the products are for.
//!
//! # The bound
//! A value is rounded to one of the two multiples of its block's step beside it, up with the probability
//! that makes their mean the value itself. So the errors `e` of a row are independent, of mean 0, and
//! each is in an interval as long as the step `s` of its block, whatever the weights are. For activations
//! `x`, which know nothing of the dice, Hoeffding (1963, theorem 2) has
//!
//! `P(Σ eᵢ xᵢ ≥ ½ t √(Σ sᵢ² xᵢ²)) ≤ exp(-t²/2)`.
//!
//! With `t` = [`SKETCH_DEVIATIONS`] that is 6·10⁻¹³. The row whose product is the largest is what it is before
//! the dice fall, so this is how likely it is missed by who leaves out all rows whose sketches are
//! further than the bound below a product that is known: once in 10¹² tokens, whatever the vocabulary,
//! for which the next likely one then stands. What is certain, by Cauchy and Schwarz, is several times
//! as far, and would leave a third of all rows.
//!
//! By the same inequality over blocks the root is at most [`sketch_row`]'s spread times [`loudness`]: one
//! knows the row alone, the other the activations.

use half::f16;

/// Values under one step.
pub const SKETCH_BLOCK: usize = 32;
/// Bytes of a block, which is one of Q4_0.
pub const SKETCH_BYTES: usize = 18;
/// How many of the largest standard deviations that a product's error can have it is believed to be.
pub const SKETCH_DEVIATIONS: f32 = 7.5;

/// Rounds a row to `blocks` and returns its spread: times the [`loudness`] of activations it bounds how far
/// the row's product with them is above that of the blocks, or below. `None` if a value is not finite or
/// a step is beyond half precision. `first` is the place of the row's first value among all of its
/// matrix, which decides how the dice fall.
///
/// `values` is `[cols]`, whole blocks; `blocks` `[cols / SKETCH_BLOCK * SKETCH_BYTES]`. Inlined, so that it
/// compiles with the instructions of the caller; the result is the same with any.
#[inline(always)]
pub fn sketch_row(values: &[f32], first: usize, blocks: &mut [u8]) -> Option<f32> {
    let (values, rest) = values.as_chunks::<SKETCH_BLOCK>();
    let (blocks, _) = blocks.as_chunks_mut::<SKETCH_BYTES>();
    assert!(
        rest.is_empty() && values.len() == blocks.len(),
        "sketch: whole blocks"
    );
    let mut fourth_powers = 0.0;
    for (index, (values, block)) in values.iter().zip(blocks).enumerate() {
        let step = sketch_block(values, first + index * SKETCH_BLOCK, block)?;
        fourth_powers += (step * step) * (step * step);
    }
    Some(0.5 * SKETCH_DEVIATIONS * fourth_powers.sqrt().sqrt())
}

/// What activations do to the errors of a sketch: the fourth root of `Σ (Σ x²)²`, over blocks and in them.
/// `blocks` are the sums of squares of each.
pub fn loudness(blocks: impl Iterator<Item = f32>) -> f32 {
    let fourth_powers: f32 = blocks.map(|squares| squares * squares).sum();
    fourth_powers.sqrt().sqrt()
}

/// Rounds a block and returns its step.
#[inline(always)]
fn sketch_block(
    values: &[f32; SKETCH_BLOCK],
    first: usize,
    block: &mut [u8; SKETCH_BYTES],
) -> Option<f32> {
    let Range { lowest, highest } = Range::of(values)?;
    // Steps reach from -8 to 7; the scale's sign turns the longer end to where there is more of them.
    let (upright, turned) = (
        (highest / 7.0).max(lowest / -8.0),
        (lowest / -7.0).max(highest / 8.0),
    );
    let scale = half_from_above(upright.min(turned));
    let step = scale.to_f32();
    if !step.is_finite() {
        return None;
    }
    let scale = if turned < upright { -scale } else { scale };
    let inverse = match step {
        0.0 => 0.0,
        _ => 1.0 / scale.to_f32(),
    };
    let mut quants = [0_u8; SKETCH_BLOCK];
    for (index, (quant, value)) in quants.iter_mut().zip(values).enumerate() {
        // Below zero only by rounding, and the cast takes that for zero.
        *quant = ((value * inverse + 8.0 + dice((first + index) as u32)) as i32).clamp(0, 15) as u8;
    }
    block[..2].copy_from_slice(&scale.to_le_bytes());
    let (low, high) = quants.split_at(SKETCH_BLOCK / 2);
    for ((pair, low), high) in block[2..].iter_mut().zip(low).zip(high) {
        *pair = low | high << 4;
    }
    Some(step)
}

/// The least and the greatest of some values and 0.
struct Range {
    lowest: f32,
    highest: f32,
}

impl Range {
    /// `None` if a value is not finite. Side by side, so that it compiles to vectors.
    #[inline(always)]
    fn of(values: &[f32; SKETCH_BLOCK]) -> Option<Self> {
        const LANES: usize = SKETCH_BLOCK / 2;
        let (mut lowest, mut highest, mut bad) = ([0.0_f32; LANES], [0.0_f32; LANES], [0; LANES]);
        for half in values.as_chunks::<LANES>().0 {
            for (lane, &value) in half.iter().enumerate() {
                lowest[lane] = lower(lowest[lane], value);
                highest[lane] = higher(highest[lane], value);
                bad[lane] |= u32::from(!value.is_finite());
            }
        }
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lowest[lane] = lower(lowest[lane], lowest[lane + width]);
                highest[lane] = higher(highest[lane], highest[lane + width]);
                bad[lane] |= bad[lane + width];
            }
            width /= 2;
        }
        (bad[0] == 0).then_some(Self {
            lowest: lowest[0],
            highest: highest[0],
        })
    }
}

/// The lower of two, without the care for NaN that keeps a loop out of vectors.
#[inline(always)]
fn lower(a: f32, b: f32) -> f32 {
    if b < a { b } else { a }
}

/// The higher of two, likewise.
#[inline(always)]
fn higher(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

/// The least number in half precision that is not below `value`, which is not negative.
fn half_from_above(value: f32) -> f16 {
    let nearest = f16::from_f32(value);
    match nearest.to_f32() < value {
        true => f16::from_bits(nearest.to_bits() + 1),
        false => nearest,
    }
}

/// A number from 0 to less than 1, as if thrown, for each place: the top 24 bits of Wellons' hash
/// `lowbias32` (2018), whose outputs are as good as independent of each other.
#[inline(always)]
fn dice(place: u32) -> f32 {
    let mut word = place.wrapping_mul(0x9E37_79B9);
    word ^= word >> 16;
    word = word.wrapping_mul(0x7FEB_352D);
    word ^= word >> 15;
    word = word.wrapping_mul(0x846C_A68B);
    word ^= word >> 16;
    (word >> 8) as f32 / (1 << 24) as f32
}

#[cfg(test)]
mod tests {
    use fornax_gguf::DType;

    use super::*;

    /// Numbers of a normal distribution, near enough: sums of twelve thrown ones.
    fn normal(seed: u32, len: usize) -> Vec<f32> {
        let one = |index: u32| -> f32 {
            let thrown = (0..12).map(|part| dice(((seed + index) * 12 + part) ^ 0x5EED_0000));
            thrown.sum::<f32>() - 6.0
        };
        (0..len as u32).map(one).collect()
    }

    fn sketched(values: &[f32], first: usize) -> (Vec<f32>, f32) {
        let mut blocks = vec![0; values.len() / SKETCH_BLOCK * SKETCH_BYTES];
        let spread = sketch_row(values, first, &mut blocks).unwrap();
        let mut rounded = vec![0.0; values.len()];
        DType::Q4_0.decode(&blocks, &mut rounded);
        (rounded, spread)
    }

    fn loud(x: &[f32]) -> f32 {
        let squares = |block: &[f32]| block.iter().map(|x| x * x).sum();
        loudness(x.chunks_exact(SKETCH_BLOCK).map(squares))
    }

    #[test]
    fn a_value_is_rounded_to_a_step_beside_it_and_is_the_mean_of_many() {
        let values = normal(1, 64);
        let mut sums = vec![0.0_f64; 64];
        const TURNS: usize = 4000;
        for turn in 0..TURNS {
            let (rounded, _) = sketched(&values, turn * 64);
            for ((sum, rounded), value) in sums.iter_mut().zip(&rounded).zip(&values) {
                // The widest step of normal numbers is about a third.
                assert!((rounded - value).abs() < 0.5, "{value} became {rounded}");
                *sum += f64::from(*rounded);
            }
        }
        for (sum, value) in sums.iter().zip(&values) {
            let mean = sum / TURNS as f64;
            assert!((mean - f64::from(*value)).abs() < 0.02, "{value}: {mean}");
        }
    }

    #[test]
    fn errors_of_products_keep_far_below_the_bound() {
        // Half a step each way has at most half a step of deviation: with normal weights the largest
        // of 20,000 errors is 4 such deviations or less, of 7.5.
        let x = normal(7, 256);
        let mut largest = 0.0_f32;
        for row in 0..20_000 {
            let values = normal(100 + 256 * row, 256);
            let (rounded, spread) = sketched(&values, 256 * row as usize);
            let products = rounded.iter().zip(&values).zip(&x);
            let error: f32 = products.map(|((a, b), x)| (a - b) * x).sum();
            largest = largest.max(error.abs() / (spread * loud(&x)));
        }
        assert!((0.2..0.7).contains(&largest), "{largest}");
    }

    #[test]
    fn a_lone_activation_is_always_within_the_bound() {
        let values = normal(3, 128);
        let (rounded, spread) = sketched(&values, 0);
        for place in 0..128 {
            let mut x = [0.0; 128];
            x[place] = -2.5;
            let error = (rounded[place] - values[place]).abs() * 2.5;
            assert!(error <= spread * loud(&x));
        }
    }

    #[test]
    fn both_ends_of_the_range_are_kept_whichever_is_longer() {
        for (lowest, highest) in [
            (-8.0, 7.0),
            (-7.0, 8.0),
            (-1.0, 0.0),
            (0.0, 1.0),
            (-3.0, 3.0),
        ] {
            let mut values = [0.0; SKETCH_BLOCK];
            (values[3], values[9]) = (lowest, highest);
            let (rounded, _) = sketched(&values, 5);
            // No step is above 1 here, half precision's own rounding included.
            assert!((rounded[3] - lowest).abs() < 1.001, "{rounded:?}");
            assert!((rounded[9] - highest).abs() < 1.001, "{rounded:?}");
            assert!(
                rounded
                    .iter()
                    .all(|value| *value == 0.0 || value.abs() > 0.1)
            );
        }
        assert_eq!(sketched(&[0.0; 32], 0), (vec![0.0; 32], 0.0));
    }

    #[test]
    fn what_has_no_step_is_refused() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e6] {
            let mut values = [1.0; 64];
            values[40] = bad;
            assert_eq!(sketch_row(&values, 0, &mut [0; 36]), None, "{bad}");
        }
        let mut values = [0.0; 32];
        values[0] = 1e-9;
        assert!(sketched(&values, 0).1 > 0.0, "a step below half precision");
    }

    #[test]
    fn halves_are_rounded_up() {
        for value in [0.0, 1.0, 1.0001, 0.1, 65504.0, 3e-8, 1e-12] {
            let above = half_from_above(value);
            assert!(above.to_f32() >= value);
            let below = f16::from_bits(above.to_bits().saturating_sub(1));
            assert!(value == 0.0 || below.to_f32() < value);
        }
    }
}
