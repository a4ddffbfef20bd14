//! AVX2 with FMA and F16C: two registers hold the 16 lanes. Must not know operations.
//!
//! Owns all but products of bytes: processors differ in how they do those, see [`Products`].

use std::{arch::x86_64::*, marker::PhantomData};

use super::{BlockColumns, Groups, LANES, Simd, each};

/// How bytes are multiplied.
pub(crate) trait Products: Copy + Send + Sync {
    /// See [`Simd::WANTS_SMALL`].
    const WANTS_SMALL: bool;

    /// [`Simd::dot`] for 8 rows; `a` holds the same 4 bytes for each.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn dot(sums: __m256i, weights: __m256i, a: __m256i) -> __m256i;

    /// [`Simd::fastest_dot`], likewise.
    ///
    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    unsafe fn fastest_dot(sums: __m256i, weights: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { Self::dot(sums, weights, a) }
    }

    /// [`Simd::add_block`] for one panel.
    ///
    /// # Safety
    /// As there.
    unsafe fn add_block<const N: usize, const SHARES: usize, W: Groups<Avx2<Self>>>(
        s: Avx2<Self>,
        sums: &mut [Floats; N],
        weights: &W,
        scales: &[Floats; 2],
        columns: BlockColumns,
    );
}

/// Proof that the processor has the features that [`Isa::run`](crate::Isa) enables with it.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<D>(PhantomData<D>);

impl<D: Products> Avx2<D> {
    /// # Safety
    /// The processor has AVX2, FMA and F16C, and what `D` multiplies with.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Self(PhantomData)
    }

    /// Adds the integers of a share of a block, under their scales, to the sums: those of the first of two
    /// wait in `lower` for the second.
    ///
    /// # Safety
    /// As for [`Simd::add_block`].
    #[inline(always)]
    pub(super) unsafe fn add_scaled<const N: usize, const SHARES: usize>(
        self,
        share: usize,
        sums: &mut [Floats; N],
        lower: &mut [Floats; N],
        dots: &[Integers; N],
        scales: &[Floats; 2],
        columns: BlockColumns,
    ) {
        each!(c in N => {
            let dot = self.to_f32(dots[c]);
            if share + 1 < SHARES {
                lower[c] = self.mul(dot, scales[0]);
            } else {
                // SAFETY: the caller's.
                let scale = self.splat(unsafe { *columns.scales.add(c) });
                sums[c] = match SHARES {
                    1 => self.mul_add(dot, self.mul(scales[0], scale), sums[c]),
                    _ => self.mul_add(self.mul_add(dot, scales[1], lower[c]), scale, sums[c]),
                };
            }
        });
    }
}

/// Intrinsics that touch registers only.
macro_rules! registers {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { $($body)* }
    };
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

pub(super) type Floats = [__m256; 2];
pub(super) type Integers = [__m256i; 2];

impl<D: Products> Simd for Avx2<D> {
    type F32 = Floats;
    type I32 = Integers;
    type Bytes = Integers;

    const COLUMNS: usize = 4;
    // 3 KiB are 4 % faster than 8 (Zen 3), 2 and 4 less so, and 1 KiB is too near.
    const AHEAD: usize = 3 << 10;
    const WANTS_SMALL: bool = D::WANTS_SMALL;

    #[inline(always)]
    fn splat(self, value: f32) -> Floats {
        registers! { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    fn add(self, a: Floats, b: Floats) -> Floats {
        registers! { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Floats, b: Floats) -> Floats {
        registers! { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Floats, b: Floats) -> Floats {
        registers! { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Floats, b: Floats) -> Floats {
        registers! { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul_add(self, a: Floats, b: Floats, c: Floats) -> Floats {
        registers! { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: Floats, b: Floats) -> Floats {
        registers! { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn min(self, a: Floats, b: Floats) -> Floats {
        registers! { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn round(self, a: Floats) -> Floats {
        registers! { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }
    #[inline(always)]
    fn power_of_two(self, a: Floats) -> Floats {
        registers! { [power_of_two(a[0]), power_of_two(a[1])] }
    }
    #[inline(always)]
    fn select_below(self, a: Floats, limit: f32, low: Floats, high: Floats) -> Floats {
        registers! {
            let limit = _mm256_set1_ps(limit);
            [
                _mm256_blendv_ps(high[0], low[0], _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], limit)),
                _mm256_blendv_ps(high[1], low[1], _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], limit)),
            ]
        }
    }
    #[inline(always)]
    fn keep_lanes(self, a: Floats, first: usize, end: usize, fill: f32) -> Floats {
        registers! {
            let low = lanes_between(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), first, end);
            let high = lanes_between(_mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), first, end);
            let fill = _mm256_set1_ps(fill);
            [_mm256_blendv_ps(fill, a[0], low), _mm256_blendv_ps(fill, a[1], high)]
        }
    }
    #[inline(always)]
    fn sum(self, a: Floats) -> f32 {
        registers! {
            let eight = _mm256_add_ps(a[0], a[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn largest(self, a: Floats) -> f32 {
        registers! {
            let eight = _mm256_max_ps(a[0], a[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
    #[inline(always)]
    fn larger_magnitude(self, a: Floats, b: Floats) -> Floats {
        // As integers the magnitudes have the same order, with NaN above all.
        registers! {
            [
                _mm256_castsi256_ps(_mm256_max_epi32(magnitude(a[0]), magnitude(b[0]))),
                _mm256_castsi256_ps(_mm256_max_epi32(magnitude(a[1]), magnitude(b[1]))),
            ]
        }
    }
    #[inline(always)]
    fn transpose(self, rows: [Floats; LANES]) -> [Floats; LANES] {
        let mut columns = rows;
        each!(half in 2, 0 1 => {
            let mut square = [rows[0][half]; 8];
            each!(rest in 2, 0 1 => {
                each!(i in 8, 0 1 2 3 4 5 6 7 => square[i] = rows[8 * rest + i][half]);
                // SAFETY: `self` proves that the processor has the instructions.
                let square = unsafe { transpose(square) };
                each!(i in 8, 0 1 2 3 4 5 6 7 => columns[8 * half + i][rest] = square[i]);
            });
        });
        columns
    }

    #[inline(always)]
    fn to_f32(self, a: Integers) -> Floats {
        registers! { [_mm256_cvtepi32_ps(a[0]), _mm256_cvtepi32_ps(a[1])] }
    }
    #[inline(always)]
    fn to_i32(self, a: Floats) -> Integers {
        registers! { [_mm256_cvtps_epi32(a[0]), _mm256_cvtps_epi32(a[1])] }
    }
    #[inline(always)]
    fn shift_bits(self, a: Integers, left: i32, mask: u8) -> Integers {
        registers! { [shift_bits(a[0], left, mask), shift_bits(a[1], left, mask)] }
    }
    #[inline(always)]
    fn or(self, a: Integers, b: Integers) -> Integers {
        registers! { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; LANES], a: Integers) -> Integers {
        // SAFETY: 16 bytes are read; `self` proves that the processor has the instructions.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [
                _mm256_shuffle_epi8(table, a[0]),
                _mm256_shuffle_epi8(table, a[1]),
            ]
        }
    }
    #[inline(always)]
    fn dot_start(self, minus_128_sum: i32) -> Integers {
        // Weights enter as unsigned, 128 too large.
        registers! { [_mm256_set1_epi32(minus_128_sum); 2] }
    }
    #[inline(always)]
    fn dot(self, sums: Integers, weights: Integers, a: i32) -> Integers {
        registers! {
            let a = _mm256_set1_epi32(a);
            [D::dot(sums[0], weights[0], a), D::dot(sums[1], weights[1], a)]
        }
    }
    #[inline(always)]
    fn fastest_dot(self, sums: Integers, weights: Integers, a: i32) -> Integers {
        registers! {
            let a = _mm256_set1_epi32(a);
            [D::fastest_dot(sums[0], weights[0], a), D::fastest_dot(sums[1], weights[1], a)]
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
        unsafe { D::add_block::<N, SHARES, _>(self, sums, weights, scales, columns) };
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Floats {
        // SAFETY: the caller's.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_f16(self, from: *const u16) -> Floats {
        // SAFETY: the caller's.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, from: *const u16) -> Floats {
        // SAFETY: the caller's.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Floats {
        // SAFETY: the caller's.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn store_groups(self, to: *mut u8, a: Integers) {
        // SAFETY: the caller's.
        unsafe {
            _mm256_storeu_si256(to.cast(), a[0]);
            _mm256_storeu_si256(to.add(32).cast(), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [Floats; 2] {
        // SAFETY: the caller's.
        unsafe {
            let pairs = self.load_bytes(from.cast());
            let upper = _mm256_set1_epi32(0xFFFF_0000_u32.cast_signed());
            [
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[0])),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs[1])),
                ],
                [
                    _mm256_castsi256_ps(_mm256_and_si256(pairs[0], upper)),
                    _mm256_castsi256_ps(_mm256_and_si256(pairs[1], upper)),
                ],
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Integers {
        // SAFETY: the caller's.
        unsafe {
            [
                _mm256_loadu_si256(from.cast()),
                _mm256_loadu_si256(from.add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32, a: Floats) {
        // SAFETY: the caller's.
        unsafe {
            _mm256_storeu_ps(to, a[0]);
            _mm256_storeu_ps(to.add(8), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_i32(self, to: *mut i32, a: Integers) {
        // SAFETY: the caller's.
        unsafe {
            _mm256_storeu_si256(to.cast(), a[0]);
            _mm256_storeu_si256(to.add(8).cast(), a[1]);
        }
    }
    #[inline(always)]
    unsafe fn store_f16(self, to: *mut u16, a: Floats) {
        // SAFETY: the caller's.
        unsafe {
            _mm_storeu_si128(
                to.cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a[0]),
            );
            _mm_storeu_si128(
                to.add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(a[1]),
            );
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16, a: Floats) {
        // SAFETY: the caller's.
        unsafe {
            // Packs within 128-bit halves, hence the reordering.
            let packed = _mm256_packus_epi32(to_bf16(a[0]), to_bf16(a[1]));
            _mm256_storeu_si256(to.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut i8, a: Integers) {
        // SAFETY: the caller's.
        unsafe {
            let words = _mm256_packs_epi32(a[0], a[1]);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let low = _mm256_castsi256_si128(words);
            let bytes = _mm_packs_epi16(low, _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(to.cast(), bytes);
        }
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

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn power_of_two(a: __m256) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
    }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
    let mut pairs = rows;
    let mut fours = rows;
    let mut columns = rows;
    // SAFETY: the caller's.
    unsafe {
        // Of two rows, lanes 0 and 1 of either half side by side, then lanes 2 and 3.
        each!(i in 4, 0 1 2 3 => {
            pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        });
        // Of four rows, one lane of either half.
        each!(i in 2, 0 1 => each!(pair in 2, 0 1 => {
            let (upper, lower) = (pairs[4 * i + pair], pairs[4 * i + pair + 2]);
            fours[4 * i + 2 * pair] = _mm256_shuffle_ps::<0b01_00_01_00>(upper, lower);
            fours[4 * i + 2 * pair + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(upper, lower);
        }));
        each!(lane in 4, 0 1 2 3 => {
            let (upper, lower) = (fours[lane], fours[4 + lane]);
            columns[lane] = _mm256_permute2f128_ps::<0b0010_0000>(upper, lower);
            columns[4 + lane] = _mm256_permute2f128_ps::<0b0011_0001>(upper, lower);
        });
    }
    columns
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn shift_bits(a: __m256i, left: i32, mask: u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        // The count is a constant, and becomes part of the instruction.
        let count = _mm_cvtsi32_si128(left.abs());
        let shifted = match left {
            0 => a,
            1.. => _mm256_sll_epi16(a, count),
            _ => _mm256_srl_epi16(a, count),
        };
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask.cast_signed()))
    }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn lanes_between(lanes: __m256i, first: usize, end: usize) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        let before = _mm256_cmpgt_epi32(_mm256_set1_epi32(first as i32), lanes);
        let within = _mm256_cmpgt_epi32(_mm256_set1_epi32(end as i32), lanes);
        _mm256_castsi256_ps(_mm256_andnot_si256(before, within))
    }
}

/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn magnitude(a: __m256) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(i32::MAX)) }
}

/// Brain floats in the lower halves of 32 bits.
///
/// # Safety
/// AVX2.
#[inline(always)]
unsafe fn to_bf16(a: __m256) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        let bits = _mm256_castps_si256(a);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
        let rounded = _mm256_castsi256_ps(_mm256_add_epi32(bits, half));
        // Rounding could carry a NaN over to infinity: a NaN is cut and made quiet instead.
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(a, a);
        let kept = _mm256_blendv_ps(rounded, _mm256_castsi256_ps(quiet), nan);
        _mm256_srli_epi32::<16>(_mm256_castps_si256(kept))
    }
}
