//! NEON: four registers hold the 16 lanes. Must not know operations.
//!
//! Owns all but the integer dot products, in which Arm processors differ: [`Dots`] stands for
//! those, in a file each.

use std::{
    arch::{aarch64::*, asm},
    marker::PhantomData,
};

use super::{
    BlockColumns, Groups, LANES, Simd, each,
    neon_quads::{first_of_pair, magnitude, power_of_two, second_of_pair, to_bf16, transpose},
};

/// How four bytes a lane are multiplied and added up.
pub(crate) trait Dots: Copy + Send + Sync {
    /// What a sum begins with, given `-128 Σ a` over all activations that follow.
    fn start(minus_128_sum: i32) -> i32;

    /// Adds, to four lanes, products of weights with the four activations in one lane of `a`, so
    /// that from [`start`](Self::start) on the sum is `Σ (weights - 128) · a`.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn add<const LANE: i32>(sums: int32x4_t, weights: uint8x16_t, a: int8x16_t)
    -> int32x4_t;
}

/// Proof that the processor has NEON and what `D` adds to it, all of which
/// [`Isa::run`](crate::Isa) enables.
#[derive(Clone, Copy)]
pub(crate) struct Neon<D>(PhantomData<D>);

impl<D> Neon<D> {
    /// # Safety
    /// The processor has NEON and the instructions of `D`.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(PhantomData)
    }
}

/// Intrinsics that touch registers only.
macro_rules! registers {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { $($body)* }
    };
}

type Floats = [float32x4_t; 4];
type Integers = [int32x4_t; 4];
type Bytes = [uint8x16_t; 4];

/// An operation on each register of some vectors.
macro_rules! each_register {
    ($operation:ident, $($vector:ident),+) => {
        registers! {
            [
                $operation($($vector[0]),+),
                $operation($($vector[1]),+),
                $operation($($vector[2]),+),
                $operation($($vector[3]),+),
            ]
        }
    };
}

impl<D: Dots> Simd for Neon<D> {
    type F32 = Floats;
    type I32 = Integers;
    type Bytes = Bytes;

    // 16 of the 32 registers are sums.
    const COLUMNS: usize = 4;

    #[inline(always)]
    fn splat(self, value: f32) -> Floats {
        registers! { [vdupq_n_f32(value); 4] }
    }
    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        each_register!(vaddq_f32, a, b)
    }
    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        each_register!(vsubq_f32, a, b)
    }
    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        each_register!(vmulq_f32, a, b)
    }
    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        each_register!(vdivq_f32, a, b)
    }
    #[inline(always)]
    fn mul_add(self, a: Floats, b: Floats, c: Floats) -> Floats {
        each_register!(vfmaq_f32, c, a, b)
    }
    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        each_register!(vmaxq_f32, a, b)
    }
    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        each_register!(vminq_f32, a, b)
    }
    #[inline(always)]
    fn round(self, a: Floats) -> Floats {
        each_register!(vrndnq_f32, a)
    }
    #[inline(always)]
    fn power_of_two(self, a: Floats) -> Floats {
        each_register!(power_of_two, a)
    }
    #[inline(always)]
    fn select_below(self, a: Floats, limit: f32, low: Floats, high: Floats) -> Floats {
        let limit = self.splat(limit);
        let below = each_register!(vcltq_f32, a, limit);
        each_register!(vbslq_f32, below, low, high)
    }
    #[inline(always)]
    fn keep_lanes(self, a: Floats, first: usize, end: usize, fill: f32) -> Floats {
        static NUMBERS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let fill = self.splat(fill);
        let kept: [uint32x4_t; 4] = std::array::from_fn(|register| {
            // SAFETY: there are 16 numbers; `self` proves that the processor has the instructions.
            unsafe {
                let lanes = vld1q_u32(&raw const NUMBERS[4 * register]);
                let kept = vcgeq_u32(lanes, vdupq_n_u32(first as u32));
                vandq_u32(kept, vcltq_u32(lanes, vdupq_n_u32(end as u32)))
            }
        });
        each_register!(vbslq_f32, kept, a, fill)
    }
    #[inline(always)]
    fn sum(self, a: Floats) -> f32 {
        registers! {
            let four = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
            vaddv_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)))
        }
    }
    #[inline(always)]
    fn largest(self, a: Floats) -> f32 {
        registers! { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a[0], a[1]), vmaxq_f32(a[2], a[3]))) }
    }
    #[inline(always)]
    fn larger_magnitude(self, a: Floats, b: Floats) -> Floats {
        // As integers the magnitudes have the same order, with NaN above all.
        let (a, b) = (each_register!(magnitude, a), each_register!(magnitude, b));
        let larger = each_register!(vmaxq_u32, a, b);
        each_register!(vreinterpretq_f32_u32, larger)
    }
    #[inline(always)]
    fn transpose(self, rows: [Floats; LANES]) -> [Floats; LANES] {
        let mut columns = rows;
        each!(to in 4, 0 1 2 3 => each!(from in 4, 0 1 2 3 => {
            let mut square = [rows[0][0]; 4];
            each!(i in 4, 0 1 2 3 => square[i] = rows[4 * from + i][to]);
            // SAFETY: `self` proves that the processor has the instructions.
            let square = unsafe { transpose(square) };
            each!(i in 4, 0 1 2 3 => columns[4 * to + i][from] = square[i]);
        }));
        columns
    }

    #[inline(always)]
    fn to_f32(self, a: Integers) -> Floats {
        each_register!(vcvtq_f32_s32, a)
    }
    #[inline(always)]
    fn to_i32(self, a: Floats) -> Integers {
        each_register!(vcvtnq_s32_f32, a)
    }
    #[inline(always)]
    fn shift_bits(self, a: Bytes, left: i32, mask: u8) -> Bytes {
        // A negative count shifts to the right.
        registers! {
            let (count, mask) = (vdupq_n_s8(left as i8), vdupq_n_u8(mask));
            [
                vandq_u8(vshlq_u8(a[0], count), mask),
                vandq_u8(vshlq_u8(a[1], count), mask),
                vandq_u8(vshlq_u8(a[2], count), mask),
                vandq_u8(vshlq_u8(a[3], count), mask),
            ]
        }
    }
    #[inline(always)]
    fn or(self, a: Bytes, b: Bytes) -> Bytes {
        each_register!(vorrq_u8, a, b)
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; LANES], a: Bytes) -> Bytes {
        // SAFETY: 16 bytes are read; `self` proves that the processor has the instructions.
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            [
                vqtbl1q_u8(table, a[0]),
                vqtbl1q_u8(table, a[1]),
                vqtbl1q_u8(table, a[2]),
                vqtbl1q_u8(table, a[3]),
            ]
        }
    }
    #[inline(always)]
    fn dot_start(self, minus_128_sum: i32) -> Integers {
        registers! { [vdupq_n_s32(D::start(minus_128_sum)); 4] }
    }
    #[inline(always)]
    fn dot(self, sums: Integers, weights: Bytes, a: i32) -> Integers {
        registers! {
            let a = vreinterpretq_s8_s32(vsetq_lane_s32::<0>(a, vdupq_n_s32(0)));
            [
                D::add::<0>(sums[0], weights[0], a),
                D::add::<0>(sums[1], weights[1], a),
                D::add::<0>(sums[2], weights[2], a),
                D::add::<0>(sums[3], weights[3], a),
            ]
        }
    }
    #[inline(always)]
    unsafe fn add_block<const P: usize, const N: usize, const SHARES: usize>(
        self,
        sums: &mut [[Floats; N]; P],
        weights: &[impl Groups<Self>; P],
        scales: &[[Floats; 2]; P],
        columns: BlockColumns,
    ) {
        let ([sums], [weights], [scales]) = (&mut sums[..], &weights[..], &scales[..]) else {
            unreachable!("invariant: one panel at a time")
        };
        // SAFETY: the caller's.
        unsafe {
            if N == 1 {
                add_rows::<D, N, SHARES, 0, 4>(sums, weights, *scales, columns);
            } else {
                add_rows::<D, N, SHARES, 0, 2>(sums, weights, *scales, columns);
                add_rows::<D, N, SHARES, 2, 2>(sums, weights, *scales, columns);
            }
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Floats {
        // SAFETY: the caller's.
        unsafe {
            [
                vld1q_f32(from),
                vld1q_f32(from.add(4)),
                vld1q_f32(from.add(8)),
                vld1q_f32(from.add(12)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Floats {
        // SAFETY: the caller's.
        unsafe {
            let low = vreinterpretq_f16_u16(vld1q_u16(from));
            let high = vreinterpretq_f16_u16(vld1q_u16(from.add(8)));
            [
                vcvt_f32_f16(vget_low_f16(low)),
                vcvt_high_f32_f16(low),
                vcvt_f32_f16(vget_low_f16(high)),
                vcvt_high_f32_f16(high),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Floats {
        // SAFETY: the caller's.
        unsafe {
            let (low, high) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            [
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(low))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(low)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Floats {
        // SAFETY: the caller's.
        unsafe {
            let bytes = vld1q_s8(from);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_groups(self, to: *mut u8, a: Bytes) {
        // SAFETY: the caller's.
        unsafe {
            vst1q_u8(to, a[0]);
            vst1q_u8(to.add(16), a[1]);
            vst1q_u8(to.add(32), a[2]);
            vst1q_u8(to.add(48), a[3]);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [Floats; 2] {
        // SAFETY: the caller's.
        let pairs = unsafe { self.load_bytes(from.cast()) };
        [
            each_register!(first_of_pair, pairs),
            each_register!(second_of_pair, pairs),
        ]
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Bytes {
        // SAFETY: the caller's.
        unsafe {
            [
                vld1q_u8(from),
                vld1q_u8(from.add(16)),
                vld1q_u8(from.add(32)),
                vld1q_u8(from.add(48)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Floats) {
        // SAFETY: the caller's.
        unsafe {
            vst1q_f32(to, a[0]);
            vst1q_f32(to.add(4), a[1]);
            vst1q_f32(to.add(8), a[2]);
            vst1q_f32(to.add(12), a[3]);
        }
    }
    #[inline(always)]
    unsafe fn store_i32(self, to: *mut i32, a: Integers) {
        // SAFETY: the caller's.
        unsafe {
            vst1q_s32(to, a[0]);
            vst1q_s32(to.add(4), a[1]);
            vst1q_s32(to.add(8), a[2]);
            vst1q_s32(to.add(12), a[3]);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, a: Floats) {
        // SAFETY: the caller's.
        unsafe {
            let low = vcvt_high_f16_f32(vcvt_f16_f32(a[0]), a[1]);
            let high = vcvt_high_f16_f32(vcvt_f16_f32(a[2]), a[3]);
            vst1q_u16(to, vreinterpretq_u16_f16(low));
            vst1q_u16(to.add(8), vreinterpretq_u16_f16(high));
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: Floats) {
        // SAFETY: the caller's.
        unsafe {
            // The upper halves of both.
            let upper = |a, b| vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
            vst1q_u16(to, upper(to_bf16(a[0]), to_bf16(a[1])));
            vst1q_u16(to.add(8), upper(to_bf16(a[2]), to_bf16(a[3])));
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, a: Integers) {
        // SAFETY: the caller's.
        unsafe {
            let low = vcombine_s16(vmovn_s32(a[0]), vmovn_s32(a[1]));
            let high = vcombine_s16(vmovn_s32(a[2]), vmovn_s32(a[3]));
            vst1q_s8(to, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        }
    }
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // What Arm's first levels keep open was not measured: as before, the nearest.
        self.prefetch_near(address);
    }
    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        // SAFETY: a hint, which faults at no address.
        unsafe {
            asm!(
                "prfm pldl1keep, [{address}]",
                address = in(reg) address.addr(),
                options(nomem, nostack, preserves_flags)
            );
        }
    }
}

/// [`Simd::add_block`] for the rows in registers `FIRST .. FIRST + COUNT`.
///
/// Eight rows of four columns fill the registers: 16 sums of all rows, 8 integers, the quants of 4
/// columns, 2 of weights. With dot products a Q8_0 block of 16 rows and four columns, 2048
/// multiply-adds, is about 280 instructions: 128 dot products, 48 to scale their results, about 40
/// that load and as many that spill or fill, 32 that make weights signed (`sdot` alone), the rest to
/// set sums up. Without dot products it is 830. A lone column takes 96 with `usdot` and 128 with
/// `sdot`, of which 18 load 544 bytes of weights: memory is the limit there.
///
/// # Safety
/// As for [`Simd::add_block`]; the processor has the instructions of `D`.
#[inline(always)]
unsafe fn add_rows<
    D: Dots,
    const N: usize,
    const SHARES: usize,
    const FIRST: usize,
    const COUNT: usize,
>(
    sums: &mut [Floats; N],
    weights: &impl Groups<Neon<D>>,
    scales: [Floats; 2],
    columns: BlockColumns,
) {
    // SAFETY: the caller's: all offsets are inside of the columns.
    unsafe {
        let zero = vdupq_n_s32(0);
        let mut dots = [[zero; COUNT]; N];
        let mut shared = [[vdupq_n_f32(0.0); COUNT]; N];
        each!(half in 2, 0 1 => {
            let mut quants = [vdupq_n_s8(0); N];
            each!(c in N => quants[c] = vld1q_s8(columns.quants.add(c * 32 + half * 16)));
            if half == 0 || SHARES == 2 {
                each!(c in N => {
                    dots[c] = [vdupq_n_s32(D::start(*columns.starts[half].add(c))); COUNT];
                });
            }
            each!(lane in 4, 0 1 2 3 => {
                let weights = weights.group(half * 4 + lane);
                each!(row in COUNT, 0 1 2 3 => each!(c in N => {
                    let weights = weights[FIRST + row];
                    dots[c][row] = D::add::<{ lane as i32 }>(dots[c][row], weights, quants[c]);
                }));
            });
            if SHARES == 2 {
                each!(c in N => each!(row in COUNT, 0 1 2 3 => {
                    let dot = vcvtq_f32_s32(dots[c][row]);
                    shared[c][row] = match half {
                        0 => vmulq_f32(dot, scales[0][FIRST + row]),
                        _ => vfmaq_f32(shared[c][row], dot, scales[1][FIRST + row]),
                    };
                }));
            }
        });
        each!(c in N => {
            let scale = vdupq_n_f32(*columns.scales.add(c));
            each!(row in COUNT, 0 1 2 3 => {
                let (dot, scale) = match SHARES {
                    1 => {
                        let dot = vcvtq_f32_s32(dots[c][row]);
                        (dot, vmulq_f32(scales[0][FIRST + row], scale))
                    }
                    _ => (shared[c][row], scale),
                };
                sums[c][FIRST + row] = vfmaq_f32(sums[c][FIRST + row], dot, scale);
            });
        });
    }
}
