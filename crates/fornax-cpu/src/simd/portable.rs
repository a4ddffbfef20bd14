//! Plain arrays: runs anywhere, and the compiler vectorises what it can. Must not know operations.

use half::{bf16, f16};

use super::{LANES, Simd};

/// Needs nothing of the processor.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Floats = [f32; LANES];
type Integers = [i32; LANES];
type Bytes = [u8; 4 * LANES];

/// What `f` makes of the number of each lane: a loop, where those of the standard library are now and then calls,
/// which nothing vectorises.
#[inline(always)]
fn lanes<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for (lane, out) in out.iter_mut().enumerate() {
        *out = f(lane);
    }
    out
}

/// Applies `f` lane by lane.
#[inline(always)]
fn map<T: Copy, U: Copy + Default, const N: usize>(a: [T; N], f: impl Fn(T) -> U) -> [U; N] {
    lanes(|lane| f(a[lane]))
}

/// Applies `f` lane by lane to two vectors.
#[inline(always)]
fn zip(a: Floats, b: Floats, f: impl Fn(f32, f32) -> f32) -> Floats {
    lanes(|lane| f(a[lane], b[lane]))
}

/// As [`f16::to_f32`], but that no NaN is made quiet, without a question about the processor for each number: so
/// the compiler vectorises it.
#[inline(always)]
fn single_of_half(bits: u16) -> f32 {
    // Exponents are counted from 15 in the one and from 127 in the other.
    const SCALE: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let magnitude = f32::from_bits((u32::from(bits) & 0x7FFF) << 13) * SCALE;
    // What the largest exponent stands for is no number.
    let beyond = if magnitude >= 65536.0 {
        f32::INFINITY.to_bits()
    } else {
        0
    };
    let sign = (u32::from(bits) & 0x8000) << 16;
    f32::from_bits(magnitude.to_bits() | beyond | sign)
}

/// Adds, to each lane, the products of four bytes with those of `a`, which are signed.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn dot(mut sums: Integers, weights: Bytes, a: i32) -> Integers {
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

/// The same with what every processor of the kind has (SSE2), which the compiler does not find by itself: bytes
/// with even and with odd numbers are pairs of 16 bits, whose products are added up by twos.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn dot(sums: Integers, weights: Bytes, a: i32) -> Integers {
    use std::{arch::x86_64::*, mem::transmute};

    let [first, second, third, fourth] = a.to_le_bytes().map(|a| i32::from(a.cast_signed()));
    // SAFETY: all of these processors have the instructions; as many bytes, of which any are numbers.
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

impl Simd for Portable {
    type F32 = Floats;
    type I32 = Integers;
    type Bytes = Bytes;

    const COLUMNS: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Floats {
        [value; LANES]
    }
    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: Floats, b: Floats, c: Floats) -> Floats {
        // Without the instruction a fused multiply-add is a slow library call.
        lanes(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, a: Floats) -> Floats {
        // 1.5 · 2²³ has no room for a fraction behind it.
        const SHIFT: f32 = 12_582_912.0;
        map(a, |a| (a + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn power_of_two(self, a: Floats) -> Floats {
        map(a, |a| f32::from_bits(((a as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn select_below(self, a: Floats, limit: f32, low: Floats, high: Floats) -> Floats {
        lanes(|lane| {
            if a[lane] < limit {
                low[lane]
            } else {
                high[lane]
            }
        })
    }
    #[inline(always)]
    fn keep_lanes(self, a: Floats, first: usize, end: usize, fill: f32) -> Floats {
        lanes(|lane| {
            if first <= lane && lane < end {
                a[lane]
            } else {
                fill
            }
        })
    }
    #[inline(always)]
    fn sum(self, a: Floats) -> f32 {
        let eight: [f32; 8] = lanes(|lane| a[lane] + a[lane + 8]);
        let four: [f32; 4] = lanes(|lane| eight[lane] + eight[lane + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
    #[inline(always)]
    fn largest(self, a: Floats) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
    #[inline(always)]
    fn larger_magnitude(self, a: Floats, b: Floats) -> Floats {
        // As integers the magnitudes have the same order, with NaN above all.
        let magnitude = |a: f32| a.to_bits() & (u32::MAX >> 1);
        zip(a, b, |a, b| f32::from_bits(magnitude(a).max(magnitude(b))))
    }
    #[inline(always)]
    fn transpose(self, rows: [Floats; LANES]) -> [Floats; LANES] {
        std::array::from_fn(|lane| lanes(|row: usize| rows[row][lane]))
    }

    #[inline(always)]
    fn to_f32(self, a: Integers) -> Floats {
        map(a, |a| a as f32)
    }
    #[inline(always)]
    fn to_i32(self, a: Floats) -> Integers {
        map(self.round(a), |a| a as i32)
    }

    #[inline(always)]
    fn shift_bits(self, a: Bytes, left: i32, mask: u8) -> Bytes {
        match left {
            0.. => map(a, |a| (a << left) & mask),
            _ => map(a, |a| (a >> -left) & mask),
        }
    }
    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        lanes(|byte| a[byte] | b[byte])
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; LANES], a: Bytes) -> Bytes {
        map(a, |a| table[usize::from(a & 15)])
    }
    #[inline(always)]
    fn dot_start(self, minus_128_sum: i32) -> Integers {
        [minus_128_sum; LANES]
    }
    #[inline(always)]
    fn dot(self, sums: Integers, weights: Bytes, a: i32) -> Integers {
        dot(sums, weights, a)
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Floats {
        // SAFETY: the caller's.
        unsafe { from.cast::<Floats>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Floats {
        // SAFETY: the caller's.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        map(bits, single_of_half)
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Floats {
        // SAFETY: the caller's.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        map(bits, |bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Floats {
        // SAFETY: the caller's.
        let values = unsafe { from.cast::<[i8; LANES]>().read_unaligned() };
        map(values, f32::from)
    }
    #[inline(always)]
    unsafe fn store_groups(self, to: *mut u8, a: Bytes) {
        // SAFETY: the caller's.
        unsafe { to.cast::<Bytes>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [Floats; 2] {
        // SAFETY: the caller's.
        let pairs = unsafe { from.cast::<[[u16; 2]; LANES]>().read_unaligned() };
        let float = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        [
            map(pairs, |pair| float(pair[0])),
            map(pairs, |pair| float(pair[1])),
        ]
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Bytes {
        // SAFETY: the caller's.
        unsafe { from.cast::<Bytes>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Floats) {
        // SAFETY: the caller's.
        unsafe { to.cast::<Floats>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn store_i32(self, to: *mut i32, a: Integers) {
        // SAFETY: the caller's.
        unsafe { to.cast::<Integers>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, a: Floats) {
        let bits = map(a, |a| f16::from_f32(a).to_bits());
        // SAFETY: the caller's.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: Floats) {
        let bits = map(a, |a| bf16::from_f32(a).to_bits());
        // SAFETY: the caller's.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, a: Integers) {
        // SAFETY: the caller's.
        unsafe {
            to.cast::<[i8; LANES]>()
                .write_unaligned(map(a, |a| a as i8))
        }
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    #[inline(always)]
    fn prefetch_near(self, _: *const u8) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_the_single_that_it_is() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (single_of_half(bits), f16::from_bits(bits).to_f32());
            let is_same = ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
            assert!(is_same, "{bits:#06x}: {ours} for {theirs}");
        }
    }
}
