//! Products of panels and columns, dealt out to threads.
//!
//! Owns how a product is cut into pieces; what a piece computes is in `run.rs`. Must not know what
//! a product is for.

use std::ops::Range;

use fornax_gguf::DType;

use crate::{
    columns::{Columns, Precisions},
    cores::Cores,
    isa::Isa,
    memory::Parts,
    panel::{BLOCK, FEW, is_coarse, is_quantised, strip_shape},
    pool::share,
    run::{Output, Run, Tiling, Turn, turn_columns},
    simd::LANES,
    weight::{Matrix, Part},
};

/// Bytes of weights that a piece of work streams at least, for few columns.
const PIECE_BYTES: usize = 64 << 10;
/// Such pieces that a thread takes at a time, at most: between two of them it asks memory for nothing, which
/// is 4 % of its time where it takes one after the other (Zen 5).
const TOGETHER: usize = 8;
/// Panels of a piece for [many](Tiling::has_many) columns, at most: spread, they stay in a core's cache. On a
/// matrix unit so many are taken at a time, for any number. Fewer columns are through sooner than memory is
/// with as many panels, of which the first in a product have to be waited for: they go with a pair.
pub(crate) const PIECE_PANELS: usize = 4;
const PAIR: usize = 2;
/// Columns of such a piece: they stay there too, while panels go by.
const PIECE_COLUMNS: usize = 512;

/// In which precisions weights want their activations.
pub(crate) fn precisions(isa: Isa, dtypes: impl IntoIterator<Item = DType>) -> Precisions {
    let mut wanted = Precisions::default();
    let mut all_coarse = isa.has_pairs_of_panels();
    for dtype in dtypes {
        all_coarse &= is_coarse(dtype);
        match dtype {
            DType::BF16 if isa.has_brains() => wanted.brains = true,
            dtype if is_quantised(dtype) => {
                let shape = strip_shape(dtype);
                wanted.quants = true;
                wanted.halves |= shape.shares > 1;
                wanted.sums |= shape.has_min;
                wanted.crowds_in_brains = isa.has_brains_for_quants();
            }
            _ => wanted.floats = true,
        }
    }
    wanted.coarse = wanted.quants && all_coarse;
    wanted
}

/// Panels of a piece for few columns: in pairs where one is short, so that what they give are whole
/// blocks of activations of another product.
fn streamed_panels(panel_bytes: usize) -> usize {
    match PIECE_BYTES / panel_bytes.max(1) {
        0 => 1,
        panels => panels.next_multiple_of(BLOCK / LANES),
    }
}

/// Lines for the products of a piece with the tiles of one turn, whatever their width.
pub(crate) fn product_lines(isa: Isa, panel_bytes: usize) -> usize {
    let (many, few) = (
        turn_columns(isa) * PIECE_PANELS,
        FEW * TOGETHER * streamed_panels(panel_bytes),
    );
    many.max(few)
}

/// A part cut into pieces: runs of panels, for one run of tiles after another.
#[derive(Clone, Debug)]
pub(crate) struct Pieces<'a> {
    columns: &'a Columns,
    panels: usize,
    panels_each: usize,
    tiles: Range<usize>,
    tiles_each: usize,
    pub tiling: Tiling,
}

impl<'a> Pieces<'a> {
    /// Cuts the product of panels of `panel_bytes` with some tiles of one group.
    pub fn of(
        isa: Isa,
        panels: usize,
        panel_bytes: usize,
        columns: &'a Columns,
        tiles: &Range<usize>,
    ) -> Self {
        let tiling = Tiling {
            width: match tiles.is_empty() {
                true => 1,
                false => columns.tile(tiles.start).width,
            },
            tiles: tiles.len(),
            is_crowded: !tiles.is_empty() && columns.tile(tiles.start).is_crowded,
        };
        let (panels_each, tiles_each) = match tiling.is_few() {
            true => (streamed_panels(panel_bytes), 1),
            false if !tiling.has_many(isa) && !isa.has_matrix_unit() => (PAIR, tiles.len()),
            false => (PIECE_PANELS, PIECE_COLUMNS.div_ceil(tiling.width)),
        };
        Self {
            columns,
            panels,
            panels_each: panels_each.clamp(1, panels.max(1)),
            tiles: tiles.clone(),
            tiles_each: tiles_each.max(1),
            tiling,
        }
    }

    /// Whether the outputs of each are whole blocks of activations of another product.
    pub fn have_whole_blocks(&self) -> bool {
        self.panels_each.is_multiple_of(BLOCK / LANES)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.panel_runs() * self.tiles.len().div_ceil(self.tiles_each)
    }

    fn panel_runs(&self) -> usize {
        self.panels.div_ceil(self.panels_each)
    }

    /// How many may be computed as one.
    pub fn together(&self) -> usize {
        if self.tiling.is_few() { TOGETHER } else { 1 }
    }

    /// Pieces that follow each other, in a part that has these panels: one, or some that may be
    /// [together](Self::together). `left` counts those that their thread has before it, these among them.
    pub fn run<'p>(
        &self,
        part: &'p Part,
        expert: usize,
        pieces: Range<usize>,
        left: usize,
    ) -> Run<'p> {
        let (first, tiles) = self.piece(pieces.start);
        let panels = first.start..self.piece(pieces.end - 1).0.end;
        let joined = self.columns.joined(tiles.clone());
        let next = match left > pieces.len() && pieces.end < self.count() {
            true => self.piece(pieces.end).0,
            false => 0..0,
        };
        Run {
            part,
            expert,
            panels,
            tiles,
            columns: joined.first..joined.first + joined.used,
            tiling: self.tiling,
            next,
        }
    }

    /// Which of these were taken. `taken` counts from the first of these, and afterwards from the first
    /// piece behind them.
    pub fn next_of(&self, taken: &mut Range<usize>) -> Option<Range<usize>> {
        let count = self.count();
        let own = taken.start..taken.end.min(count);
        *taken = taken.start.saturating_sub(count)..taken.end.saturating_sub(count);
        (!own.is_empty()).then_some(own)
    }

    /// Panels and tiles of a piece.
    fn piece(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let (tiles, panels) = (index / self.panel_runs(), index % self.panel_runs());
        let panel = panels * self.panels_each;
        let tile = self.tiles.start + tiles * self.tiles_each;
        let panels = panel..self.panels.min(panel + self.panels_each);
        (panels, tile..self.tiles.end.min(tile + self.tiles_each))
    }
}

/// The rows of some panels of a part alone, for a few columns in one tile: `out = x · weightᵀ` at their places.
/// `out` is `[columns, part.rows]`.
pub(crate) fn multiply_chosen(
    cores: &mut Cores,
    out: &mut [f32],
    part: &Part,
    columns: &Columns,
    tiles: &Range<usize>,
    chosen: &[usize],
) {
    let (isa, pool) = cores.parts();
    let tile = columns.joined(tiles.clone());
    let output = Output {
        to: Parts::new(out),
        stride: part.rows,
        offset: 0,
        first_row: 0,
        first_column: 0,
    };
    let tiling = Pieces::of(isa, part.panels, part.panel_bytes(), columns, tiles).tiling;
    assert!(tiling.is_few(), "few columns");
    pool.run_together(chosen.len(), TOGETHER, |taken, _| {
        for &panel in &chosen[taken] {
            let run = Run {
                part,
                expert: 0,
                panels: panel..panel + 1,
                tiles: tiles.clone(),
                columns: tile.first..tile.first + tile.used,
                tiling,
                next: 0..0,
            };
            let turn = Turn {
                columns,
                tiles: tiles.clone(),
                bias: None,
                output,
            };
            // SAFETY: few columns read the panels themselves; each piece is other panels.
            unsafe { run.multiply(isa, &mut [], turn) };
        }
    });
}

/// For each of some experts and the tiles of its columns: `out = x · weightᵀ + bias`. `out` is
/// `[columns, matrix.rows]`, `bias` `[experts, matrix.rows]`; a matrix that is no stack has expert
/// 0 only.
pub(crate) fn multiply(
    cores: &mut Cores,
    out: &mut [f32],
    matrix: &Matrix,
    bias: Option<&[f32]>,
    columns: &Columns,
    chosen: &[(usize, Range<usize>)],
) {
    let parts = (&matrix.parts[..], matrix.rows);
    multiply_parts(cores, out, parts, bias, columns, chosen);
}

/// The same for some parts of a matrix that has so many rows.
pub(crate) fn multiply_parts(
    cores: &mut Cores,
    out: &mut [f32],
    (parts, rows): (&[Part], usize),
    bias: Option<&[f32]>,
    columns: &Columns,
    chosen: &[(usize, Range<usize>)],
) {
    let isa = cores.isa;
    let Cores { pool, lines, .. } = cores;
    let to = Parts::new(out);
    let all = || {
        chosen
            .iter()
            .flat_map(|chosen| parts.iter().map(move |part| (chosen, part)))
    };
    let pieces = |part: &Part, tiles: &Range<usize>| {
        Pieces::of(isa, part.panels, part.panel_bytes(), columns, tiles)
    };
    let (mut count, mut each, mut together) = (0, 0, TOGETHER);
    for ((_, tiles), part) in all() {
        let pieces = pieces(part, tiles);
        count += pieces.count();
        each = each.max(Run::scratch_lines(isa, part, PIECE_PANELS));
        together = together.min(pieces.together());
    }
    let threads = pool.threads();
    lines.grow(threads * each);
    let scratch = Parts::new(lines);
    pool.run_together(count, together, |mut taken, thread| {
        let left = share(count, threads, thread)
            .end
            .saturating_sub(taken.start);
        for ((expert, tiles), part) in all() {
            let pieces = pieces(part, tiles);
            let Some(own) = pieces.next_of(&mut taken) else {
                continue;
            };
            let first = *expert * rows + part.first_row;
            let bias = bias.map(|bias| &bias[first..first + part.rows]);
            let output = Output {
                to,
                stride: rows,
                offset: part.first_row,
                first_row: 0,
                first_column: 0,
            };
            let run = pieces.run(part, *expert, own, left);
            // SAFETY: each thread has its own scratch; each piece has other panels or columns.
            unsafe {
                let scratch = scratch.part(thread * each, each);
                run.prepare(isa, scratch);
                for tiles in run.turns(isa) {
                    let turn = Turn {
                        columns,
                        tiles,
                        bias,
                        output,
                    };
                    run.multiply(isa, scratch, turn);
                }
            }
            if taken.is_empty() {
                return;
            }
        }
    });
}
