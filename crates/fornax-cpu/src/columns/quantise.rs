//! Activations as signed bytes under a scale for every 32.
//!
//! Must not know tiles' order among each other. 16 blocks at a time: so a lane is a block's largest
//! value, scale or sum, and a block needs none by itself across lanes.

use super::{
    COARSE_TILE, LANES, Precisions,
    coarse::{self, CoarseScales},
    fill::Fill,
};
use crate::{
    panel::BLOCK,
    simd::{Simd, each},
};

/// Where some blocks of a tile go; empty for what is not wanted.
struct Room<'a> {
    /// `[blocks][width][32]`
    quants: &'a mut [i8],
    /// `[blocks][width]`
    scales: &'a mut [f32],
    /// `[blocks][3][width]`
    coarse: &'a mut [i32],
    /// `[blocks][width]`
    starts: &'a mut [i32],
    /// `[blocks][2][width]`
    half_starts: &'a mut [i32],
    /// `[blocks][width]`
    sums: &'a mut [f32],
    /// `[blocks][2][width]`
    half_sums: &'a mut [f32],
}

/// 16 blocks: some that follow each other, of `COLUMNS` columns that stand side by side in a tile of
/// `WIDTH`. Lanes go through the columns of a block, then through those of the next.
#[derive(Clone, Copy)]
struct Group<const WIDTH: usize, const COLUMNS: usize> {
    column: usize,
    block: usize,
}

impl<const WIDTH: usize, const COLUMNS: usize> Group<WIDTH, COLUMNS> {
    /// Blocks of each column.
    const BLOCKS: usize = LANES / COLUMNS;

    /// The group whose turn comes next in columns of so many blocks; behind the last one any.
    #[inline(always)]
    fn next(self, all: usize) -> Self {
        let (block, next_column) = (self.block + Self::BLOCKS, self.column + COLUMNS);
        let (block, column) = match block < all {
            true => (block, self.column),
            false => (0, next_column % WIDTH),
        };
        Self { column, block }
    }

    /// Asks for its values: a few blocks of a row are over before the processor has seen a stream in
    /// them.
    #[inline(always)]
    fn ask<S: Simd>(self, s: S, sources: &[&[[f32; BLOCK]]; WIDTH]) {
        for of_column in &sources[self.column..self.column + COLUMNS] {
            let first = of_column.as_ptr().wrapping_add(self.block);
            for block in 0..Self::BLOCKS {
                let values = first.wrapping_add(block).cast::<f32>();
                s.prefetch_near(values.cast());
                s.prefetch_near(values.wrapping_add(LANES).cast());
            }
        }
    }
}

/// What 16 blocks are made of and where they go.
struct Lanes<'a, const WIDTH: usize, const COLUMNS: usize> {
    /// Of each column, from the first of its blocks on.
    from: [&'a [[f32; BLOCK]]; COLUMNS],
    /// From the first block of the first column on. `[blocks][WIDTH][32]`
    to: &'a mut [[i8; BLOCK]],
    /// Blocks of a column that there are; lanes behind the last one take it once more.
    blocks: usize,
}

impl<const WIDTH: usize, const COLUMNS: usize> Lanes<'_, WIDTH, COLUMNS> {
    /// The same, of so many blocks.
    #[inline(always)]
    fn of(self, blocks: usize) -> Self {
        Self { blocks, ..self }
    }

    #[inline(always)]
    fn block(&self, lane: usize) -> usize {
        (lane / COLUMNS).min(self.blocks - 1)
    }

    #[inline(always)]
    fn values(&self, lane: usize) -> &[f32; BLOCK] {
        &self.from[lane % COLUMNS][self.block(lane)]
    }

    #[inline(always)]
    fn quants(&mut self, lane: usize) -> &mut [i8; BLOCK] {
        &mut self.to[self.block(lane) * WIDTH + lane % COLUMNS]
    }
}

impl Fill<'_> {
    /// Fills in the quants of its blocks, and what products need beside them.
    #[inline(always)]
    pub(super) fn quantise<S: Simd>(&self, s: S) {
        match self.tile.width {
            1 => self.quantise_tile::<S, 1, 1>(s),
            4 => self.quantise_tile::<S, 4, 4>(s),
            8 if const { S::COLUMNS >= 8 } => match self.blocks.len() {
                ..=2 => self.quantise_tile::<S, 8, 8>(s),
                _ => self.quantise_tile::<S, 8, 4>(s),
            },
            16 if const { S::COLUMNS >= 16 } => match self.blocks.len() {
                ..=2 => self.quantise_tile::<S, 16, 8>(s),
                _ => self.quantise_tile::<S, 16, 4>(s),
            },
            COARSE_TILE if const { S::COLUMNS >= 16 } => match self.blocks.len() {
                ..=2 => self.quantise_tile::<S, COARSE_TILE, 8>(s),
                _ => self.quantise_tile::<S, COARSE_TILE, 4>(s),
            },
            width => unreachable!("invariant: no tile has {width} columns"),
        }
    }

    /// Rows are often a multiple of 4 KiB apart: 16 of them at a time would fall on one place of the
    /// nearest cache, so four are the most, but where blocks are too few to fill the lanes.
    #[inline(always)]
    fn quantise_tile<S: Simd, const WIDTH: usize, const COLUMNS: usize>(&self, s: S) {
        let mut room = self.room_of_quants::<WIDTH>();
        let sources: [&[[f32; BLOCK]]; WIDTH] =
            std::array::from_fn(|column| self.values(column).as_chunks().0);
        let (all, each) = (self.blocks.len(), Group::<WIDTH, COLUMNS>::BLOCKS);
        for column in (0..WIDTH).step_by(COLUMNS) {
            for block in (0..all).step_by(each) {
                let group = Group::<WIDTH, COLUMNS> { column, block };
                group.next(all).ask(s, &sources);
                let blocks = each.min(all - block);
                let from = std::array::from_fn(|lane| &sources[column + lane][block..][..blocks]);
                let to = &mut room.quants.as_chunks_mut().0[block * WIDTH + column..];
                let to = &mut to[..(blocks - 1) * WIDTH + COLUMNS];
                let lanes = Lanes { from, to, blocks };
                let Precisions { halves, coarse, .. } = self.precisions;
                // What is known here is known of each lane's place.
                let quantised = match blocks == each {
                    true if halves => {
                        quantise_blocks::<S, WIDTH, COLUMNS, true>(s, lanes.of(each), coarse)
                    }
                    true => quantise_blocks::<S, WIDTH, COLUMNS, false>(s, lanes.of(each), coarse),
                    false => quantise_blocks::<S, WIDTH, COLUMNS, true>(s, lanes, coarse),
                };
                room.write(group, blocks, &quantised);
            }
        }
    }

    fn room_of_quants<const WIDTH: usize>(&self) -> Room<'_> {
        let first = self.tile.start * (self.cols / BLOCK) + self.blocks.start * WIDTH;
        let count = self.blocks.len() * WIDTH;
        let places = self.places;
        let Precisions {
            halves,
            sums,
            coarse,
            ..
        } = self.precisions;
        // Of an array that is not wanted, nothing.
        let [of_halves, of_sums] = [halves, sums].map(usize::from);
        // Other tiles are never read so.
        let of_coarse = 3 * usize::from(coarse && WIDTH == COARSE_TILE);
        let of_both = of_halves * of_sums;
        // SAFETY: pieces have different blocks.
        unsafe {
            Room {
                quants: places.quants.part(first * BLOCK, count * BLOCK),
                scales: places.scales.part(first, count),
                coarse: places.coarse.part(first * of_coarse, count * of_coarse),
                starts: places.starts.part(first, count),
                half_starts: places
                    .half_starts
                    .part(2 * first * of_halves, 2 * count * of_halves),
                sums: places.sums.part(first * of_sums, count * of_sums),
                half_sums: places
                    .half_sums
                    .part(2 * first * of_both, 2 * count * of_both),
            }
        }
    }
}

impl Room<'_> {
    /// Writes all but the quants of a group.
    #[inline(always)]
    fn write<const WIDTH: usize, const COLUMNS: usize>(
        &mut self,
        group: Group<WIDTH, COLUMNS>,
        blocks: usize,
        quantised: &Quantised,
    ) {
        for row in 0..blocks {
            let from = row * COLUMNS..(row + 1) * COLUMNS;
            let block = group.block + row;
            let to = block * WIDTH + group.column;
            self.scales[to..to + COLUMNS].copy_from_slice(&quantised.scales[from.clone()]);
            self.starts[to..to + COLUMNS].copy_from_slice(&quantised.starts[from.clone()]);
            if !self.coarse.is_empty() {
                let CoarseScales {
                    starts,
                    bases,
                    terms,
                } = &quantised.coarse;
                for (index, all) in [starts, bases, terms].into_iter().enumerate() {
                    let to = (3 * block + index) * WIDTH + group.column;
                    self.coarse[to..to + COLUMNS].copy_from_slice(&all[from.clone()]);
                }
            }
            if !self.sums.is_empty() {
                self.sums[to..to + COLUMNS].copy_from_slice(&quantised.sums[from.clone()]);
            }
            for half in 0..2 {
                let to = (2 * block + half) * WIDTH + group.column;
                if !self.half_starts.is_empty() {
                    let starts = &quantised.half_starts[half][from.clone()];
                    self.half_starts[to..to + COLUMNS].copy_from_slice(starts);
                }
                if !self.half_sums.is_empty() {
                    let sums = &quantised.half_sums[half][from.clone()];
                    self.half_sums[to..to + COLUMNS].copy_from_slice(sums);
                }
            }
        }
    }
}

/// What [`Columns`](super::Columns) holds of 16 blocks beside their quants, by lane.
struct Quantised {
    scales: [f32; LANES],
    /// Zeros where scales are not coarse.
    coarse: CoarseScales,
    starts: [i32; LANES],
    half_starts: [[i32; LANES]; 2],
    sums: [f32; LANES],
    half_sums: [[f32; LANES]; 2],
}

/// Quantises 16 blocks. The scale of a block with a NaN, an infinity or what is nearly one is NaN, so that a
/// broken activation is seen in the logits. Sums of halves are left out where nobody wants them.
#[inline(always)]
fn quantise_blocks<S: Simd, const WIDTH: usize, const COLUMNS: usize, const HALVES: bool>(
    s: S,
    mut lanes: Lanes<'_, WIDTH, COLUMNS>,
    is_coarse: bool,
) -> Quantised {
    // So small a block counts as zeros: its scale times a weight's could be below what is a normal number.
    const SMALLEST: f32 = 1e-24;
    // One so large counts as broken: what sums of it start with could be no number.
    const LARGEST: f32 = 1e30;
    let zero = s.splat(0.0);
    let mut largest = [zero; LANES];
    each!(lane in LANES => {
        let values = lanes.values(lane);
        largest[lane] = s.larger_magnitude(s.read(values), s.read(&values[LANES..]));
    });
    let largest = s.largest_magnitude_of_each(largest);
    let (inverse, scale) = match is_coarse {
        true => {
            let mut scales = [0.0; LANES];
            s.write(&mut scales, s.div(largest, s.splat(127.0)));
            let scale = s.read(&coarse::round_up(scales));
            (s.div(s.splat(1.0), scale), scale)
        }
        false => (
            s.div(s.splat(127.0), largest),
            s.div(largest, s.splat(127.0)),
        ),
    };
    let inverse = s.select_below(largest, SMALLEST, zero, inverse);
    let inverse = s.select_below(largest, LARGEST, inverse, zero);
    let scale = s.select_below(largest, LARGEST, scale, s.splat(f32::NAN));
    let mut inverses = [0.0; LANES];
    s.write(&mut inverses, inverse);
    // Of either half where somebody wants these, else of both.
    let mut sums = [[zero; LANES]; 2];
    each!(lane in LANES => {
        let values = lanes.values(lane);
        let inverse = s.splat(inverses[lane]);
        let halves = [s.read(values), s.read(&values[LANES..])];
        let quants = lanes.quants(lane);
        each!(half in 2, 0 1 => {
            let rounded = s.to_i32(s.mul(halves[half], inverse));
            // SAFETY: room for both halves.
            unsafe { s.store_bytes(quants.as_mut_ptr().add(half * LANES), rounded) };
            let of_half = s.to_f32(rounded);
            match (HALVES, half) {
                (true, _) | (_, 0) => sums[half][lane] = of_half,
                _ => sums[0][lane] = s.add(sums[0][lane], of_half),
            }
        });
    });
    // Whole numbers that single precision has: in any order their sum is the same.
    let is_finite = |sum| s.select_below(largest, LARGEST, sum, zero);
    let mut of_halves = [is_finite(s.sum_of_each(sums[0])), zero];
    if HALVES {
        of_halves[1] = is_finite(s.sum_of_each(sums[1]));
    }
    let mut quantised = Quantised {
        scales: [0.0; LANES],
        coarse: CoarseScales::zeros(),
        starts: [0; LANES],
        half_starts: [[0; LANES]; 2],
        sums: [0.0; LANES],
        half_sums: [[0.0; LANES]; 2],
    };
    s.write(&mut quantised.scales, scale);
    if s.sum(scale).is_nan() {
        clear_broken(&quantised.scales, lanes);
    }
    let Quantised {
        starts,
        half_starts,
        sums,
        half_sums,
        ..
    } = &mut quantised;
    write_sums(s, s.add(of_halves[0], of_halves[1]), scale, starts, sums);
    if HALVES {
        for half in 0..2 {
            let (starts, sums) = (&mut half_starts[half], &mut half_sums[half]);
            write_sums(s, of_halves[half], scale, starts, sums);
        }
    }
    if is_coarse {
        quantised.coarse = coarse::parts(&quantised.scales, &quantised.starts);
    }
    quantised
}

/// Leaves zeros for quants where there is no scale.
#[cold]
fn clear_broken<const WIDTH: usize, const COLUMNS: usize>(
    scales: &[f32; LANES],
    mut lanes: Lanes<'_, WIDTH, COLUMNS>,
) {
    for lane in (0..LANES).filter(|lane| scales[*lane].is_nan()) {
        lanes.quants(lane).fill(0);
    }
}

/// What sums start with that multiply some quants, and what these stand for, given the sums of the
/// quants.
#[inline(always)]
fn write_sums<S: Simd>(
    s: S,
    sum: S::F32,
    scale: S::F32,
    starts: &mut [i32; LANES],
    sums: &mut [f32; LANES],
) {
    let start = s.to_i32(s.mul(sum, s.splat(-128.0)));
    // SAFETY: room for 16.
    unsafe { s.store_i32(starts.as_mut_ptr(), start) };
    s.write(sums, s.mul(scale, sum));
}
