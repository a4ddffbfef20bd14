//! Products of panels and columns, and how they are dealt out to threads.
//!
//! Owns the loop over panels and tiles; the arithmetic is in `panel.rs`. Must not know what a
//! product is for.

use std::{marker::PhantomData, ops::Range};

use crate::{
    columns::{Columns, Precisions},
    isa::Isa,
    memory::Parts,
    panel::{Format, Layout, with_format},
    pool::Pool,
    simd::{Kernel, LANES, Simd},
    weight::{Matrix, Part},
};

/// Bytes of weights that a piece of work streams at least.
const PIECE_BYTES: usize = 64 << 10;
/// Columns of a piece: their quants stay in a core's cache while panels pass by.
const PIECE_COLUMNS: usize = 128;

/// Where a product goes.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    /// `[columns, stride]`
    pub to: Parts<'a, f32>,
    /// Elements from one column to the next.
    pub stride: usize,
    /// Place of output `first_row` of the part in the row of a column.
    pub offset: usize,
    /// Lowest output of the part that is written.
    pub first_row: usize,
    /// Column of the product that stands in row 0.
    pub first_column: usize,
}

/// Some panels of a part times some tiles.
pub(crate) struct Product<'a> {
    pub part: &'a Part,
    pub expert: usize,
    pub panels: Range<usize>,
    pub columns: &'a Columns,
    pub tiles: Range<usize>,
    /// Added to the outputs of the part. `[part.rows]`
    pub bias: Option<&'a [f32]>,
    pub output: Output<'a>,
}

impl Product<'_> {
    /// Computes it.
    ///
    /// # Safety
    /// Nobody else has the outputs of these panels and columns.
    pub unsafe fn compute(self, isa: Isa) {
        let part = self.part;
        assert_eq!(part.cols, self.columns.cols, "inputs of a product");
        assert!(
            self.columns.holds(precisions([part.layout])),
            "precision of activations"
        );
        with_format!(part.layout, F => isa.run(Typed::<F>(self, PhantomData)));
    }
}

/// A product whose layout is known.
struct Typed<'a, F>(Product<'a>, PhantomData<F>);

impl<F: Format> Kernel for Typed<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let product = self.0;
        for panel in product.panels.clone() {
            for tile in product.tiles.clone() {
                match product.columns.tile(tile).width {
                    1 => one_tile::<S, F, 1>(s, &product, panel, tile),
                    2 => one_tile::<S, F, 2>(s, &product, panel, tile),
                    4 if const { S::COLUMNS >= 4 } => one_tile::<S, F, 4>(s, &product, panel, tile),
                    8 if const { S::COLUMNS >= 8 } => one_tile::<S, F, 8>(s, &product, panel, tile),
                    16 if const { S::COLUMNS >= 16 } => {
                        one_tile::<S, F, 16>(s, &product, panel, tile)
                    }
                    width => unreachable!("a tile of {width} columns"),
                }
            }
        }
    }
}

#[inline(always)]
fn one_tile<S: Simd, F: Format, const N: usize>(
    s: S,
    product: &Product<'_>,
    panel: usize,
    tile: usize,
) {
    let tile = product.columns.tile(tile);
    let weights = product.part.panel(product.expert, panel).as_ptr();
    let columns = product.columns.of_tile(tile);
    // SAFETY: a whole panel, and a tile that `compute` found filled.
    let sums: [S::F32; N] = unsafe { F::multiply(s, weights, product.part.cols, columns) };
    let rows = product.part.rows_of(&(panel..panel + 1));
    let bias = product.bias.map(|bias| &bias[rows.clone()]);
    let output = product.output;
    for (column, sum) in sums.into_iter().enumerate() {
        let row = tile.first + column - output.first_column;
        let start = row * output.stride + output.offset + (rows.start - output.first_row);
        // SAFETY: `compute` was promised these outputs.
        let out = unsafe { output.to.part(start, rows.len()) };
        if rows.len() == LANES {
            let sum = match bias {
                Some(bias) => s.add(sum, s.read(bias)),
                None => sum,
            };
            s.write(out, sum);
        } else {
            let sum = match bias {
                Some(bias) => s.add(sum, s.read_up_to(bias, 0.0)),
                None => sum,
            };
            s.write_up_to(out, sum);
        }
    }
}

/// In which precisions a matrix wants its activations.
pub(crate) fn precisions(layouts: impl IntoIterator<Item = Layout>) -> Precisions {
    let mut wanted = Precisions {
        quants: false,
        floats: false,
    };
    for layout in layouts {
        wanted.quants |= layout.is_quantised();
        wanted.floats |= !layout.is_quantised();
    }
    wanted
}

/// A part cut into pieces: runs of panels, for one run of tiles after another.
#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    panels: usize,
    panels_each: usize,
    tiles: Range<usize>,
    tiles_each: usize,
}

impl Pieces {
    /// Cuts the product of panels of `panel_bytes` with some tiles of one group.
    pub fn of(panels: usize, panel_bytes: usize, tiles: Range<usize>, widest: usize) -> Self {
        let streamed = panel_bytes * tiles.len().max(1);
        let panels_each = (PIECE_BYTES / streamed.max(1)).clamp(1, panels.max(1));
        let tiles_each = (PIECE_COLUMNS / widest).max(1);
        Self {
            panels,
            panels_each,
            tiles,
            tiles_each,
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.panel_runs() * self.tiles.len().div_ceil(self.tiles_each)
    }

    /// Outputs of the largest one, over all its columns.
    pub fn largest(&self, widest: usize) -> usize {
        let columns = self.tiles.len().min(self.tiles_each) * widest;
        self.panels_each * LANES * columns
    }

    fn panel_runs(&self) -> usize {
        self.panels.div_ceil(self.panels_each)
    }

    /// Panels and tiles of a piece.
    pub fn piece(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let (tiles, panels) = (index / self.panel_runs(), index % self.panel_runs());
        let panel = panels * self.panels_each;
        let tile = self.tiles.start + tiles * self.tiles_each;
        let panels = panel..self.panels.min(panel + self.panels_each);
        (panels, tile..self.tiles.end.min(tile + self.tiles_each))
    }
}

/// For each of some experts and the tiles of its columns: `out = x · weightᵀ + bias`. `out` is
/// `[columns, matrix.rows]`, `bias` `[experts, matrix.rows]`; a matrix that is no stack has expert
/// 0 only.
pub(crate) fn multiply(
    isa: Isa,
    pool: &mut Pool,
    out: &mut [f32],
    matrix: &Matrix,
    bias: Option<&[f32]>,
    columns: &Columns,
    chosen: &[(usize, Range<usize>)],
) {
    let to = Parts::new(out);
    let all = || {
        chosen
            .iter()
            .flat_map(|chosen| matrix.parts.iter().map(move |part| (chosen, part)))
    };
    let pieces = |part: &Part, tiles: &Range<usize>| {
        Pieces::of(
            part.panels,
            part.panel_bytes(),
            tiles.clone(),
            isa.columns(),
        )
    };
    let count = all()
        .map(|((_, tiles), part)| pieces(part, tiles).count())
        .sum();
    pool.run(count, |mut piece, _| {
        for ((expert, tiles), part) in all() {
            let pieces = pieces(part, tiles);
            if piece >= pieces.count() {
                piece -= pieces.count();
                continue;
            }
            let (panels, tiles) = pieces.piece(piece);
            let first = *expert * matrix.rows + part.first_row;
            let bias = bias.map(|bias| &bias[first..first + part.rows]);
            let (stride, offset) = (matrix.rows, part.first_row);
            let output = Output {
                to,
                stride,
                offset,
                first_row: 0,
                first_column: 0,
            };
            let expert = *expert;
            let product = Product {
                part,
                expert,
                panels,
                columns,
                tiles,
                bias,
                output,
            };
            // SAFETY: each piece has other panels or other columns.
            unsafe { product.compute(isa) };
            return;
        }
    });
}
