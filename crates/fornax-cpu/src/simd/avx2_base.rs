//! Products of bytes with AVX2 alone, which has no dot products of them. Must not know operations.
//!
//! `vpmaddubsw` multiplies 32 unsigned bytes with 32 signed ones and adds up pairs in 16 bits, `vpmaddwd`
//! 16 pairs of 16 bits in 32. Two of either start in a cycle, and two additions beside them (Zen 3). So
//! weights of up to 6 bits are multiplied as bytes, and their sums stay in 16 bits for as many groups as
//! fit; those of 8 bits, for which not even two products would, are made 16 bits wide on the way, and so
//! are activations.

use std::arch::{asm, x86_64::*};

use super::{
    BlockColumns, GROUPS, Groups, Simd,
    avx2::{Avx2, Floats, Products},
    each,
};
use crate::panel::BLOCK;

/// Bytes by way of 16 bits.
#[derive(Clone, Copy)]
pub(crate) enum Base {}

impl Products for Base {
    const WANTS_SMALL: bool = true;

    /// Four bytes alone; [blocks](Products::add_block) make activations words once for all rows.
    #[inline(always)]
    unsafe fn dot(sums: __m256i, weights: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe {
            let even = _mm256_madd_epi16(words_of_unsigned(weights, 0), words_of_signed(a, 0));
            let odd = _mm256_madd_epi16(words_of_unsigned(weights, 1), words_of_signed(a, 1));
            _mm256_add_epi32(sums, _mm256_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn fastest_dot(sums: __m256i, weights: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_add_epi16(sums, _mm256_maddubs_epi16(weights, a)) }
    }

    #[inline(always)]
    unsafe fn add_block<const N: usize, const SHARES: usize, W: Groups<Avx2<Self>>>(
        s: Avx2<Self>,
        sums: &mut [Floats; N],
        weights: &W,
        scales: &[Floats; 2],
        columns: BlockColumns,
    ) {
        // SAFETY: the caller's. Of each group 2 · 127 · (2^bits - 1) is added in 16 bits: 8 groups of 4
        // bits make 30,480, 4 of 5 31,496 and 2 of 6 32,004. What no weights of this kind take is left out, which
        // spares the compiler three of four.
        unsafe {
            match weights.bits() {
                ..=4 if const { W::BITS & 0b1_1111 != 0 } => {
                    add_small::<N, SHARES, 8>(s, sums, weights, scales, columns);
                }
                5 if const { W::BITS & 1 << 5 != 0 } => {
                    add_small::<N, SHARES, 4>(s, sums, weights, scales, columns);
                }
                6 if const { W::BITS & 1 << 6 != 0 } => {
                    add_small::<N, SHARES, 2>(s, sums, weights, scales, columns);
                }
                7.. if const { W::BITS >> 7 != 0 } => {
                    add_wide::<N, SHARES>(s, sums, weights, scales, columns);
                }
                bits => unreachable!("invariant: no weights of this kind take {bits} bits"),
            }
        }
    }
}

/// Weights of which 16 bits have room for the products of `FITTING` groups.
///
/// Of four bits a block of 16 rows and a column, 512 multiply-adds, is 16 products of bytes, 2 of words, 4
/// that scale, and 18 additions and conversions: 5.5 cycles for each 8 rows where products wait for their
/// two pipes. Measured on Zen 3: 7.4.
///
/// # Safety
/// As for [`Simd::add_block`]; the groups do fit.
#[inline(always)]
unsafe fn add_small<const N: usize, const SHARES: usize, const FITTING: usize>(
    s: Avx2<Base>,
    sums: &mut [Floats; N],
    weights: &impl Groups<Avx2<Base>>,
    scales: &[Floats; 2],
    columns: BlockColumns,
) {
    let fours = columns.quants.cast::<i32>();
    // SAFETY: the caller's: all offsets are inside of the columns.
    unsafe {
        let worth = _mm256_set1_epi16(1 << (8 - weights.bits()));
        let zero = _mm256_setzero_si256();
        let (mut pairs, mut dots) = ([[zero; 2]; N], [[zero; 2]; N]);
        let mut lower = [s.splat(0.0); N];
        each!(group in GROUPS, 0 1 2 3 4 5 6 7 => {
            let (share, place) = (group * SHARES / GROUPS, group % (GROUPS / SHARES));
            let fitting = if FITTING < GROUPS / SHARES { FITTING } else { GROUPS / SHARES };
            let weights = weights.group(group);
            each!(c in N => {
                let four = _mm256_set1_epi32(fours.add(c * GROUPS + group).read_unaligned());
                each!(half in 2, 0 1 => {
                    let products = _mm256_maddubs_epi16(weights[half], four);
                    pairs[c][half] = made(match place % fitting {
                        0 => products,
                        _ => _mm256_add_epi16(pairs[c][half], products),
                    });
                });
            });
            if place % fitting == fitting - 1 {
                each!(c in N => each!(half in 2, 0 1 => {
                    let before = match place < fitting {
                        true => _mm256_set1_epi32(*columns.starts[share].add(c)),
                        false => dots[c][half],
                    };
                    dots[c][half] = _mm256_add_epi32(before, _mm256_madd_epi16(pairs[c][half], worth));
                }));
            }
            if place == GROUPS / SHARES - 1 {
                s.add_scaled::<N, SHARES>(share, sums, &mut lower, &dots, scales, columns);
            }
        });
    }
}

/// Weights of 8 bits, made words by 4 instructions a group, which serve all columns.
///
/// A block of 16 rows and a column, 512 multiply-adds, is 32 products of words, 4 that scale, and 34
/// additions and conversions: 9 cycles for each 8 rows where products wait for their two pipes.
/// Measured on Zen 3: 13.
///
/// # Safety
/// As for [`Simd::add_block`].
#[inline(always)]
unsafe fn add_wide<const N: usize, const SHARES: usize>(
    s: Avx2<Base>,
    sums: &mut [Floats; N],
    weights: &impl Groups<Avx2<Base>>,
    scales: &[Floats; 2],
    columns: BlockColumns,
) {
    // SAFETY: the caller's: all offsets are inside of the columns, or of the words made of them.
    unsafe {
        let zero = _mm256_setzero_si256();
        let (mut dots, mut lower) = ([[zero; 2]; N], [s.splat(0.0); N]);
        // `[N][2][8 groups][2 words]`
        let mut words = [[zero; 2]; N];
        each!(c in N => {
            let quants = _mm256_loadu_si256(columns.quants.add(c * BLOCK).cast());
            words[c] = [words_of_signed(quants, 0), words_of_signed(quants, 1)];
        });
        let words = in_memory(&words).cast::<i32>();
        each!(group in GROUPS, 0 1 2 3 4 5 6 7 => {
            let (share, place) = (group * SHARES / GROUPS, group % (GROUPS / SHARES));
            if place == 0 {
                each!(c in N => dots[c] = [_mm256_set1_epi32(*columns.starts[share].add(c)); 2]);
            }
            let weights = weights.group(group);
            each!(odd in 2, 0 1 => {
                let mut halves = weights;
                each!(half in 2, 0 1 => halves[half] = words_of_unsigned(weights[half], odd));
                each!(c in N => {
                    let two = _mm256_set1_epi32(*words.add((2 * c + odd) * GROUPS + group));
                    each!(half in 2, 0 1 => {
                        let products = _mm256_madd_epi16(halves[half], two);
                        dots[c][half] = made(_mm256_add_epi32(dots[c][half], products));
                    });
                });
            });
            if place == GROUPS / SHARES - 1 {
                s.add_scaled::<N, SHARES>(share, sums, &mut lower, &dots, scales, columns);
            }
        });
    }
}

/// The first and third of each four bytes, or the second and fourth, as words.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn words_of_unsigned(bytes: __m256i, odd: usize) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        match odd {
            0 => _mm256_and_si256(bytes, _mm256_set1_epi16(0xFF)),
            _ => _mm256_srli_epi16::<8>(bytes),
        }
    }
}

/// The same of signed bytes.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn words_of_signed(bytes: __m256i, odd: usize) -> __m256i {
    // SAFETY: the caller's.
    unsafe {
        match odd {
            0 => _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(bytes)),
            _ => _mm256_srai_epi16::<8>(bytes),
        }
    }
}

/// A number that is made here: what makes it is not put off, and what is loaded later not brought
/// forward. Without it sums are driven out of registers, and products take up to three times as long.
///
/// # Safety
/// The processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn made(mut a: __m256i) -> __m256i {
    // SAFETY: there is no instruction. That it might touch memory (no `nomem`) is what keeps loads behind it.
    unsafe { asm!("/* {} */", inout(ymm_reg) a, options(nostack, preserves_flags)) };
    a
}

/// Where numbers lie that were written: what is read from there is loaded, which costs no instruction
/// that multiplies could wait for, and not taken out of registers.
#[inline(always)]
fn in_memory<T>(numbers: &T) -> *const T {
    let mut place: *const T = numbers;
    // SAFETY: there is no instruction. That it might read memory (no `nomem`) is why all was written.
    unsafe { asm!("/* {} */", inout(reg) place, options(nostack, preserves_flags)) };
    place
}
