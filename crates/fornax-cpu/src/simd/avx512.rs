//! AVX-512 with VNNI: one register holds the 16 lanes. Must not know operations.

use std::arch::{asm, x86_64::*};
use std::sync::atomic::{Ordering, compiler_fence};

use super::{BlockColumns, GROUPS, Groups, LANES, Simd, each};
use crate::panel::BLOCK;

/// Sums that grow side by side: a product takes 5 cycles to come out of the pipes, two start a cycle,
/// and each waits for the one before it.
const SIDE_BY_SIDE: usize = 8;

/// Columns of a pair of panels that registers have room for if a fence alone keeps loads in order.
const FENCED: usize = 4;

/// Proof that the processor has the features that [`Isa::run`](crate::Isa) enables with it.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor has AVX-512 F, BW, DQ, VL and VNNI, and F16C.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

/// Intrinsics that touch registers only.
macro_rules! registers {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { $($body)* }
    };
}

/// One vector of 16: lane `r` is what joins all lanes of row `r`. Every step joins two halves of twice
/// as many vectors, which takes 30 shuffles where a transposition takes 64.
macro_rules! join_lanes {
    ($s:ident.$join:ident, $rows:ident) => {{
        const LOWER: i32 = 0b01_00_01_00;
        const UPPER: i32 = 0b11_10_11_10;
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        let (mut halves, mut fours) = ([$rows[0]; 8], [$rows[0]; 4]);
        let mut eights = [$rows[0]; 2];
        // A half for each of two rows.
        each!(i in 8, 0 1 2 3 4 5 6 7 => {
            let (a, b) = ($rows[i % 4 + i / 4 * 8], $rows[i % 4 + i / 4 * 8 + 4]);
            halves[i] = $s.$join(_mm512_shuffle_f32x4::<LOWER>(a, b), _mm512_shuffle_f32x4::<UPPER>(a, b));
        });
        // A quarter for each of four.
        each!(i in 4, 0 1 2 3 => {
            let (a, b) = (halves[i], halves[i + 4]);
            fours[i] = $s.$join(_mm512_shuffle_f32x4::<EVEN>(a, b), _mm512_shuffle_f32x4::<ODD>(a, b));
        });
        // Two lanes for each of eight, and one for each of all.
        each!(i in 2, 0 1 => {
            let (a, b) = (_mm512_castps_pd(fours[2 * i]), _mm512_castps_pd(fours[2 * i + 1]));
            let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
            eights[i] = $s.$join(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        });
        let [a, b] = eights;
        $s.$join(_mm512_shuffle_ps::<EVEN>(a, b), _mm512_shuffle_ps::<ODD>(a, b))
    }};
}

impl Simd for Avx512 {
    type F32 = __m512;
    type I32 = __m512i;
    type Bytes = __m512i;

    const COLUMNS: usize = 16;
    // A product of one panel loads its activations itself, and loads take longer than products then.
    const PANELS: usize = 2;

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        registers! { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        registers! { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        registers! { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        registers! { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        registers! { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        registers! { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        registers! { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        registers! { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: __m512) -> __m512 {
        registers! { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn power_of_two(self, a: __m512) -> __m512 {
        registers! { _mm512_scalef_ps(_mm512_set1_ps(1.0), a) }
    }
    #[inline(always)]
    fn select_below(self, a: __m512, limit: f32, low: __m512, high: __m512) -> __m512 {
        registers! {
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, _mm512_set1_ps(limit));
            _mm512_mask_blend_ps(below, high, low)
        }
    }
    #[inline(always)]
    fn keep_lanes(self, a: __m512, first: usize, end: usize, fill: f32) -> __m512 {
        let kept = ((1_u32 << end) - (1_u32 << first)) as u16;
        registers! { _mm512_mask_blend_ps(kept, _mm512_set1_ps(fill), a) }
    }
    #[inline(always)]
    fn sum(self, a: __m512) -> f32 {
        registers! { _mm512_reduce_add_ps(a) }
    }
    #[inline(always)]
    fn largest(self, a: __m512) -> f32 {
        registers! { _mm512_reduce_max_ps(a) }
    }
    #[inline(always)]
    fn larger_magnitude(self, a: __m512, b: __m512) -> __m512 {
        // As integers the magnitudes have the same order, with NaN above all.
        registers! {
            let a = _mm512_castps_si512(_mm512_abs_ps(a));
            let b = _mm512_castps_si512(_mm512_abs_ps(b));
            _mm512_castsi512_ps(_mm512_max_epi32(a, b))
        }
    }
    #[inline(always)]
    fn transpose(self, rows: [__m512; LANES]) -> [__m512; LANES] {
        let mut pairs = rows;
        let mut fours = rows;
        let mut columns = rows;
        registers! {
            // Of two rows, lanes 0 and 1 of every quarter side by side, then lanes 2 and 3.
            each!(i in 8, 0 1 2 3 4 5 6 7 => {
                pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            });
            // Of four rows, one lane of every quarter.
            each!(i in 4, 0 1 2 3 => each!(half in 2, 0 1 => {
                let upper = _mm512_castps_pd(pairs[4 * i + half]);
                let lower = _mm512_castps_pd(pairs[4 * i + half + 2]);
                fours[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(upper, lower));
                fours[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(upper, lower));
            }));
            // Quarters of four vectors become quarters of one.
            const EVEN: i32 = 0b10_00_10_00;
            const ODD: i32 = 0b11_01_11_01;
            each!(lane in 4, 0 1 2 3 => {
                let even = [
                    _mm512_shuffle_f32x4::<EVEN>(fours[lane], fours[4 + lane]),
                    _mm512_shuffle_f32x4::<EVEN>(fours[8 + lane], fours[12 + lane]),
                ];
                let odd = [
                    _mm512_shuffle_f32x4::<ODD>(fours[lane], fours[4 + lane]),
                    _mm512_shuffle_f32x4::<ODD>(fours[8 + lane], fours[12 + lane]),
                ];
                columns[lane] = _mm512_shuffle_f32x4::<EVEN>(even[0], even[1]);
                columns[4 + lane] = _mm512_shuffle_f32x4::<EVEN>(odd[0], odd[1]);
                columns[8 + lane] = _mm512_shuffle_f32x4::<ODD>(even[0], even[1]);
                columns[12 + lane] = _mm512_shuffle_f32x4::<ODD>(odd[0], odd[1]);
            });
        }
        columns
    }

    #[inline(always)]
    fn sum_of_each(self, rows: [__m512; LANES]) -> __m512 {
        registers! { join_lanes!(self.add, rows) }
    }
    #[inline(always)]
    fn largest_magnitude_of_each(self, rows: [__m512; LANES]) -> __m512 {
        registers! { join_lanes!(self.larger_magnitude, rows) }
    }

    #[inline(always)]
    fn to_f32(self, a: __m512i) -> __m512 {
        registers! { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    fn to_i32(self, a: __m512) -> __m512i {
        registers! { _mm512_cvtps_epi32(a) }
    }

    #[inline(always)]
    fn shift_bits(self, a: __m512i, left: i32, mask: u8) -> __m512i {
        registers! {
            // The count is a constant, and becomes part of the instruction.
            let count = _mm_cvtsi32_si128(left.abs());
            let shifted = match left {
                0 => a,
                1.. => _mm512_sll_epi16(a, count),
                _ => _mm512_srl_epi16(a, count),
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask.cast_signed()))
        }
    }
    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        registers! { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; LANES], a: __m512i) -> __m512i {
        // SAFETY: 16 bytes are read; `self` proves that the processor has the instructions.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, a)
        }
    }
    #[inline(always)]
    fn dot_start(self, minus_128_sum: i32) -> __m512i {
        // Weights enter as unsigned, 128 too large: the start takes that back for free.
        registers! { _mm512_set1_epi32(minus_128_sum) }
    }
    #[inline(always)]
    fn dot(self, sums: __m512i, weights: __m512i, a: i32) -> __m512i {
        registers! { _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(a)) }
    }

    #[inline(always)]
    unsafe fn add_block<const P: usize, const N: usize, const SHARES: usize>(
        self,
        sums: &mut [[__m512; N]; P],
        weights: &[impl Groups<Self>; P],
        scales: &[[__m512; 2]; P],
        columns: BlockColumns,
    ) {
        // SAFETY: the caller's: all of `N` columns, or either half of 16.
        unsafe {
            if P == 2 || N <= SIDE_BY_SIDE {
                add_columns::<P, N, N, SHARES>(self, 0, sums, weights, scales, columns);
            } else {
                const EACH: usize = SIDE_BY_SIDE;
                add_columns::<P, N, EACH, SHARES>(self, 0, sums, weights, scales, columns);
                add_columns::<P, N, EACH, SHARES>(self, EACH, sums, weights, scales, columns);
            }
        }
    }

    /// Nine instructions of a block of 16 rows and a column wait for the pipes that multiply, not ten:
    /// what makes the scale of both is added, on others. Of two panels and six columns 24 sums are in
    /// registers, 12 of them of the block alone.
    #[inline(always)]
    unsafe fn add_coarse_block<const P: usize, const N: usize>(
        self,
        sums: &mut [[__m512; N]; P],
        weights: &[impl Groups<Self>; P],
        columns: BlockColumns,
    ) {
        let [starts, bases, terms] = columns.coarse;
        // SAFETY: the caller's.
        unsafe {
            let mut dots = [[self.dot_start(0); N]; P];
            each!(c in N => each!(p in P, 0 1 => dots[p][c] = self.dot_start(*starts.add(c))));
            add_groups::<P, N>(self, 0, &mut dots, weights, columns.quants);
            add_groups::<P, N>(self, 1, &mut dots, weights, columns.quants);
            // Loaded when their turn comes, too.
            let mut scales = [self.splat(0.0); P];
            each!(p in P, 0 1 => scales[p] = weights[p].scale());
            each!(c in N => {
                let base = self.splat(f32::from_bits((*bases.add(c)).cast_unsigned()));
                let term = _mm512_set1_epi32(*terms.add(c));
                each!(p in P, 0 1 => {
                    let dot = self.sub(_mm512_castsi512_ps(dots[p][c]), base);
                    let scale = scales[p];
                    let term = _mm512_add_epi32(_mm512_castps_si512(scale), term);
                    let scale = self.add(scale, _mm512_castsi512_ps(term));
                    sums[p][c] = self.mul_add(dot, scale, sums[p][c]);
                });
            });
        }
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_groups(self, to: *mut u8, a: __m512i) {
        // SAFETY: the caller's.
        unsafe { _mm512_storeu_si512(to.cast(), a) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [__m512; 2] {
        // SAFETY: the caller's.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let upper = _mm512_set1_epi32(0xFFFF_0000_u32.cast_signed());
            [
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)),
                _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> __m512i {
        // SAFETY: the caller's.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: __m512) {
        // SAFETY: the caller's.
        unsafe { _mm512_storeu_ps(to, a) }
    }
    #[inline(always)]
    unsafe fn store_i32(self, to: *mut i32, a: __m512i) {
        // SAFETY: the caller's.
        unsafe { _mm512_storeu_si512(to.cast(), a) }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, a: __m512) {
        // SAFETY: the caller's.
        unsafe {
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
            _mm256_storeu_si256(to.cast(), half);
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: __m512) {
        // SAFETY: the caller's.
        unsafe {
            let bits = _mm512_castps_si512(a);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
            // Rounding could carry a NaN over to infinity: a NaN is cut and made quiet instead.
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(a, a);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let kept = _mm512_mask_blend_epi32(nan, rounded, quiet);
            _mm256_storeu_si256(
                to.cast(),
                _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept)),
            );
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, a: __m512i) {
        // SAFETY: the caller's.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(a)) }
    }
    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        registers! { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_near(self, address: *const u8) {
        registers! { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
}

/// [`Simd::add_block`] for the columns `first .. first + COUNT`, one group of weights after another.
///
/// A Q8_0 block of 16 rows and one column, 512 multiply-adds, is 8 products, a conversion, and a product
/// and a sum that scale. A panel by itself loads for it 8 times four activations, a start, a scale and
/// (of 8 columns) a group: 11 loads, which Zen 5 does in 5.5 cycles. Two panels share all but the groups,
/// 7.25 loads each of four columns: then the pipes are the limit, for 10 of the 11 wait for the same two.
///
/// # Safety
/// As for [`Simd::add_block`]; there are so many columns.
#[inline(always)]
unsafe fn add_columns<const P: usize, const N: usize, const COUNT: usize, const SHARES: usize>(
    s: Avx512,
    first: usize,
    sums: &mut [[__m512; N]; P],
    weights: &[impl Groups<Avx512>; P],
    scales: &[[__m512; 2]; P],
    columns: BlockColumns,
) {
    let quants = columns.quants.wrapping_add(first * BLOCK);
    // SAFETY: the caller's: all offsets are inside of the columns.
    unsafe {
        let start = |share: usize, c: usize| s.dot_start(*columns.starts[share].add(first + c));
        let mut dots = [[s.dot_start(0); COUNT]; P];
        let mut lower = [[s.splat(0.0); COUNT]; P];
        each!(share in 2, 0 1 => {
            if share < SHARES {
                each!(c in COUNT => each!(p in P, 0 1 => dots[p][c] = start(share, c)));
            }
            add_groups::<P, COUNT>(s, share, &mut dots, weights, quants);
            if share == 0 && SHARES == 2 {
                each!(c in COUNT => each!(p in P, 0 1 => {
                    lower[p][c] = s.mul(s.to_f32(dots[p][c]), scales[p][0]);
                }));
            }
        });
        each!(c in COUNT => {
            let scale = s.splat(*columns.scales.add(first + c));
            each!(p in P, 0 1 => {
                let (dot, sum) = (s.to_f32(dots[p][c]), &mut sums[p][first + c]);
                *sum = match SHARES {
                    1 => s.mul_add(dot, s.mul(scales[p][0], scale), *sum),
                    _ => s.mul_add(s.mul_add(dot, scales[p][1], lower[p][c]), scale, *sum),
                };
            });
        });
    }
}

/// Adds the products of four groups of a block, the lower or the upper ones, with columns.
///
/// # Safety
/// `quants` are of so many columns. `[COUNT][32]`
#[inline(always)]
unsafe fn add_groups<const P: usize, const COUNT: usize>(
    s: Avx512,
    half: usize,
    dots: &mut [[__m512i; COUNT]; P],
    weights: &[impl Groups<Avx512>; P],
    quants: *const i8,
) {
    let quants = quants.cast::<i32>();
    each!(group in 4, 0 1 2 3 => {
        let place = 4 * half + group;
        // Loaded when their turn comes: all at once they would drive sums out of registers.
        if P == 2 && COUNT <= FENCED {
            compiler_fence(Ordering::SeqCst);
        }
        let mut of_panels = [weights[0].group(place); P];
        each!(p in P, 0 1 => of_panels[p] = weights[p].group(place));
        each!(c in COUNT => {
            // SAFETY: the caller's: inside of the columns.
            let four = unsafe { quants.add(c * GROUPS + place).read_unaligned() };
            each!(p in P, 0 1 => dots[p][c] = s.dot(dots[p][c], of_panels[p], four));
        });
        // Of more columns products would be put off until registers are short all the same.
        if P == 2 && COUNT > FENCED {
            // SAFETY: `s` proves that the processor has the registers.
            each!(c in COUNT => each!(p in P, 0 1 => dots[p][c] = unsafe { made(dots[p][c]) }));
        }
    });
}

/// A number that is made here: what makes it is not put off, and what is loaded later not brought forward.
///
/// # Safety
/// This processor has AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn made(mut a: __m512i) -> __m512i {
    // SAFETY: there is no instruction.
    unsafe { asm!("/* {} */", inout(zmm_reg) a, options(nostack, preserves_flags)) };
    a
}
