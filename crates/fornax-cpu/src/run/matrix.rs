//! Products on the matrix unit. Those of integers are the same sums as in vectors, to the last bit. A lone column
//! of brain floats is multiplied in vectors, to the last bit as the unit would.
//!
//! Owns how tiles of columns and panels go through the unit. Must not know formats, but for the one whose
//! panels are bytes.
//!
//! Blocks of integers are multiplied 16 rows and up to 16 columns at a time: 8,192 products in 16
//! cycles of the unit. Scales go on outside of it, four instructions for the 512 products of a
//! column, and they are what takes the time. Brain floats need no scales, and stay in the unit from the
//! first block to the last: a crowd of columns pays for making the weights such.

use std::arch::x86_64::*;

use fornax_gguf::DType;

use super::TileWork;
use crate::{
    ahead::Ahead,
    columns::TileColumns,
    panel::{
        BLOCK, GROUPS,
        blocks::Quantised,
        formats, panel_bytes,
        strip::{BlockScales, Source, StripShape, StripSource},
    },
    simd::{
        LANES, Simd,
        amx::{BRAIN_PANELS, MatrixUnit, Square},
        avx512::Avx512,
        each,
    },
};

impl TileWork<'_> {
    /// A panel of brain floats: what `prepare` made of it, or the part's own.
    fn brain_panel(&self, panel: usize, unpacked: bool) -> *const u8 {
        let (run, cols) = (self.run, self.run.part.cols);
        match unpacked {
            true => {
                let index = panel - run.panels.start;
                let scratch = self.scratch.as_ptr().cast::<u8>();
                scratch.wrapping_add(index * panel_bytes(DType::BF16, cols))
            }
            false => run.part.panel(run.expert, panel).as_ptr(),
        }
    }
}

/// Multiplies panels of Q8_0, the one format whose panels are bytes, with a tile.
///
/// # Safety
/// This processor has AVX-512 and a matrix unit.
pub(super) unsafe fn panels(work: &TileWork<'_>) {
    assert_eq!(work.run.part.dtype, DType::Q8_0, "panels of bytes");
    // SAFETY: the caller's.
    unsafe {
        match work.tile.width {
            4 => panels_of::<4>(work),
            8 => panels_of::<8>(work),
            _ => panels_of::<16>(work),
        }
    }
}

/// # Safety
/// This processor has AVX-512 and a matrix unit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn panels_of<const N: usize>(work: &TileWork<'_>) {
    let (part, run) = (work.run.part, work.run);
    let columns = work.columns.of_tile(work.tile);
    // SAFETY: the caller's; nothing in here sets the unit up again.
    let (s, unit) = unsafe { (Avx512::new(), MatrixUnit::new(N, BLOCK)) };
    for (index, panel) in run.panels.clone().enumerate() {
        let weights = part.panel(run.expert, panel).as_ptr();
        let source = Quantised::<formats::Q8_0>::source(weights, part.cols);
        let quants = Quantised::<formats::Q8_0>::quants(weights, part.cols);
        // SAFETY: a whole panel, and a tile that `multiply` found filled.
        let sums = unsafe {
            let (blocks, ahead) = (part.cols / BLOCK, work.ahead(index..index + 1));
            multiply_blocks::<_, 1, N>(s, &unit, source, quants, blocks, columns, ahead)
        };
        work.write(s, panel, sums);
    }
}

/// Multiplies strips of some shape with a tile.
///
/// # Safety
/// This processor has AVX-512 and a matrix unit.
pub(super) unsafe fn strips(work: &TileWork<'_>, shape: StripShape) {
    // SAFETY: the caller's.
    unsafe {
        match work.tile.width {
            4 => strips_by::<4>(work, shape),
            8 => strips_by::<8>(work, shape),
            _ => strips_by::<16>(work, shape),
        }
    }
}

/// # Safety
/// This processor has AVX-512 and a matrix unit.
unsafe fn strips_by<const N: usize>(work: &TileWork<'_>, shape: StripShape) {
    // SAFETY: the caller's.
    unsafe {
        match (shape.shares, shape.has_min) {
            (1, false) => strips_of::<1, false, N>(work, shape),
            (1, true) => strips_of::<1, true, N>(work, shape),
            (_, false) => strips_of::<2, false, N>(work, shape),
            (_, true) => strips_of::<2, true, N>(work, shape),
        }
    }
}

/// # Safety
/// This processor has AVX-512 and a matrix unit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn strips_of<const SHARES: usize, const MIN: bool, const N: usize>(
    work: &TileWork<'_>,
    shape: StripShape,
) {
    let part = work.run.part;
    let columns = work.columns.of_tile(work.tile);
    let scratch = work.scratch.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: the caller's; nothing in here sets the unit up again.
    let (s, unit) = unsafe { (Avx512::new(), MatrixUnit::new(N, BLOCK / SHARES)) };
    for (index, panel) in work.run.panels.clone().enumerate() {
        let strip = scratch.wrapping_add(index * shape.bytes(part.cols));
        let strip = shape.parts(strip, part.cols);
        // SAFETY: `prepare` made the strip, and `multiply` found the tile filled.
        let sums = unsafe {
            let (blocks, ahead) = (part.cols / BLOCK, work.ahead(index..index + 1));
            let source =
                StripSource::<SHARES, MIN>::new(strip, shape.bits, blocks, Ahead::nothing());
            let quants = strip.quants.cast_const();
            multiply_blocks::<_, SHARES, N>(s, &unit, source, quants, blocks, columns, ahead)
        };
        work.write(s, panel, sums);
    }
}

/// 16 rows times each of `N` columns, as in [`strip`](crate::panel::strip). Asks for what comes next
/// on the way.
///
/// # Safety
/// The source has `blocks` blocks, whose bytes are `quants`, and `SHARES` scales of each; `columns` is a
/// tile of `N` columns of as many; the unit is set up for them.
#[inline(always)]
unsafe fn multiply_blocks<B: Source<Avx512>, const SHARES: usize, const N: usize>(
    s: Avx512,
    unit: &MatrixUnit,
    source: B,
    quants: *const u8,
    blocks: usize,
    columns: TileColumns,
    mut ahead: Ahead,
) -> [__m512; N] {
    let mut sums = [s.splat(0.0); N];
    let lines = ahead.lines_each(blocks.max(1));
    // The unit is a block ahead of the vectors.
    let mut dots = [const { [const { Square([[0; 16]; 16]) }; SHARES] }; 2];
    let ask = |block: usize, dots: &mut [Square<i32>; SHARES]| {
        for (share, dots) in dots.iter_mut().enumerate() {
            let a = columns
                .quants
                .wrapping_add(block * N * BLOCK + share * BLOCK / SHARES);
            let group = block * GROUPS + share * GROUPS / SHARES;
            let weights = quants.wrapping_add(64 * group);
            // SAFETY: the caller's, for blocks of the source.
            unsafe { unit.dot(a, weights, dots) };
        }
    };
    if blocks > 0 {
        ask(0, &mut dots[0]);
    }
    for block in 0..blocks {
        if block + 1 < blocks {
            ask(block + 1, &mut dots[(block + 1) % 2]);
        }
        ahead.ask(s, lines);
        let dots = &dots[block % 2];
        // SAFETY: all offsets are below the sizes that the caller vouches for.
        unsafe {
            let first = block * N;
            // Weights are around 128: what that adds to a sum is taken off it.
            let starts = match SHARES {
                1 => columns.starts.add(first),
                _ => columns.half_starts.add(2 * first),
            };
            let BlockScales { scales, mins } = source.scales(s, block);
            let [low, high] = scales;
            each!(c in N => {
                let scale = s.splat(*columns.scales.add(first + c));
                let dot = |share: usize| {
                    let start = _mm512_set1_epi32(*starts.add(share * N + c));
                    let dot = _mm512_load_si512(dots[share].0[c].as_ptr().cast());
                    s.to_f32(_mm512_add_epi32(dot, start))
                };
                if SHARES == 1 {
                    sums[c] = s.mul_add(dot(0), s.mul(low, scale), sums[c]);
                } else {
                    let sum = s.mul_add(dot(1), high, s.mul(dot(0), low));
                    sums[c] = s.mul_add(sum, scale, sums[c]);
                }
            });
            if B::HAS_MIN {
                each!(c in N => if SHARES == 1 {
                    sums[c] = s.mul_add(mins[0], s.splat(*columns.sums.add(first + c)), sums[c]);
                } else {
                    let of_halves = columns.half_sums.add(2 * first + c);
                    sums[c] = s.mul_add(mins[0], s.splat(*of_halves), sums[c]);
                    sums[c] = s.mul_add(mins[1], s.splat(*of_halves.add(N)), sums[c]);
                });
            }
        }
    }
    sums
}

/// Multiplies panels of brain floats with the tiles of a turn: those that [`unpack`](super::unpack)
/// made of the part's, or the part's own.
///
/// # Safety
/// This processor has AVX-512 and a matrix unit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn squares(work: &TileWork<'_>, unpacked: bool) {
    if work.tile.used <= LANES {
        // SAFETY: the caller's.
        return unsafe { brains(work, unpacked) };
    }
    let (part, all) = (work.run.part, &work.run.panels);
    let blocks = part.cols.div_ceil(BLOCK);
    let first = work.columns.of_tile(work.tile).brains;
    let a = [first, first.wrapping_add(LANES * BLOCK * blocks)];
    // SAFETY: the caller's; nothing in here sets the unit up again.
    let (s, unit) = unsafe { (Avx512::new(), MatrixUnit::new(LANES, 2 * BLOCK)) };
    let mut sums = [const { Square([[0.0; LANES]; LANES]) }; 4];
    for first in all.clone().step_by(2) {
        // Where panels run out the last is multiplied again, for nobody.
        let panels = [first, (first + 1).min(all.end - 1)];
        let panels = panels.map(|panel| work.brain_panel(panel, unpacked));
        let ahead = work.ahead(first - all.start..first - all.start + 2);
        // SAFETY: whole panels, and tiles that `multiply` found filled.
        unsafe { unit.multiply_squares(a, panels, blocks, ahead, &mut sums) };
        for (panel, of_panel) in (first..all.end).zip([[0, 2], [1, 3]]) {
            let outputs = work.outputs_of(s, panel);
            let columns = of_panel.iter().flat_map(|square| &sums[*square].0);
            for (column, sums) in columns.enumerate().take(work.tile.used) {
                outputs.write(work.tile.first + column, s.read(sums));
            }
        }
    }
}

/// Multiplies panels of brain floats with a tile.
///
/// # Safety
/// This processor has AVX-512 and a matrix unit.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn brains(work: &TileWork<'_>, unpacked: bool) {
    let (part, width, all) = (work.run.part, work.tile.width, &work.run.panels);
    if width == 1 {
        // SAFETY: the caller's.
        return unsafe { lone_brains(work, unpacked) };
    }
    let a = work.columns.of_tile(work.tile).brains;
    let blocks = part.cols.div_ceil(BLOCK);
    // SAFETY: the caller's; nothing in here sets the unit up again.
    let (s, unit) = unsafe { (Avx512::new(), MatrixUnit::new(width, 2 * BLOCK)) };
    let mut sums = [const { Square([[0.0; 16]; 16]) }; BRAIN_PANELS];
    for first in all.clone().step_by(BRAIN_PANELS) {
        // Where panels run out the last is multiplied again, for nobody.
        let panels: [*const u8; BRAIN_PANELS] = std::array::from_fn(|index| {
            let panel = (first + index).min(all.end - 1);
            work.brain_panel(panel, unpacked)
        });
        // SAFETY: whole panels, and a tile that `multiply` found filled.
        unsafe { unit.multiply_brains(a, panels, width, blocks, &mut sums) };
        for (panel, sums) in (first..all.end).zip(&sums) {
            let outputs = work.outputs_of(s, panel);
            for (column, sums) in sums.0.iter().enumerate().take(work.tile.used) {
                outputs.write(work.tile.first + column, s.read(sums));
            }
        }
    }
}

/// Multiplies panels of brain floats with a lone column, in vectors: they ask memory for more than the unit's
/// loads do. The sums are the unit's, to the last bit: of a block those of the first and of the second of all
/// pairs, one after the other, and then both. Only what is below the smallest normal number the unit makes zero.
///
/// # Safety
/// This processor has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn lone_brains(work: &TileWork<'_>, unpacked: bool) {
    const PAIRS: usize = BLOCK / 2;
    // SAFETY: the caller's.
    let s = unsafe { Avx512::new() };
    let pairs = work.columns.of_tile(work.tile).brains.cast::<i32>();
    let second_alone = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let first_of = |pairs| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
    let second_of = |pairs| _mm512_castsi512_ps(_mm512_and_si512(pairs, second_alone));
    for panel in work.run.panels.clone() {
        let weights = work.brain_panel(panel, unpacked);
        let mut sum = s.splat(0.0);
        for block in 0..work.run.part.cols.div_ceil(BLOCK) {
            let (mut first, mut second) = (s.splat(0.0), s.splat(0.0));
            each!(pair in PAIRS, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 => {
                let index = block * PAIRS + pair;
                let at = weights.wrapping_add(index * 2 * LANES * size_of::<u16>());
                s.prefetch(at.wrapping_add(Avx512::AHEAD));
                // SAFETY: whole panels, and a tile that `multiply` found filled, whole blocks long.
                let (w, x) = unsafe {
                    let x = pairs.add(index).read_unaligned();
                    (_mm512_loadu_si512(at.cast()), _mm512_set1_epi32(x))
                };
                first = s.mul_add(first_of(w), first_of(x), first);
                second = s.mul_add(second_of(w), second_of(x), second);
            });
            sum = s.add(sum, s.add(first, second));
        }
        work.outputs_of(s, panel).write(work.tile.first, sum);
    }
}
