//! Products of brain floats in vectors, on processors that multiply pairs of them.
//!
//! Owns how tiles of columns and panels of brain floats go through such registers. Must not know other
//! formats. An instruction multiplies a pair of each of 16 rows with one of a column: 32
//! multiply-adds. Two panels by eight columns load 2 + 8 lines of the nearest cache for 16 of them, so
//! that the pipes, which start two a cycle, are the limit; a lone column is memory's, 64 bytes of
//! weights for each instruction, which is asked for one panel at a time: two are two streams, and slower.

use std::arch::x86_64::*;

use super::TileWork;
use crate::{
    ahead::Ahead,
    columns::Tile,
    panel::{BLOCK, FEW},
    simd::{LANES, Simd, avx512::Avx512, each},
};

/// Columns that two panels meet at a time: of 32 registers 16 are sums.
const COLUMNS: usize = 8;

/// What comes in these panels' place.
struct Next {
    ahead: Ahead,
    /// To ask for with every block.
    lines: usize,
}

/// Multiplies panels of brain floats with the tiles of a turn.
///
/// # Safety
/// This processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn tiles(work: &TileWork<'_>) {
    let panels = work.run.panels.clone();
    let tiles = || work.tiles.clone().map(|tile| work.columns.tile(tile));
    let passes: usize = tiles().map(|tile| tile.used.div_ceil(COLUMNS)).sum();
    let blocks = passes * work.run.part.cols.div_ceil(BLOCK);
    let lone = tiles().all(|tile| tile.width == 1);
    let each = if lone { 1 } else { 2 };
    for first in panels.clone().step_by(each) {
        let index = first - panels.start;
        let ahead = work.ahead(index..panels.len().min(index + each));
        let mut next = Next {
            lines: ahead.lines_each(blocks.max(1)),
            ahead,
        };
        for tile in tiles() {
            // SAFETY: the caller's.
            unsafe {
                match each.min(panels.end - first) {
                    1 => panels_by_tile::<1>(work, first, tile, &mut next),
                    _ => panels_by_tile::<2>(work, first, tile, &mut next),
                }
            }
        }
    }
}

/// `P` panels, the first of this number, times a tile.
///
/// # Safety
/// This processor has AVX-512 with BF16.
#[inline(always)]
unsafe fn panels_by_tile<const P: usize>(
    work: &TileWork<'_>,
    panel: usize,
    tile: Tile,
    next: &mut Next,
) {
    // SAFETY: the caller's.
    unsafe {
        match tile.width {
            1 => multiply::<P, 1, 1>(work, panel, tile, 0, next),
            4 => multiply::<P, 4, 4>(work, panel, tile, 0, next),
            8 => multiply::<P, 8, COLUMNS>(work, panel, tile, 0, next),
            _ => {
                for first in (0..tile.used).step_by(COLUMNS) {
                    multiply::<P, 16, COLUMNS>(work, panel, tile, first, next);
                }
            }
        }
    }
}

/// `P` panels times the columns `first .. first + N` of a tile of `WIDTH`. A sum goes through its pairs
/// in order, however many columns there are.
///
/// # Safety
/// This processor has AVX-512 with BF16.
#[inline(always)]
unsafe fn multiply<const P: usize, const WIDTH: usize, const N: usize>(
    work: &TileWork<'_>,
    panel: usize,
    tile: Tile,
    first: usize,
    next: &mut Next,
) {
    let (run, cols) = (work.run, work.run.part.cols);
    // SAFETY: the caller's.
    let s = unsafe { Avx512::new() };
    let panels: [*const u8; P] =
        std::array::from_fn(|p| run.part.panel(run.expert, panel + p).as_ptr());
    let activations = work
        .columns
        .of_tile(tile)
        .brains
        .wrapping_add(first * BLOCK);
    let mut sums = [[s.splat(0.0); N]; P];
    for block in 0..cols.div_ceil(BLOCK) {
        // Few columns ask for what they read themselves, below.
        if WIDTH > FEW {
            next.ahead.ask(s, next.lines);
        }
        let activations = activations
            .wrapping_add(block * WIDTH * BLOCK)
            .cast::<i32>();
        each!(pair in BLOCK / 2, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 => {
            let at = (block * BLOCK / 2 + pair) * 2 * LANES * size_of::<u16>();
            // SAFETY: whole panels, and a tile that `multiply` found filled, whole blocks long.
            unsafe {
                let mut weights = [_mm512_setzero_si512(); P];
                each!(p in P, 0 1 => {
                    if WIDTH <= FEW {
                        s.prefetch(panels[p].wrapping_add(at + Avx512::AHEAD));
                    }
                    weights[p] = _mm512_loadu_si512(panels[p].add(at).cast());
                });
                each!(c in N => {
                    let two = activations.add(c * BLOCK / 2 + pair).read_unaligned();
                    let two = brains(_mm512_set1_epi32(two));
                    each!(p in P, 0 1 => {
                        sums[p][c] = _mm512_dpbf16_ps(sums[p][c], brains(weights[p]), two);
                    });
                });
            }
        });
    }
    work.write_all(s, panel, tile, first, sums);
}

/// The same bits as brain floats.
#[inline(always)]
fn brains(bits: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits, any of which are numbers.
    unsafe { std::mem::transmute(bits) }
}
