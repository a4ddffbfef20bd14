//! Activations as register tiles read them: the columns of a product.
//!
//! Owns their precisions (how they are filled in is in `columns/fill.rs`) and the order in which tiles read
//! them. Must not know weights. Columns stand in groups (one for a plain product, one an expert for a
//! mixture), each cut into tiles; a product runs through tiles of one group.
//!
//! Activations are quantised in blocks of 32 under one single-precision scale, 127 steps either way or,
//! where scales are [coarse](self::coarse), 106 at least: finer than the half-precision scale of Q8_0. A
//! vector unit and a matrix unit read the same quants. Where a matrix unit multiplies brain floats, so are
//! activations: for weights that are, and for all quantised ones where a group has many columns. Where
//! products wait for multiplications, formats that can afford it have coarse scales.

mod coarse;
mod fill;
mod quantise;

use std::ops::Range;

use crate::{
    cores::Cores,
    isa::Isa,
    memory::{Growing, Line, Parts},
    panel::BLOCK,
    simd::LANES,
};
use fill::Places;
pub(crate) use fill::{Filler, Rows};

/// Columns of a group from which on it pays to make quantised weights brain floats: then a matrix unit
/// adds up all blocks by itself, where integers leave it after every block to be scaled.
const CROWD: usize = 2 * LANES + 1;
/// Columns of a tile under coarse scales, which two panels meet six at a time.
pub(crate) const COARSE_TILE: usize = 24;

/// Columns of some products. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// Values of a column.
    pub cols: usize,
    precisions: Precisions,
    tiles: Vec<Tile>,
    /// Row of the activations that each column comes from. `[columns]`
    sources: Vec<usize>,
    /// Columns of all tiles, with those that fill them up.
    room: usize,
    /// `[tiles][blocks][width][32]` signed bytes
    quants: Growing<Line>,
    /// `[tiles][blocks][width]`
    scales: Growing<f32>,
    /// What products read of coarse scales. `[tiles][blocks][3][width]`
    coarse: Growing<i32>,
    /// -128 times the sum of each block's quants. `[tiles][blocks][width]`
    starts: Growing<i32>,
    /// The same of either half of a block. `[tiles][blocks][2][width]`
    half_starts: Growing<i32>,
    /// Sum of each block's values, as they were quantised. `[tiles][blocks][width]`
    sums: Growing<f32>,
    /// The same of either half. `[tiles][blocks][2][width]`
    half_sums: Growing<f32>,
    /// `[tiles][cols][width]`
    floats: Growing<f32>,
    /// Brain floats. `[tiles][blocks][width][32]`
    brains: Growing<Line>,
}

/// Columns side by side in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tile {
    /// Its first column.
    pub first: usize,
    /// Columns that are wanted; others fill it up.
    pub used: usize,
    /// 1, 4, 8, 16 or 24 columns.
    pub width: usize,
    /// Whether its group has so many columns that a matrix unit takes two tiles at a time, and that
    /// quantised weights may become brain floats for them.
    pub is_crowded: bool,
    /// Columns of the tiles before it, with those that fill them up.
    start: usize,
}

/// Where a tile's activations begin; meaningless in a precision that [`Columns`] does not hold.
#[derive(Clone, Copy)]
pub(crate) struct TileColumns {
    /// `[blocks][width][32]`
    pub quants: *const i8,
    /// `[blocks][width]`
    pub scales: *const f32,
    /// Of coarse scales: what sums start with, what is taken off them, what makes the scale of a weight
    /// the rest of the product's. `[blocks][3][width]`
    pub coarse: *const i32,
    /// `[blocks][width]`
    pub starts: *const i32,
    /// `[blocks][2][width]`
    pub half_starts: *const i32,
    /// `[blocks][width]`
    pub sums: *const f32,
    /// `[blocks][2][width]`
    pub half_sums: *const f32,
    /// `[cols][width]`
    pub floats: *const f32,
    /// `[blocks][width][32]`
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only x86 has a matrix unit")
    )]
    pub brains: *const u16,
}

/// In which precisions columns are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Precisions {
    /// For quantised weights.
    pub quants: bool,
    /// Under coarse scales.
    pub coarse: bool,
    /// Some of these have a scale for each half of a block.
    pub halves: bool,
    /// Some of these have a least value beside the scale, which sums of activations meet.
    pub sums: bool,
    /// Whether these want brain floats instead in crowded tiles.
    pub crowds_in_brains: bool,
    pub floats: bool,
    /// For brain floats on a matrix unit.
    pub brains: bool,
}

impl Precisions {
    /// Whether all that is wanted are quants.
    pub fn are_quants_alone(self) -> bool {
        self.quants && !(self.crowds_in_brains || self.floats || self.brains)
    }

    /// Columns of the widest tile that has them.
    fn widest_tile(self, isa: Isa) -> usize {
        if self.coarse {
            COARSE_TILE
        } else {
            isa.columns()
        }
    }

    /// Those of a tile.
    fn of(self, tile: &Tile) -> Self {
        let in_brains = tile.is_crowded && self.crowds_in_brains;
        Self {
            quants: self.quants && !in_brains,
            brains: self.brains || self.quants && in_brains,
            ..self
        }
    }
}

impl Columns {
    /// Starts over with no columns of `cols` values, in those precisions.
    pub fn clear(&mut self, cols: usize, precisions: Precisions) {
        self.cols = cols;
        self.precisions = precisions;
        self.tiles.clear();
        self.sources.clear();
        self.room = 0;
    }

    /// Adds a group of columns that come from these rows, and returns its tiles. All of them are
    /// of one width, but for the last of a group that is no crowd.
    pub fn push_group(&mut self, isa: Isa, rows: impl Iterator<Item = usize>) -> Range<usize> {
        let (mut first, first_tile) = (self.sources.len(), self.tiles.len());
        self.sources.extend(rows);
        let count = self.sources.len() - first;
        let is_crowded = isa.has_matrix_unit() && count >= CROWD;
        while first < self.sources.len() {
            let left = self.sources.len() - first;
            let width = match left.next_power_of_two() {
                _ if is_crowded => isa.columns(),
                1 if count == 1 => 1,
                fitting if fitting <= isa.columns() => fitting.max(4),
                _ => self.precisions.widest_tile(isa),
            };
            self.tiles.push(Tile {
                first,
                used: left.min(width),
                width,
                is_crowded,
                start: self.room,
            });
            self.room += width;
            first += width;
        }
        first_tile..self.tiles.len()
    }

    /// The tile with a number.
    pub fn tile(&self, index: usize) -> Tile {
        self.tiles[index]
    }

    /// Some tiles of a group as those of one width, and the last by itself where it is narrower.
    pub fn by_width(&self, tiles: Range<usize>) -> [Range<usize>; 2] {
        let width = |tile| self.tile(tile).width;
        let last = match tiles.is_empty() || width(tiles.start) == width(tiles.end - 1) {
            true => tiles.end,
            false => tiles.end - 1,
        };
        [tiles.start..last, last..tiles.end]
    }

    /// Tiles of a group that stand side by side, as one: the first, with the columns of all.
    pub fn joined(&self, tiles: Range<usize>) -> Tile {
        let used = tiles.clone().map(|tile| self.tile(tile).used).sum();
        Tile {
            used,
            ..self.tile(tiles.start)
        }
    }

    /// Where the activations of a tile are.
    #[inline(always)]
    pub fn of_tile(&self, tile: Tile) -> TileColumns {
        let blocks = self.cols / BLOCK;
        let scales = tile.start * blocks;
        let brains = tile.start * self.cols.next_multiple_of(BLOCK);
        TileColumns {
            quants: self
                .quants
                .as_ptr()
                .cast::<i8>()
                .wrapping_add(scales * BLOCK),
            scales: self.scales.as_ptr().wrapping_add(scales),
            coarse: self.coarse.as_ptr().wrapping_add(3 * scales),
            starts: self.starts.as_ptr().wrapping_add(scales),
            half_starts: self.half_starts.as_ptr().wrapping_add(2 * scales),
            sums: self.sums.as_ptr().wrapping_add(scales),
            half_sums: self.half_sums.as_ptr().wrapping_add(2 * scales),
            floats: self.floats.as_ptr().wrapping_add(tile.start * self.cols),
            brains: self.brains.as_ptr().cast::<u16>().wrapping_add(brains),
        }
    }

    /// Whether a product may read these columns in those precisions.
    pub fn holds(&self, precisions: Precisions) -> bool {
        let Room {
            quants,
            half_starts,
            sums,
            half_sums,
            floats,
            brains,
            coarse: _,
        } = self.room_for(precisions);
        let coarse = self.room_for(self.precisions).coarse;
        self.starts.len() >= quants / BLOCK
            && self.half_starts.len() >= half_starts
            && self.sums.len() >= sums
            && self.half_sums.len() >= half_sums
            && self.quants.len() >= Line::count::<i8>(quants)
            && self.floats.len() >= floats
            && self.brains.len() >= Line::count::<u16>(brains)
            // Weights that may have exact scales beside them get these.
            && (precisions.coarse || !self.precisions.coarse)
            && self.coarse.len() >= coarse
    }

    /// Elements of the arrays.
    fn room_for(&self, precisions: Precisions) -> Room {
        let padded = self.cols.next_multiple_of(BLOCK);
        let mut all = Precisions::default();
        for tile in &self.tiles {
            let Precisions {
                quants,
                floats,
                brains,
                ..
            } = precisions.of(tile);
            all.quants |= quants;
            all.floats |= floats;
            all.brains |= brains;
        }
        let elements = |wanted: bool, cols: usize| if wanted { self.room * cols } else { 0 };
        let blocks = elements(all.quants, padded / BLOCK);
        let wanted = |wanted: bool, count: usize| if wanted { count } else { 0 };
        Room {
            quants: elements(all.quants, padded),
            coarse: wanted(precisions.coarse, 3 * blocks),
            half_starts: wanted(precisions.halves, 2 * blocks),
            sums: wanted(precisions.sums, blocks),
            half_sums: wanted(precisions.halves && precisions.sums, 2 * blocks),
            floats: elements(all.floats, self.cols),
            brains: elements(all.brains, padded),
        }
    }

    /// Fills the columns from `x`, whose rows are `cols` long.
    pub fn fill(&mut self, cores: &mut Cores, x: &[f32]) {
        let (isa, pool) = cores.parts();
        let cols = self.cols;
        let each = self.room * cols / (PIECES_EACH * pool.threads());
        let each = each.clamp(PIECE_VALUES.start, PIECE_VALUES.end);
        let filler = self.filler();
        let widest = filler.tiles.iter().map(|tile| tile.width).max();
        let blocks = cols.div_ceil(BLOCK);
        let blocks_each = (each / (widest.unwrap_or(1) * BLOCK)).clamp(1, blocks.max(1));
        let pieces = blocks.div_ceil(blocks_each);
        pool.run(filler.tiles.len() * pieces, |piece, _| {
            let (tile, first) = (piece / pieces, piece % pieces * blocks_each);
            let rows = Rows {
                values: x,
                stride: cols,
                first_row: 0,
                first_block: 0,
            };
            // SAFETY: pieces have different blocks.
            unsafe { filler.fill(isa, tile, first..blocks.min(first + blocks_each), rows) };
        });
    }

    /// Makes room for the columns, for threads that fill them.
    pub fn filler(&mut self) -> Filler<'_> {
        let (cols, precisions) = (self.cols, self.precisions);
        assert!(
            !precisions.quants || cols.is_multiple_of(BLOCK),
            "whole blocks of activations"
        );
        let room = self.room_for(precisions);
        let blocks = room.quants / BLOCK;
        self.quants.grow(Line::count::<i8>(room.quants));
        self.scales.grow(blocks);
        self.coarse.grow(room.coarse);
        self.starts.grow(blocks);
        self.half_starts.grow(room.half_starts);
        self.sums.grow(room.sums);
        self.half_sums.grow(room.half_sums);
        self.floats.grow(room.floats);
        self.brains.grow(Line::count::<u16>(room.brains));
        let places = Places {
            quants: Parts::new(Line::of(&mut self.quants)),
            scales: Parts::new(&mut self.scales),
            coarse: Parts::new(&mut self.coarse),
            starts: Parts::new(&mut self.starts),
            half_starts: Parts::new(&mut self.half_starts),
            sums: Parts::new(&mut self.sums),
            half_sums: Parts::new(&mut self.half_sums),
            floats: Parts::new(&mut self.floats),
            brains: Parts::new(Line::of(&mut self.brains)),
        };
        Filler {
            cols,
            tiles: &self.tiles,
            sources: &self.sources,
            precisions,
            places,
        }
    }
}

/// Pieces that a thread gets, where there is work for so many: fewer, and threads end apart.
const PIECES_EACH: usize = 8;
/// Values that a piece of work fills in: the fewest that are worth dealing out, and the most.
const PIECE_VALUES: Range<usize> = 4 << 10..16 << 10;

/// Elements of the arrays of [`Columns`].
struct Room {
    quants: usize,
    coarse: usize,
    half_starts: usize,
    sums: usize,
    half_sums: usize,
    floats: usize,
    brains: usize,
}
