//! Plain arrays: runs anywhere, and the compiler vectorises what it can. Must not know operations.

use half::{bf16, f16};

use super::{LANES, Simd};

/// Needs nothing of the processor.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Floats = [f32; LANES];
type Integers = [i32; LANES];
type Bytes = [u8; 4 * LANES];

/// Applies `f` lane by lane to two vectors.
#[inline(always)]
fn zip(a: Floats, b: Floats, f: impl Fn(f32, f32) -> f32) -> Floats {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
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
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
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
        a.map(|a| (a + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn power_of_two(self, a: Floats) -> Floats {
        a.map(|a| f32::from_bits(((a as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn select_below(self, a: Floats, limit: f32, low: Floats, high: Floats) -> Floats {
        std::array::from_fn(|lane| {
            if a[lane] < limit {
                low[lane]
            } else {
                high[lane]
            }
        })
    }
    #[inline(always)]
    fn keep_lanes(self, a: Floats, first: usize, end: usize, fill: f32) -> Floats {
        std::array::from_fn(|lane| {
            if first <= lane && lane < end {
                a[lane]
            } else {
                fill
            }
        })
    }
    #[inline(always)]
    fn sum(self, a: Floats) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|lane| a[lane] + a[lane + 8]);
        let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
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
        std::array::from_fn(|lane| rows.map(|row| row[lane]))
    }

    #[inline(always)]
    fn to_f32(self, a: Integers) -> Floats {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    fn to_i32(self, a: Floats) -> Integers {
        self.round(a).map(|a| a as i32)
    }

    #[inline(always)]
    fn shift_bits(self, a: Bytes, left: i32, mask: u8) -> Bytes {
        match left {
            0.. => a.map(|a| (a << left) & mask),
            _ => a.map(|a| (a >> -left) & mask),
        }
    }
    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        std::array::from_fn(|byte| a[byte] | b[byte])
    }
    #[inline(always)]
    fn signed(self, a: Bytes) -> Bytes {
        a.map(|byte| byte ^ 128)
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; LANES], a: Bytes) -> Bytes {
        a.map(|a| table[usize::from(a & 15)])
    }
    #[inline(always)]
    fn dot_start(self, minus_128_sum: i32) -> Integers {
        [minus_128_sum; LANES]
    }
    #[inline(always)]
    fn dot(self, sums: Integers, weights: Bytes, a: i32) -> Integers {
        let a = a.to_le_bytes().map(|a| i32::from(a.cast_signed()));
        std::array::from_fn(|lane| {
            let weights = &weights[4 * lane..4 * lane + 4];
            let products = weights
                .iter()
                .zip(a)
                .map(|(weight, a)| i32::from(*weight) * a);
            sums[lane] + products.sum::<i32>()
        })
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
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Floats {
        // SAFETY: the caller's.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Floats {
        // SAFETY: the caller's.
        unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
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
            pairs.map(|pair| float(pair[0])),
            pairs.map(|pair| float(pair[1])),
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
        let bits = a.map(|a| f16::from_f32(a).to_bits());
        // SAFETY: the caller's.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: Floats) {
        let bits = a.map(|a| bf16::from_f32(a).to_bits());
        // SAFETY: the caller's.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, a: Integers) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(a.map(|a| a as i8)) }
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
    #[inline(always)]
    fn prefetch_near(self, _: *const u8) {}
}
