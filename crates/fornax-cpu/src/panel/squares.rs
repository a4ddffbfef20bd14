//! Panels as the matrix unit takes them: brain floats, `[blocks of 32][16 pairs][16 rows][2]`.
//!
//! Owns the way from a strip there. Must not know formats.

use std::arch::x86_64::*;

use super::{
    BLOCK, GROUPS,
    strip::{StripParts, StripShape},
};
use crate::simd::amx::SQUARE_BYTES;

/// Bytes of a panel.
pub(crate) fn bytes(cols: usize) -> usize {
    cols.div_ceil(BLOCK) * SQUARE_BYTES
}

/// Rounds the values of a strip to brain floats.
///
/// # Safety
/// The processor has these features; `strip` has `cols` columns, `squares` room for [`bytes`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(crate) unsafe fn round(shape: StripShape, strip: StripParts, cols: usize, squares: *mut u8) {
    let groups_each = GROUPS / shape.shares;
    let middle = _mm_set1_epi8(-128);
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    // Four rows stand in a vector of their own, each of them four times.
    let rows = [0, 4, 8, 12].map(|first| {
        let row = |offset| first + offset;
        let (a, b, c, d) = (row(0), row(1), row(2), row(3));
        _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d)
    });
    for share in 0..cols / BLOCK * shape.shares {
        // SAFETY: the caller's: strip and squares go on to the last share.
        unsafe {
            let scale = _mm512_loadu_ps(strip.scales.add(share * 16));
            let min = match shape.has_min {
                true => _mm512_loadu_ps(strip.mins.add(share * 16)),
                false => _mm512_setzero_ps(),
            };
            let scales = rows.map(|rows| _mm512_permutexvar_ps(rows, scale));
            let mins = rows.map(|rows| _mm512_permutexvar_ps(rows, min));
            for group in share * groups_each..(share + 1) * groups_each {
                let quants = strip.quants.add(group * 64);
                let mut values = [_mm512_setzero_ps(); 4];
                for part in 0..4 {
                    let bytes = _mm_loadu_si128(quants.add(16 * part).cast());
                    let signed = _mm512_cvtepi8_epi32(_mm_xor_si128(bytes, middle));
                    values[part] =
                        _mm512_fmadd_ps(_mm512_cvtepi32_ps(signed), scales[part], mins[part]);
                }
                // Two pairs of each of 8 rows, then of the 8 others.
                let low: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(values[1], values[0]));
                let high: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(values[3], values[2]));
                let to = squares.add(group * 128);
                let first = _mm512_permutex2var_epi32(low, even, high);
                let second = _mm512_permutex2var_epi32(low, odd, high);
                _mm512_storeu_si512(to.cast(), first);
                _mm512_storeu_si512(to.add(64).cast(), second);
            }
        }
    }
}
