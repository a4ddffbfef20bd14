//! Four lanes at a time, by instructions of SSE2.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every x86-64 processor has these instructions, and arrays are as many numbers of any bits"
)]

use std::{arch::x86_64::*, array::from_fn, mem::transmute};

use super::{Bytes, Floats, Integers, LANES};

/// Applies an instruction to the quarters of two vectors.
#[inline(always)]
fn zip(a: Floats, b: Floats, f: impl Fn(__m128, __m128) -> __m128) -> Floats {
    let [a, b]: [[__m128; 4]; 2] = unsafe { transmute([a, b]) };
    unsafe { transmute([f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]) }
}

#[inline(always)]
pub fn add(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| unsafe { _mm_add_ps(a, b) })
}
#[inline(always)]
pub fn sub(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| unsafe { _mm_sub_ps(a, b) })
}
#[inline(always)]
pub fn mul(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| unsafe { _mm_mul_ps(a, b) })
}
#[inline(always)]
pub fn div(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| unsafe { _mm_div_ps(a, b) })
}
#[inline(always)]
pub fn max(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| unsafe { _mm_max_ps(a, b) })
}
#[inline(always)]
pub fn min(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| unsafe { _mm_min_ps(a, b) })
}
#[inline(always)]
pub fn power_of_two(a: Floats) -> Floats {
    zip(a, a, |a, _| unsafe {
        let exponent = _mm_add_epi32(_mm_cvttps_epi32(a), _mm_set1_epi32(127));
        _mm_castsi128_ps(_mm_slli_epi32::<23>(exponent))
    })
}
#[inline(always)]
pub fn select_below(a: Floats, limit: Floats, low: Floats, high: Floats) -> Floats {
    let below = zip(a, limit, |a, limit| unsafe { _mm_cmplt_ps(a, limit) });
    let low = zip(below, low, |below, low| unsafe { _mm_and_ps(below, low) });
    let high = zip(below, high, |below, high| unsafe {
        _mm_andnot_ps(below, high)
    });
    zip(low, high, |low, high| unsafe { _mm_or_ps(low, high) })
}
#[inline(always)]
pub fn larger_magnitude(a: Floats, b: Floats) -> Floats {
    zip(a, b, |a, b| unsafe {
        // As integers the magnitudes have the same order, with NaN above all.
        let bits = _mm_castsi128_ps(_mm_set1_epi32(i32::MAX));
        let (a, b) = (_mm_and_ps(a, bits), _mm_and_ps(b, bits));
        let larger = _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_castps_si128(a), _mm_castps_si128(b)));
        _mm_or_ps(_mm_and_ps(larger, a), _mm_andnot_ps(larger, b))
    })
}
/// Squares of 4 by 4 are turned each, and change places.
#[inline(always)]
pub fn transpose(rows: [Floats; LANES]) -> [Floats; LANES] {
    let rows: [[__m128; 4]; LANES] = unsafe { transmute(rows) };
    let mut turned = rows;
    for (i, j) in (0..4).flat_map(|i| (0..4).map(move |j| (i, j))) {
        let [mut a, mut b, mut c, mut d] = from_fn(|row| rows[4 * i + row][j]);
        unsafe { _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d) };
        for (row, quad) in [a, b, c, d].into_iter().enumerate() {
            turned[4 * j + row][i] = quad;
        }
    }
    unsafe { transmute(turned) }
}
#[inline(always)]
pub fn to_f32(a: Integers) -> Floats {
    let quads: [__m128i; 4] = unsafe { transmute(a) };
    unsafe { transmute(quads.map(|quad| _mm_cvtepi32_ps(quad))) }
}
/// Of numbers below 2²².
#[inline(always)]
pub fn to_i32(a: Floats) -> Integers {
    let quads: [__m128; 4] = unsafe { transmute(a) };
    unsafe { transmute(quads.map(|quad| _mm_cvtps_epi32(quad))) }
}
#[inline(always)]
pub fn singles(bits: [u16; LANES]) -> Floats {
    unsafe {
        let [low, high]: [__m128i; 2] = transmute(bits);
        let zeros = _mm_setzero_si128();
        let first = [
            _mm_unpacklo_epi16(zeros, low),
            _mm_unpackhi_epi16(zeros, low),
        ];
        let last = [
            _mm_unpacklo_epi16(zeros, high),
            _mm_unpackhi_epi16(zeros, high),
        ];
        transmute([first, last])
    }
}
/// Bits that cross from a byte to its neighbour are not in the mask.
#[inline(always)]
pub fn shift_bits(a: Bytes, left: i32, mask: u8) -> Bytes {
    unsafe {
        let quads: [__m128i; 4] = transmute(a);
        let count = _mm_cvtsi32_si128(left.abs());
        let mask = _mm_set1_epi8(mask.cast_signed());
        let shift = |quad| match left {
            0.. => _mm_sll_epi16(quad, count),
            _ => _mm_srl_epi16(quad, count),
        };
        transmute(quads.map(|quad| _mm_and_si128(shift(quad), mask)))
    }
}
#[inline(always)]
pub fn or(a: Bytes, b: Bytes) -> Bytes {
    let [a, b]: [Floats; 2] = unsafe { transmute([a, b]) };
    unsafe { transmute(zip(a, b, |a, b| _mm_or_ps(a, b))) }
}
/// Bytes with even and with odd numbers are pairs of 16 bits, whose products are added up by twos: the compiler
/// does not find that by itself.
#[inline(always)]
pub fn dot(sums: Integers, weights: Bytes, a: i32) -> Integers {
    let [first, second, third, fourth] = a.to_le_bytes().map(|a| i32::from(a.cast_signed()));
    unsafe {
        let pair = |low: i32, high: i32| _mm_set1_epi32(low & 0xFFFF | high << 16);
        let (of_even, of_odd) = (pair(first, third), pair(second, fourth));
        let mut sums = transmute::<Integers, [__m128i; 4]>(sums);
        let weights = transmute::<Bytes, [__m128i; 4]>(weights);
        for (sum, weights) in sums.iter_mut().zip(weights) {
            let even = _mm_and_si128(weights, _mm_set1_epi16(0xFF));
            let odd = _mm_srli_epi16::<8>(weights);
            let (even, odd) = (_mm_madd_epi16(even, of_even), _mm_madd_epi16(odd, of_odd));
            *sum = _mm_add_epi32(*sum, _mm_add_epi32(even, odd));
        }
        transmute::<[__m128i; 4], Integers>(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::arrays, *};

    /// Numbers of both signs, whole ones and halves among them, up to a thousand.
    fn numbers(seed: u32) -> Floats {
        from_fn(|lane| {
            let bits = (seed + lane as u32).wrapping_mul(2_654_435_761) >> 8;
            let number = bits as f32 / (1 << 13) as f32 - 1024.0;
            match lane % 3 {
                0 => number,
                1 => number.round(),
                _ => number.floor() + 0.5,
            }
        })
    }

    fn bits(a: Floats) -> [u32; LANES] {
        a.map(f32::to_bits)
    }

    #[test]
    fn floats_are_those_of_arrays() {
        for seed in 0..200 {
            let (a, b, c) = (numbers(seed), numbers(seed + 77), numbers(seed + 191));
            type Binary = fn(Floats, Floats) -> Floats;
            let pairs: [(Binary, Binary); 7] = [
                (add, arrays::add),
                (sub, arrays::sub),
                (mul, arrays::mul),
                (div, arrays::div),
                (max, arrays::max),
                (min, arrays::min),
                (larger_magnitude, arrays::larger_magnitude),
            ];
            for (ours, theirs) in pairs {
                assert_eq!(bits(ours(a, b)), bits(theirs(a, b)));
            }
            assert_eq!(
                bits(select_below(a, b, c, a)),
                bits(arrays::select_below(a, b, c, a))
            );
            assert_eq!(to_i32(a), arrays::to_i32(a));
            assert_eq!(to_f32(to_i32(a)), arrays::to_f32(to_i32(a)));
            let whole = a.map(|a| (a / 9.0).trunc());
            assert_eq!(bits(power_of_two(whole)), bits(arrays::power_of_two(whole)));
            let brains = a.map(|a| (a.to_bits() >> 16) as u16);
            assert_eq!(bits(singles(brains)), bits(arrays::singles(brains)));
            let rows: [Floats; LANES] = from_fn(|row| numbers(seed + 1000 * row as u32));
            assert_eq!(transpose(rows).map(bits), arrays::transpose(rows).map(bits));
        }
        // Where either is no number neither order knows which is larger: the second one stays.
        let (nan, one) = ([f32::NAN; LANES], [1.0; LANES]);
        for (a, b) in [(nan, one), (one, nan)] {
            assert_eq!(bits(max(a, b)), bits(arrays::max(a, b)));
            assert_eq!(bits(min(a, b)), bits(arrays::min(a, b)));
            assert_eq!(
                bits(larger_magnitude(a, b)),
                bits(arrays::larger_magnitude(a, b))
            );
            assert_eq!(
                bits(select_below(a, b, a, b)),
                bits(arrays::select_below(a, b, a, b))
            );
        }
    }

    #[test]
    fn bytes_are_those_of_arrays() {
        let bytes: Bytes = from_fn(|byte| (byte * 37 % 256) as u8);
        let others: Bytes = from_fn(|byte| (byte * 91 % 256) as u8);
        for shift in 0..8 {
            let (left, right) = (0xFF << shift, 0xFF >> shift);
            assert_eq!(
                shift_bits(bytes, shift, left),
                arrays::shift_bits(bytes, shift, left)
            );
            assert_eq!(
                shift_bits(bytes, -shift, right),
                arrays::shift_bits(bytes, -shift, right)
            );
        }
        assert_eq!(or(bytes, others), arrays::or(bytes, others));
        let sums = from_fn(|lane| lane as i32 * 1000 - 8000);
        for a in [0x7F7F_7F7F, 0x0102_03FF, -0x7E7E_7E7F] {
            assert_eq!(dot(sums, bytes, a), arrays::dot(sums, bytes, a));
        }
    }
}
