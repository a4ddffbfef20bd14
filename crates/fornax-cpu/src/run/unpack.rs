//! Quantised panels made brain floats, for a matrix unit.
//!
//! Owns that conversion. Must not know how blocks are read: a [`Source`] does.

use std::arch::x86_64::*;

use crate::{
    ahead::Ahead,
    panel::{
        BLOCK, GROUPS,
        strip::{BlockScales, Source},
        with_blocks,
    },
    simd::{LANES, Simd, avx512::Avx512, each},
    weight::Part,
};

/// Makes a quantised panel one of brain floats: `[blocks][16 pairs][16 rows][2]`, as
/// [`float`](crate::panel::float) has them. Weights are rounded to nearest, halves to even, which moves
/// them less than 8 bits under a common scale move the activations of the other ways. Asks for all of
/// `next` meanwhile.
///
/// # Safety
/// This processor has what [`unpack_from`] is compiled with. `panel` points to a panel of the part,
/// `to` to room for one of brain floats.
pub(super) unsafe fn unpack(part: &Part, panel: *const u8, next: Ahead, to: *mut u16) {
    let blocks = part.cols / BLOCK;
    // SAFETY: the caller's.
    unsafe {
        with_blocks!(part.dtype, B => unpack_from(B::source(panel, part.cols), blocks, next, to));
    }
}

/// A group is 4 values of 16 rows; its pairs are stored as the first two values of all rows, then the
/// other two. So a vector is made of two values of 8 rows, row by row, and two such vectors are
/// rounded together into one of 16 pairs.
///
/// # Safety
/// This processor has AVX-512 with VBMI and brain floats. The source has so many blocks, `to` room
/// for them.
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16,avx2,fma,f16c"
)]
unsafe fn unpack_from<B: Source<Avx512>>(
    mut source: B,
    blocks: usize,
    mut next: Ahead,
    to: *mut u16,
) {
    // SAFETY: the caller's.
    let s = unsafe { Avx512::new() };
    let lines = next.lines_each(blocks.max(1));
    let rows = [0, 1].map(|half| places(|lane| row(half, lane) as u32));
    let bytes = [[0, 1], [2, 3]].map(|values| {
        [0, 1].map(|half| places(|lane| (4 * row(half, lane) + values[lane % 2]) as u32))
    });
    // The lowest byte of each lane; zeros above it.
    const LOWEST: u64 = 0x1111_1111_1111_1111;
    for block in 0..blocks {
        source.prefetch(s, block);
        next.ask(s, lines);
        // SAFETY: the source has the block, and `to` room for its 16 vectors.
        unsafe {
            let BlockScales { scales, mins } = source.scales(s, block);
            // By half of the rows: scales, and what the value 0 of a byte stands for.
            let mut halves = [[[s.splat(0.0); 2]; 2]; 2];
            each!(share in 2, 0 1 => if share < B::SHARES {
                let zero = match B::HAS_MIN {
                    true => s.mul_add(scales[share], s.splat(-128.0), mins[share]),
                    false => s.mul(scales[share], s.splat(-128.0)),
                };
                each!(half in 2, 0 1 => halves[share][half] = [
                    _mm512_permutexvar_ps(rows[half], scales[share]),
                    _mm512_permutexvar_ps(rows[half], zero),
                ]);
            });
            each!(group in GROUPS, 0 1 2 3 4 5 6 7 => {
                let share = group * B::SHARES / GROUPS;
                let quants = source.group(s, block, group);
                each!(pair in 2, 0 1 => {
                    let mut floats = [s.splat(0.0); 2];
                    each!(half in 2, 0 1 => {
                        let quants =
                            _mm512_maskz_permutexvar_epi8(LOWEST, bytes[pair][half], quants);
                        let [scale, zero] = halves[share][half];
                        floats[half] = s.mul_add(s.to_f32(quants), scale, zero);
                    });
                    let pairs = _mm512_cvtne2ps_pbh(floats[1], floats[0]);
                    let pairs: __m512i = std::mem::transmute(pairs);
                    let to = to.add((2 * (block * GROUPS + group) + pair) * 2 * LANES);
                    _mm512_storeu_si512(to.cast(), pairs);
                });
            });
        }
    }
}

/// The row whose value is in a lane of a vector of half of the rows.
const fn row(half: usize, lane: usize) -> usize {
    half * LANES / 2 + lane / 2
}

/// A vector of places, by lane.
fn places(place: impl FnMut(usize) -> u32) -> __m512i {
    let places: [u32; LANES] = std::array::from_fn(place);
    // SAFETY: both are 64 bytes.
    unsafe { std::mem::transmute(places) }
}
