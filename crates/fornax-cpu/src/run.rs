//! A run of panels, made ready for tiles of columns and multiplied with them.
//!
//! Owns the loops over panels and tiles; the arithmetic is in `panel/`. Must not know threads.
//!
//! Bits are spread to bytes, or values rounded to squares for the matrix unit, in scratch that
//! stays in a core's cache. For a lone column there is nothing to make ready: it reads the panels
//! themselves, each byte once.

use std::{marker::PhantomData, ops::Range};

use fornax_gguf::DType;

use crate::{
    columns::{Columns, MATRIX_COLUMNS, Tile},
    isa::Isa,
    memory::Parts,
    panel::{
        BLOCK, Format,
        blocks::Quantised,
        float::{self, FloatPanel},
        strip,
        strip::{StripShape, StripSource},
        strip_shape, with_blocks, with_format,
    },
    product::precisions,
    simd::{Kernel, LANES, Simd},
    weight::Part,
};

/// A cache line of scratch.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line([f32; 16]);

impl Line {
    /// Lines as the floats that they hold.
    pub fn floats(lines: &mut [Line]) -> &mut [f32] {
        let len = lines.len() * LANES;
        // SAFETY: a line is 16 floats and nothing else.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) }
    }
}

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

/// Some panels of an expert.
#[derive(Clone)]
pub(crate) struct Run<'a> {
    pub part: &'a Part,
    pub expert: usize,
    pub panels: Range<usize>,
}

/// How panels are made ready for tiles of a width.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    /// As they are.
    Panels,
    /// As strips.
    Strips(StripShape),
    /// As squares, made from strips where the weights are blocks.
    Squares(Option<StripShape>),
}

fn ready(dtype: DType, width: usize) -> Ready {
    match dtype {
        DType::F32 | DType::F16 => Ready::Panels,
        DType::BF16 if width == MATRIX_COLUMNS => Ready::Squares(None),
        DType::BF16 => Ready::Panels,
        _ if width == 1 => Ready::Panels,
        _ if width == MATRIX_COLUMNS => Ready::Squares(Some(strip_shape(dtype))),
        _ => Ready::Strips(strip_shape(dtype)),
    }
}

/// Bytes of scratch that a panel needs to be ready, a multiple of a cache line; those for what
/// one panel passes through are not among them.
fn ready_bytes(dtype: DType, cols: usize, width: usize) -> usize {
    match ready(dtype, width) {
        Ready::Panels | Ready::Squares(None) => 0,
        Ready::Strips(shape) => shape.bytes(cols),
        Ready::Squares(Some(_)) => square_bytes(cols),
    }
}

/// Bytes that one panel passes through on its way to be ready, and its products on their way out.
fn passing_bytes(dtype: DType, cols: usize, width: usize) -> usize {
    match ready(dtype, width) {
        Ready::Panels | Ready::Strips(_) => 0,
        Ready::Squares(None) => PRODUCT_BYTES,
        Ready::Squares(Some(shape)) => PRODUCT_BYTES + shape.bytes(cols),
    }
}

/// Bytes of 32 columns times 32 rows.
const PRODUCT_BYTES: usize = 4 * MATRIX_COLUMNS * 2 * LANES;

impl Run<'_> {
    /// Lines of scratch that [`prepare`](Self::prepare) and [`multiply`](Self::multiply) need.
    pub fn scratch_lines(part: &Part, panels: usize, width: usize) -> usize {
        let ready = panels * ready_bytes(part.dtype, part.cols, width);
        (ready + passing_bytes(part.dtype, part.cols, width)) / size_of::<Line>()
    }

    /// Makes the panels ready for tiles of this width.
    pub fn prepare(&self, isa: Isa, width: usize, scratch: &mut [Line]) {
        let part = self.part;
        assert!(scratch.len() >= Self::scratch_lines(part, self.panels.len(), width));
        let each = ready_bytes(part.dtype, part.cols, width);
        let to = scratch.as_mut_ptr().cast::<u8>();
        for (index, panel) in self.panels.clone().enumerate() {
            let panel = part.panel(self.expert, panel).as_ptr();
            let to = to.wrapping_add(index * each);
            match ready(part.dtype, width) {
                Ready::Panels | Ready::Squares(None) => return,
                Ready::Strips(shape) => {
                    let strip = shape.parts(to, part.cols);
                    // SAFETY: a whole panel, and room for a strip.
                    unsafe { spread(isa, part, panel, strip) };
                }
                Ready::Squares(Some(shape)) => {
                    let passing = self.panels.len() * each + PRODUCT_BYTES;
                    let passing = scratch.as_mut_ptr().cast::<u8>().wrapping_add(passing);
                    let strip = shape.parts(passing, part.cols);
                    // SAFETY: a whole panel, room for a strip and for squares.
                    unsafe {
                        spread(isa, part, panel, strip);
                        round(shape, with_quants(part, panel, strip, shape), part.cols, to);
                    }
                }
            }
        }
    }

    /// Multiplies with a tile. `bias` is added to the outputs of the part. `[part.rows]`
    ///
    /// # Safety
    /// [`prepare`](Self::prepare) was called with this scratch and the tile's width; nobody else
    /// has the outputs of these panels and columns.
    pub unsafe fn multiply(
        &self,
        isa: Isa,
        scratch: &mut [Line],
        columns: &Columns,
        tile: usize,
        bias: Option<&[f32]>,
        output: Output<'_>,
    ) {
        let (part, tile) = (self.part, columns.tile(tile));
        assert_eq!(part.cols, columns.cols, "inputs of a product");
        assert!(
            columns.holds(precisions([part.dtype])),
            "precision of activations"
        );
        let work = TileWork {
            run: self,
            scratch,
            columns,
            tile,
            bias,
            output,
        };
        match ready(part.dtype, tile.width) {
            Ready::Strips(shape) => isa.run(StripTile(work, shape)),
            Ready::Squares(shape) => work.on_matrix_unit(isa, shape),
            Ready::Panels if tile.width == 1 => {
                with_format!(part.dtype, F => isa.run(LoneColumn::<F>(work, PhantomData)))
            }
            Ready::Panels => match part.dtype {
                DType::F32 => isa.run(FloatTile::<float::F32>(work, PhantomData)),
                DType::F16 => isa.run(FloatTile::<float::F16>(work, PhantomData)),
                _ => isa.run(FloatTile::<float::Bf16>(work, PhantomData)),
            },
        }
    }
}

/// # Safety
/// `panel` points to a panel of the part, `strip` to room for one of its strips.
unsafe fn spread(isa: Isa, part: &Part, panel: *const u8, strip: strip::StripParts) {
    struct Spread<B>(*const u8, usize, strip::StripParts, PhantomData<B>);
    impl<B: crate::panel::blocks::Blocks> Kernel for Spread<Quantised<B>> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            // SAFETY: what the function around it was promised.
            unsafe { Quantised::<B>::spread(s, self.0, self.1, self.2) };
        }
    }
    let cols = part.cols;
    with_blocks!(part.dtype, B => isa.run(Spread::<B>(panel, cols, strip, PhantomData)));
}

/// A strip whose quants are where they are: in it, or still in the panel.
fn with_quants(
    part: &Part,
    panel: *const u8,
    strip: strip::StripParts,
    shape: StripShape,
) -> strip::StripParts {
    match shape.spreads {
        true => strip,
        false => strip::StripParts {
            quants: with_blocks!(part.dtype, B => B::quants(panel, part.cols)).cast_mut(),
            in_memory: true,
            ..strip
        },
    }
}

#[cfg(target_arch = "x86_64")]
fn square_bytes(cols: usize) -> usize {
    crate::panel::squares::bytes(cols)
}

/// # Safety
/// As for [`squares::round`](crate::panel::squares::round), on a processor with a matrix unit.
#[cfg(target_arch = "x86_64")]
unsafe fn round(shape: StripShape, strip: strip::StripParts, cols: usize, squares: *mut u8) {
    // SAFETY: the caller's.
    unsafe { crate::panel::squares::round(shape, strip, cols, squares) };
}

#[cfg(not(target_arch = "x86_64"))]
fn square_bytes(_: usize) -> usize {
    unreachable!("no tile of the matrix unit without one")
}

/// # Safety
/// None.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn round(_: StripShape, _: strip::StripParts, _: usize, _: *mut u8) {
    unreachable!("no tile of the matrix unit without one")
}

/// A run and a tile.
struct TileWork<'a> {
    run: &'a Run<'a>,
    scratch: &'a mut [Line],
    columns: &'a Columns,
    tile: Tile,
    bias: Option<&'a [f32]>,
    output: Output<'a>,
}

impl TileWork<'_> {
    /// Writes the sums of a panel, by column.
    #[inline(always)]
    fn write<S: Simd, const N: usize>(&self, s: S, panel: usize, first: usize, sums: [S::F32; N]) {
        let rows = self.run.part.rows_of(&(panel..panel + 1));
        let used = self.tile.used.saturating_sub(first);
        for (column, sum) in sums.into_iter().enumerate().take(used) {
            self.write_column(s, &rows, first + column, sum);
        }
    }

    #[inline(always)]
    fn write_column<S: Simd>(&self, s: S, rows: &Range<usize>, column: usize, sum: S::F32) {
        let output = self.output;
        let row = self.tile.first + column - output.first_column;
        let start = row * output.stride + output.offset + (rows.start - output.first_row);
        // SAFETY: `multiply` was promised these outputs.
        let out = unsafe { output.to.part(start, rows.len()) };
        let bias = self.bias.map(|bias| &bias[rows.clone()]);
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

    #[cfg(not(target_arch = "x86_64"))]
    fn on_matrix_unit(self, _: Isa, _: Option<StripShape>) {
        unreachable!("no tile of the matrix unit without one")
    }

    /// Two panels at a time.
    #[cfg(target_arch = "x86_64")]
    fn on_matrix_unit(self, isa: Isa, shape: Option<StripShape>) {
        use crate::simd::amx::MatrixUnit;
        assert!(
            isa.has_matrix_unit(),
            "a tile of the matrix unit without one"
        );
        let (part, panels) = (self.run.part, self.run.panels.clone());
        let blocks = part.cols.div_ceil(BLOCK);
        let each = ready_bytes(part.dtype, part.cols, MATRIX_COLUMNS);
        let scratch = self.scratch.as_mut_ptr().cast::<u8>();
        let product = scratch.wrapping_add(panels.len() * each).cast::<f32>();
        let squares = |panel: usize| match shape {
            Some(_) => scratch
                .wrapping_add((panel - panels.start) * each)
                .cast_const(),
            None => part.panel(self.run.expert, panel).as_ptr(),
        };
        let columns = self.columns.of_tile(self.tile).brains;
        // SAFETY: the unit is there, and nothing in here sets it up again.
        let unit = unsafe { MatrixUnit::new() };
        for first in panels.clone().step_by(2) {
            let second = (first + 1).min(panels.end - 1);
            // SAFETY: whole panels as squares, whole tiles of columns, room for the products.
            let product = unsafe {
                unit.multiply(columns, squares(first), squares(second), blocks, product);
                std::slice::from_raw_parts(product, PRODUCT_BYTES / 4)
            };
            isa.run(WriteProduct {
                work: &self,
                product,
                first,
                second,
            });
        }
    }
}

/// Takes the product of two panels out.
#[cfg(target_arch = "x86_64")]
struct WriteProduct<'a> {
    work: &'a TileWork<'a>,
    /// `[32 columns][32 rows]`
    product: &'a [f32],
    first: usize,
    second: usize,
}

#[cfg(target_arch = "x86_64")]
impl Kernel for WriteProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let part = self.work.run.part;
        let rows = [self.first, self.second].map(|panel| part.rows_of(&(panel..panel + 1)));
        let panels = if self.first == self.second { 1 } else { 2 };
        let columns = self.product.chunks_exact(2 * LANES).enumerate();
        for (column, product) in columns.take(self.work.tile.used) {
            for (rows, sums) in rows.iter().zip(product.chunks_exact(LANES)).take(panels) {
                self.work.write_column(s, rows, column, s.read(sums));
            }
        }
    }
}

/// Panels times one column.
struct LoneColumn<'a, F>(TileWork<'a>, PhantomData<F>);

impl<F: Format> Kernel for LoneColumn<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let work = self.0;
        let column = work.columns.of_tile(work.tile);
        for panel in work.run.panels.clone() {
            let weights = work.run.part.panel(work.run.expert, panel).as_ptr();
            // SAFETY: a whole panel, and a column that `multiply` found filled.
            let sum = unsafe { F::multiply_one(s, weights, work.run.part.cols, column) };
            work.write(s, panel, 0, [sum]);
        }
    }
}

/// Panels of floats times a tile.
struct FloatTile<'a, E>(TileWork<'a>, PhantomData<E>);

impl<E: FloatPanel> Kernel for FloatTile<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.0.tile.width {
            4 => self.columns::<S, 4>(s),
            8 if const { S::COLUMNS >= 8 } => self.columns::<S, 8>(s),
            16 | MATRIX_COLUMNS if const { S::COLUMNS >= 16 } => self.columns::<S, 16>(s),
            width => unreachable!("a tile of {width} columns"),
        }
    }
}

impl<E: FloatPanel> FloatTile<'_, E> {
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&self, s: S) {
        let work = &self.0;
        let cols = work.run.part.cols;
        for panel in work.run.panels.clone() {
            let weights = work.run.part.panel(work.run.expert, panel).as_ptr();
            for first in (0..work.tile.width).step_by(N) {
                let mut columns = work.columns.of_tile(work.tile);
                columns.floats = columns.floats.wrapping_add(first * cols);
                // SAFETY: a whole panel, and a tile that `multiply` found filled.
                let sums = unsafe { float::multiply::<S, E, N>(s, weights, cols, columns) };
                work.write(s, panel, first, sums);
            }
        }
    }
}

/// Strips times a tile.
struct StripTile<'a>(TileWork<'a>, StripShape);

impl Kernel for StripTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.0.tile.width {
            4 => self.columns::<S, 4>(s),
            8 if const { S::COLUMNS >= 8 } => self.columns::<S, 8>(s),
            16 if const { S::COLUMNS >= 16 } => self.columns::<S, 16>(s),
            width => unreachable!("a tile of {width} columns"),
        }
    }
}

impl StripTile<'_> {
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&self, s: S) {
        match (self.1.shares, self.1.has_min) {
            (1, false) => self.multiply::<S, 1, false, N>(s),
            (1, true) => self.multiply::<S, 1, true, N>(s),
            (_, false) => self.multiply::<S, 2, false, N>(s),
            (_, true) => self.multiply::<S, 2, true, N>(s),
        }
    }

    #[inline(always)]
    fn multiply<S: Simd, const SHARES: usize, const MIN: bool, const N: usize>(&self, s: S) {
        let Self(work, shape) = self;
        let part = work.run.part;
        let columns = work.columns.of_tile(work.tile);
        let each = shape.bytes(part.cols);
        // Only read: `multiply` takes a pointer for both.
        let scratch = work.scratch.as_ptr().cast::<u8>().cast_mut();
        for (index, panel) in work.run.panels.clone().enumerate() {
            let strip = shape.parts(scratch.wrapping_add(index * each), part.cols);
            let weights = part.panel(work.run.expert, panel).as_ptr();
            let strip = with_quants(part, weights, strip, *shape);
            let source = StripSource::<SHARES, MIN>(strip);
            let blocks = part.cols / BLOCK;
            // SAFETY: a strip that `prepare` made, and a tile that `multiply` found filled.
            let sums = unsafe { strip::multiply::<S, _, N>(s, source, blocks, columns) };
            work.write(s, panel, 0, sums);
        }
    }
}
