//! Lane by lane.

use super::{Bytes, Floats, Integers, LANES, lanes, map};

/// Applies `f` lane by lane to two vectors.
#[inline(always)]
fn zip(a: Floats, b: Floats, f: impl Fn(f32, f32) -> f32) -> Floats {
    lanes(|lane| f(a[lane], b[lane]))
}

#[inline(always)]
pub fn add(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| a + b)
}
#[inline(always)]
pub fn sub(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| a - b)
}
#[inline(always)]
pub fn mul(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| a * b)
}
#[inline(always)]
pub fn div(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| a / b)
}
#[inline(always)]
pub fn max(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| if a > b { a } else { b })
}
#[inline(always)]
pub fn min(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| if a < b { a } else { b })
}
#[inline(always)]
pub fn power_of_two(a: Floats) -> Floats {
    map(a, |a| f32::from_bits(((a as i32 + 127) as u32) << 23))
}
#[inline(always)]
pub fn select_below(a: Floats, limit: Floats, low: Floats, high: Floats) -> Floats {
    lanes(|lane| {
        if a[lane] < limit[lane] {
            low[lane]
        } else {
            high[lane]
        }
    })
}
#[inline(always)]
pub fn larger_magnitude(a: Floats, b: Floats) -> Floats {
    // As integers the magnitudes have the same order, with NaN above all.
    let magnitude = |a: f32| a.to_bits() & (u32::MAX >> 1);
    zip(a, b, |a, b| f32::from_bits(magnitude(a).max(magnitude(b))))
}
#[inline(always)]
pub fn transpose(rows: [Floats; LANES]) -> [Floats; LANES] {
    std::array::from_fn(|lane| lanes(|row: usize| rows[row][lane]))
}
#[inline(always)]
pub fn to_f32(a: Integers) -> Floats {
    map(a, |a| a as f32)
}
/// Of numbers below 2²².
#[inline(always)]
pub fn to_i32(a: Floats) -> Integers {
    map(a, |a| a.round_ties_even() as i32)
}
#[inline(always)]
pub fn singles(bits: [u16; LANES]) -> Floats {
    map(bits, |bits| f32::from_bits(u32::from(bits) << 16))
}
#[inline(always)]
pub fn shift_bits(a: Bytes, left: i32, mask: u8) -> Bytes {
    match left {
        0.. => map(a, |a| (a << left) & mask),
        _ => map(a, |a| (a >> -left) & mask),
    }
}
#[inline(always)]
pub fn or(a: Bytes, b: Bytes) -> Bytes {
    lanes(|byte| a[byte] | b[byte])
}
/// Adds, to each lane, the products of four bytes with those of `a`, which are signed.
#[inline(always)]
pub fn dot(mut sums: Integers, weights: Bytes, a: i32) -> Integers {
    let a = a.to_le_bytes().map(|a| i32::from(a.cast_signed()));
    for (sum, weights) in sums.iter_mut().zip(weights.as_chunks().0) {
        let [first, second, third, fourth]: [u8; 4] = *weights;
        let products = [(first, a[0]), (second, a[1]), (third, a[2]), (fourth, a[3])];
        *sum += products
            .map(|(weight, a)| i32::from(weight) * a)
            .iter()
            .sum::<i32>();
    }
    sums
}
