//! Strips: panels whose bits are bytes and whose scales are single precision, and the product of
//! blocks of integers with quantised columns.
//!
//! Owns the one loop that all block formats are multiplied by. Must not know how their bits lie.

use super::{BLOCK, GROUPS, formats};
use crate::{
    ahead::Ahead,
    columns::TileColumns,
    simd::{BlockColumns, Groups, LANES, Simd, each},
};

/// What a strip holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StripShape {
    /// Whether quants are copied; where they are bytes in the panel, the strip is scales alone.
    pub spreads: bool,
    /// Bits of a byte that a quant takes, as [`Groups::bits`] says.
    pub bits: usize,
    /// Scales of a block of 32 values: 1 or 2.
    pub shares: usize,
    pub has_min: bool,
}

/// Where the parts of a strip are.
#[derive(Clone, Copy)]
pub(crate) struct StripParts {
    /// As [`Groups::group`] has them. `[blocks][8 groups][16 rows][4]`
    pub quants: *mut u8,
    /// `[blocks][shares][16 rows]`
    pub scales: *mut f32,
    /// As the scales, where there are any.
    pub mins: *mut f32,
}

impl StripShape {
    /// Bytes of a strip, a multiple of a cache line.
    pub fn bytes(self, cols: usize) -> usize {
        let blocks = cols / BLOCK;
        let quants = if self.spreads {
            blocks * GROUPS * 64
        } else {
            0
        };
        quants + blocks * self.shares * 64 * (1 + usize::from(self.has_min))
    }

    /// The parts of a strip that begins at an address.
    pub fn parts(self, strip: *mut u8, cols: usize) -> StripParts {
        let blocks = cols / BLOCK;
        let scales = if self.spreads {
            blocks * GROUPS * 64
        } else {
            0
        };
        StripParts {
            quants: strip,
            scales: strip.wrapping_add(scales).cast(),
            mins: strip
                .wrapping_add(scales + blocks * self.shares * 64)
                .cast(),
        }
    }
}

/// Scales of a block of 16 rows.
pub(crate) struct BlockScales<S: Simd> {
    /// The second where 16 values share one.
    pub scales: [S::F32; 2],
    pub mins: [S::F32; 2],
}

/// Where blocks come from.
pub(crate) trait Source<S: Simd> {
    const SHARES: usize;
    const HAS_MIN: bool;
    /// As [`Groups::BITS`] says.
    const BITS: u16;

    /// Blocks that are asked for at a time.
    const ASKED: usize;

    /// Asks for what as many blocks further on are read from.
    fn prefetch(&mut self, s: S, block: usize);

    /// As [`Groups::bits`] says.
    fn bits(&self) -> usize;

    /// Weights as [`Groups::group`] has them.
    ///
    /// # Safety
    /// The source has this block; it has 8 groups.
    unsafe fn group(&self, s: S, block: usize, group: usize) -> S::Bytes;

    /// # Safety
    /// The source has this block.
    unsafe fn scales(&self, s: S, block: usize) -> BlockScales<S>;
}

/// Blocks of a strip that are multiplied before lines are asked for again.
const ASKED: usize = 4;

/// Blocks of a strip.
#[derive(Clone, Copy)]
pub(crate) struct StripSource<const SHARES: usize, const MIN: bool> {
    parts: StripParts,
    bits: usize,
    ahead: Ahead,
    /// To ask for with every [`ASKED`] blocks.
    lines: usize,
}

impl<const SHARES: usize, const MIN: bool> StripSource<SHARES, MIN> {
    /// A strip of so many blocks, whose quants take so many bits, and what comes next.
    pub fn new(parts: StripParts, bits: usize, blocks: usize, ahead: Ahead) -> Self {
        let lines = ahead.lines_each(blocks.div_ceil(ASKED).max(1));
        Self {
            parts,
            bits,
            ahead,
            lines,
        }
    }
}

impl<S: Simd, const SHARES: usize, const MIN: bool> Source<S> for StripSource<SHARES, MIN> {
    const SHARES: usize = SHARES;
    const HAS_MIN: bool = MIN;
    const BITS: u16 = bits_of(SHARES, MIN);
    // What comes next is asked for between products, not inside of them.
    const ASKED: usize = ASKED;

    #[inline(always)]
    fn prefetch(&mut self, s: S, _: usize) {
        self.ahead.ask_by_bits(s, self.lines);
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        self.bits
    }

    #[inline(always)]
    unsafe fn group(&self, s: S, block: usize, group: usize) -> S::Bytes {
        // SAFETY: the caller's: the strip has the block.
        unsafe { s.load_bytes(self.parts.quants.add((block * GROUPS + group) * 64)) }
    }

    #[inline(always)]
    unsafe fn scales(&self, s: S, block: usize) -> BlockScales<S> {
        // SAFETY: the caller's: the strip has the block.
        unsafe {
            let mut scales = [s.load(self.parts.scales.add(block * SHARES * LANES)); 2];
            let mut mins = [s.splat(0.0); 2];
            if SHARES == 2 {
                scales[1] = s.load(self.parts.scales.add((block * SHARES + 1) * LANES));
            }
            if MIN {
                mins[0] = s.load(self.parts.mins.add(block * SHARES * LANES));
                if SHARES == 2 {
                    mins[1] = s.load(self.parts.mins.add((block * SHARES + 1) * LANES));
                }
            }
            BlockScales { scales, mins }
        }
    }
}

/// Of strips of this shape, whatever the format, as [`Groups::BITS`] says.
const fn bits_of(shares: usize, has_min: bool) -> u16 {
    let (mut bits, mut index) = (0, 0);
    while index < formats::STRIPS.len() {
        let strip = formats::STRIPS[index];
        if strip.shares == shares && strip.has_min == has_min {
            bits |= 1 << strip.bits;
        }
        index += 1;
    }
    bits
}

/// One block of a source, which has it.
struct BlockOf<'a, S, B> {
    s: S,
    source: &'a B,
    block: usize,
}

impl<S: Simd, B: Source<S>> Groups<S> for BlockOf<'_, S, B> {
    const BITS: u16 = B::BITS;

    #[inline(always)]
    fn group(&self, index: usize) -> S::Bytes {
        // SAFETY: the source has the block, by which this was made.
        unsafe { self.source.group(self.s, self.block, index) }
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        self.source.bits()
    }

    #[inline(always)]
    fn scale(&self) -> S::F32 {
        // SAFETY: as above.
        unsafe { self.source.scales(self.s, self.block).scales[0] }
    }
}

/// 16 rows of each of `P` sources times each of the columns `first .. first + N` of a tile: per scale an
/// exact integer sum, then the scales of weights and activations; minimums times the sums of the
/// activations.
///
/// # Safety
/// Each source has `blocks` blocks, and `columns` is a tile of `WIDTH` quantised columns of as many,
/// those columns among them, whose scales are coarse if `COARSE`. `P` and `N` are as
/// [`Simd::add_block`] takes them.
#[inline(always)]
pub(crate) unsafe fn multiply<
    S: Simd,
    B: Source<S>,
    const P: usize,
    const WIDTH: usize,
    const N: usize,
    const COARSE: bool,
>(
    s: S,
    sources: &mut [B; P],
    blocks: usize,
    columns: TileColumns,
    first: usize,
) -> [[S::F32; N]; P] {
    let mut sums = [[s.splat(0.0); N]; P];
    for block in 0..blocks {
        if block % B::ASKED == 0 {
            each!(p in P, 0 1 => sources[p].prefetch(s, block));
        }
        let at = block * WIDTH + first;
        // Of the first half; those of the second are a tile's width behind.
        let halves = 2 * block * WIDTH + first;
        // SAFETY: all offsets are below the sizes that the caller vouches for.
        unsafe {
            let mut scales = [[s.splat(0.0); 2]; P];
            let mut mins = scales;
            each!(p in P, 0 1 => if !COARSE {
                let of_block = sources[p].scales(s, block);
                (scales[p], mins[p]) = (of_block.scales, of_block.mins);
            });
            let weights = sources
                .each_ref()
                .map(|source| BlockOf { s, source, block });
            let starts = match B::SHARES {
                1 => [columns.starts.add(at); 2],
                _ => [0, WIDTH].map(|half| columns.half_starts.add(halves + half)),
            };
            let block_columns = BlockColumns {
                quants: columns.quants.add(at * BLOCK),
                scales: columns.scales.add(at),
                starts,
                coarse: [0, 1, 2].map(|part| {
                    columns
                        .coarse
                        .wrapping_add((3 * block + part) * WIDTH + first)
                }),
            };
            match B::SHARES {
                1 if COARSE => s.add_coarse_block(&mut sums, &weights, block_columns),
                1 => s.add_block::<P, N, 1>(&mut sums, &weights, &scales, block_columns),
                _ => s.add_block::<P, N, 2>(&mut sums, &weights, &scales, block_columns),
            }
            if B::HAS_MIN {
                each!(c in N => each!(p in P, 0 1 => if B::SHARES == 1 {
                    let sum = s.splat(*columns.sums.add(at + c));
                    sums[p][c] = s.mul_add(mins[p][0], sum, sums[p][c]);
                } else {
                    let half_sums = columns.half_sums.add(halves + c);
                    sums[p][c] = s.mul_add(mins[p][0], s.splat(*half_sums), sums[p][c]);
                    sums[p][c] = s.mul_add(mins[p][1], s.splat(*half_sums.add(WIDTH)), sums[p][c]);
                }));
            }
        }
    }
    sums
}
