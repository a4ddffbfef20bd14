//! Products of bytes with AVX-VNNI, which has the dot products of AVX-512 in vectors of AVX2: Intel's
//! processors for laptops and desktops since Alder Lake have it and no AVX-512. Must not know operations.

use std::arch::x86_64::*;

use super::{
    BlockColumns, GROUPS, Groups, Simd,
    avx2::{Avx2, Floats, Products},
    avx2_base::made,
    each,
};

/// Four bytes at a time.
#[derive(Clone, Copy)]
pub(crate) enum Vnni {}

impl Products for Vnni {
    const WANTS_SMALL: bool = false;

    #[inline(always)]
    unsafe fn dot(sums: __m256i, weights: __m256i, a: __m256i) -> __m256i {
        // SAFETY: the caller's.
        unsafe { _mm256_dpbusd_avx_epi32(sums, weights, a) }
    }

    /// A block of 16 rows and a column, 512 multiply-adds, is 16 dot products, 4 instructions that scale
    /// and 4 that start and convert.
    #[inline(always)]
    unsafe fn add_block<const N: usize, const SHARES: usize, W: Groups<Avx2<Self>>>(
        s: Avx2<Self>,
        sums: &mut [Floats; N],
        weights: &W,
        scales: &[Floats; 2],
        columns: BlockColumns,
    ) {
        let fours = columns.quants.cast::<i32>();
        // SAFETY: the caller's: all offsets are inside of the columns.
        unsafe {
            let mut dots = [s.dot_start(0); N];
            let mut lower = [s.splat(0.0); N];
            each!(group in GROUPS, 0 1 2 3 4 5 6 7 => {
                let (share, place) = (group * SHARES / GROUPS, group % (GROUPS / SHARES));
                if place == 0 {
                    each!(c in N => dots[c] = [_mm256_set1_epi32(*columns.starts[share].add(c)); 2]);
                }
                let weights = weights.group(group);
                each!(c in N => {
                    let four = _mm256_set1_epi32(fours.add(c * GROUPS + group).read_unaligned());
                    each!(half in 2, 0 1 => {
                        dots[c][half] = made(Self::dot(dots[c][half], weights[half], four));
                    });
                });
                if place == GROUPS / SHARES - 1 {
                    s.add_scaled::<N, SHARES>(share, sums, &mut lower, &dots, scales, columns);
                }
            });
        }
    }
}
