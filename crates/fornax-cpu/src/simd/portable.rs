//! Plain arrays, which run anywhere. Must not know operations.
//!
//! What kernels are made of is in `arrays`, where the compiler vectorises what it can, and on x86-64, whose
//! processors all have SSE2, in `sse2`: an unoptimised build, where nothing is vectorised, takes a third less time.

#[cfg(any(test, not(target_arch = "x86_64")))]
mod arrays;
#[cfg(target_arch = "x86_64")]
mod sse2;

#[cfg(not(target_arch = "x86_64"))]
use arrays as arithmetic;
#[cfg(target_arch = "x86_64")]
use sse2 as arithmetic;

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
        arithmetic::add(a, b)
    }
    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        arithmetic::sub(a, b)
    }
    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        arithmetic::mul(a, b)
    }
    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        arithmetic::div(a, b)
    }
    #[inline(always)]
    fn mul_add(self, a: Floats, b: Floats, c: Floats) -> Floats {
        // Without the instruction a fused multiply-add is a slow library call.
        arithmetic::add(arithmetic::mul(a, b), c)
    }
    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        arithmetic::max(a, b)
    }
    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        arithmetic::min(a, b)
    }
    #[inline(always)]
    fn round(self, a: Floats) -> Floats {
        // 1.5 · 2²³ has no room for a fraction behind it.
        const SHIFT: f32 = 12_582_912.0;
        let shift = [SHIFT; LANES];
        arithmetic::sub(arithmetic::add(a, shift), shift)
    }
    #[inline(always)]
    fn power_of_two(self, a: Floats) -> Floats {
        arithmetic::power_of_two(a)
    }
    #[inline(always)]
    fn select_below(self, a: Floats, limit: f32, low: Floats, high: Floats) -> Floats {
        arithmetic::select_below(a, [limit; LANES], low, high)
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
        arithmetic::larger_magnitude(a, b)
    }
    #[inline(always)]
    fn transpose(self, rows: [Floats; LANES]) -> [Floats; LANES] {
        arithmetic::transpose(rows)
    }

    #[inline(always)]
    fn to_f32(self, a: Integers) -> Floats {
        arithmetic::to_f32(a)
    }
    #[inline(always)]
    fn to_i32(self, a: Floats) -> Integers {
        arithmetic::to_i32(a)
    }

    #[inline(always)]
    fn shift_bits(self, a: Bytes, left: i32, mask: u8) -> Bytes {
        arithmetic::shift_bits(a, left, mask)
    }
    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        arithmetic::or(a, b)
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
        arithmetic::dot(sums, weights, a)
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
        arithmetic::singles(bits)
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
