//! A run of panels, made ready for tiles of columns and multiplied with them.
//!
//! Owns how it goes through panels; which route it takes is in `run/route.rs`, the routes are the other files of
//! `run/`, the arithmetic is in `panel/`. Must not know threads.
//!
//! Bits are spread to bytes in scratch that stays in a core's cache. For few columns there is
//! nothing to make ready: they read the panels themselves, each byte once. Nor is there for a matrix
//! unit where panels are bytes.

#[cfg(target_arch = "x86_64")]
mod brain_dots;
#[cfg(target_arch = "x86_64")]
mod matrix;
mod route;
mod strips;
#[cfg(target_arch = "x86_64")]
mod unpack;

use std::{marker::PhantomData, ops::Range};

use crate::{
    ahead::Ahead,
    columns::{Columns, Tile},
    isa::Isa,
    memory::{Line, Parts},
    panel::{Format, with_format},
    product::precisions,
    simd::{Kernel, LANES, Simd, each},
    weight::Part,
};
use route::Route;
pub(crate) use route::{Tiling, turn_columns};

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

/// What panels are multiplied with at a time, and where that goes.
#[derive(Clone)]
pub(crate) struct Turn<'a> {
    pub columns: &'a Columns,
    /// Those of the run, or of one beside it, whose format may take more tiles at a time or fewer.
    pub tiles: Range<usize>,
    /// Added to the outputs of the part. `[part.rows]`
    pub bias: Option<&'a [f32]>,
    pub output: Output<'a>,
}

/// Some panels of an expert.
#[derive(Clone)]
pub(crate) struct Run<'a> {
    pub part: &'a Part,
    pub expert: usize,
    pub panels: Range<usize>,
    /// Tiles that they are multiplied with, one after another.
    pub tiles: Range<usize>,
    /// The columns of these.
    pub columns: Range<usize>,
    pub tiling: Tiling,
    /// Panels that this thread goes on with: they are asked for meanwhile.
    pub next: Range<usize>,
}

impl Run<'_> {
    /// Lines of scratch that [`prepare`](Self::prepare) and [`multiply`](Self::multiply) need of some
    /// panels, whatever the tiles: which ones an expert meets changes with every step, and scratch
    /// should not grow with it.
    pub fn scratch_lines(isa: Isa, part: &Part, panels: usize) -> usize {
        let bytes = |is_crowded| {
            let many = Tiling {
                width: isa.columns(),
                tiles: 2,
                is_crowded,
            };
            Route::of(isa, part.dtype, many).made_bytes(part.cols)
        };
        let most = bytes(false).max(bytes(isa.has_matrix_unit()));
        panels * most / size_of::<Line>()
    }

    /// Its tiles, as many at a time as are multiplied together.
    pub fn turns(&self, isa: Isa) -> impl Iterator<Item = Range<usize>> + use<> {
        let (end, each) = (self.tiles.end, self.turn_tiles(isa));
        let first = self.tiles.clone().step_by(each);
        first.map(move |tile| tile..end.min(tile + each))
    }

    fn turn_tiles(&self, isa: Isa) -> usize {
        self.route(isa).turn_tiles(isa, self.tiling.width)
    }

    fn route(&self, isa: Isa) -> Route {
        Route::of(isa, self.part.dtype, self.tiling)
    }

    /// What to ask for in some of the time that these panels take, counted in columns: a share of the
    /// panels that come in their place.
    fn ahead(&self, route: Route, indices: Range<usize>, time: Range<usize>) -> Ahead {
        let next = &self.next;
        let panels = next.start + indices.start..next.end.min(next.start + indices.end);
        if panels.is_empty() || time.is_empty() {
            return Ahead::nothing();
        }
        let all = route.making_columns() + self.columns.len();
        Ahead::of(self.part.panels(self.expert, panels)).share(time, all)
    }

    /// Makes the panels ready for tiles.
    pub fn prepare(&self, isa: Isa, scratch: &mut [Line]) {
        let (part, route) = (self.part, self.route(isa));
        let each = route.made_bytes(part.cols);
        assert!(size_of_val(scratch) >= self.panels.len() * each);
        let scratch = scratch.as_mut_ptr().cast::<u8>();
        for (index, panel) in self.panels.clone().enumerate() {
            let panel = part.panel(self.expert, panel).as_ptr();
            let to = scratch.wrapping_add(index * each);
            let ahead = self.ahead(route, index..index + 1, 0..route.making_columns());
            // SAFETY: a whole panel, and room for what is made of it.
            unsafe {
                match route {
                    Route::Panels
                    | Route::UnitPanels
                    | Route::BrainDots
                    | Route::Brains
                    | Route::Squares { unpacks: false } => {}
                    Route::Strips(shape) | Route::UnitStrips(shape) => {
                        strips::spread(isa, part, panel, ahead, shape.parts(to, part.cols));
                    }
                    // SAFETY: only an `Isa` of this processor has a matrix unit.
                    #[cfg(target_arch = "x86_64")]
                    Route::Squares { unpacks: true } => {
                        unpack::unpack(part, panel, ahead, to.cast())
                    }
                    #[cfg(not(target_arch = "x86_64"))]
                    Route::Squares { unpacks: true } => {
                        unreachable!("invariant: only x86 has a matrix unit")
                    }
                }
            }
        }
    }

    /// Multiplies with the tiles of a turn.
    ///
    /// # Safety
    /// [`prepare`](Self::prepare) was called with this scratch; nobody else has the outputs of these
    /// panels and columns.
    pub unsafe fn multiply(&self, isa: Isa, scratch: &mut [Line], turn: Turn<'_>) {
        let (end, each) = (turn.tiles.end, self.turn_tiles(isa));
        for tile in turn.tiles.clone().step_by(each) {
            let tiles = tile..end.min(tile + each);
            let turn = Turn {
                tiles,
                ..turn.clone()
            };
            // SAFETY: the caller's.
            unsafe { self.multiply_joined(isa, scratch, turn) };
        }
    }

    /// Multiplies with tiles that the route takes at once.
    ///
    /// # Safety
    /// As for [`multiply`](Self::multiply).
    unsafe fn multiply_joined(&self, isa: Isa, scratch: &mut [Line], turn: Turn<'_>) {
        let Turn {
            columns,
            tiles,
            bias,
            output,
        } = turn;
        let (part, route) = (self.part, self.route(isa));
        let tile = columns.joined(tiles.clone());
        let before = route.making_columns() + tile.first - self.columns.start;
        let time = before..before + tile.used;
        assert_eq!(part.cols, columns.cols, "inputs of a product");
        assert!(
            columns.holds(precisions(isa, [part.dtype])),
            "precision of activations"
        );
        let work = TileWork {
            run: self,
            scratch,
            columns,
            tiles,
            tile,
            route,
            time,
            bias,
            output,
        };
        match route {
            Route::Panels => {
                with_format!(part.dtype, F => isa.run_with_dots(PanelTile::<F>(work, PhantomData)));
            }
            Route::Strips(shape) => strips::multiply(isa, &work, shape),
            // SAFETY: only an `Isa` of this processor has a matrix unit, and AVX-512 with it.
            #[cfg(target_arch = "x86_64")]
            Route::UnitPanels => unsafe { matrix::panels(&work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Route::UnitStrips(shape) => unsafe { matrix::strips(&work, shape) },
            // SAFETY: only an `Isa` of this processor multiplies brain floats.
            #[cfg(target_arch = "x86_64")]
            Route::BrainDots => unsafe { brain_dots::tiles(&work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Route::Brains => unsafe { matrix::brains(&work, false) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Route::Squares { unpacks } => unsafe { matrix::squares(&work, unpacks) },
            #[cfg(not(target_arch = "x86_64"))]
            Route::UnitPanels
            | Route::UnitStrips(_)
            | Route::BrainDots
            | Route::Brains
            | Route::Squares { .. } => {
                unreachable!("invariant: only x86 has a matrix unit or multiplies brain floats")
            }
        }
    }
}

/// A run and the tiles of a turn.
struct TileWork<'a> {
    run: &'a Run<'a>,
    scratch: &'a mut [Line],
    columns: &'a Columns,
    tiles: Range<usize>,
    /// As one: the first with the columns of all.
    tile: Tile,
    route: Route,
    /// When in the run's time this turn is, as [`Run::ahead`] counts.
    time: Range<usize>,
    bias: Option<&'a [f32]>,
    output: Output<'a>,
}

impl TileWork<'_> {
    /// What to ask for while some of the run's panels are multiplied.
    fn ahead(&self, indices: Range<usize>) -> Ahead {
        self.run.ahead(self.route, indices, self.time.clone())
    }

    /// Writes the sums of panels for columns of a tile, from `first` on.
    #[inline(always)]
    fn write_all<S: Simd, const P: usize, const N: usize>(
        &self,
        s: S,
        panel: usize,
        tile: Tile,
        first: usize,
        sums: [[S::F32; N]; P],
    ) {
        if first + N <= tile.used && LANES * (panel + P) <= self.run.part.rows {
            return self.write_whole(s, LANES * panel, tile.first + first, sums);
        }
        for (panel, sums) in (panel..).zip(sums) {
            let outputs = self.outputs_of(s, panel);
            for (column, sum) in (first..tile.used).zip(sums) {
                outputs.write(tile.first + column, sum);
            }
        }
    }

    /// Writes sums of which all are wanted, of outputs of the part from `row` on and columns of the
    /// product from `column` on. Places are worked out once: one by one they cost a twentieth of the
    /// products of 1,024 inputs.
    #[inline(always)]
    fn write_whole<S: Simd, const P: usize, const N: usize>(
        &self,
        s: S,
        row: usize,
        column: usize,
        mut sums: [[S::F32; N]; P],
    ) {
        if let Some(bias) = self.bias {
            each!(p in P, 0 1 => {
                let bias = s.read(&bias[row + LANES * p..]);
                each!(c in N => sums[p][c] = s.add(sums[p][c], bias));
            });
        }
        let Output { to, stride, .. } = self.output;
        let place = self.output.offset + row - self.output.first_row;
        let start = (column - self.output.first_column) * stride + place;
        let _last = to.at(start + (N - 1) * stride + P * LANES - 1);
        let start = to.at(start);
        each!(c in N => each!(p in P, 0 1 => {
            // SAFETY: inside, for the first and the last are; `multiply` was promised these outputs.
            unsafe { s.store(start.add(c * stride + p * LANES), sums[p][c]) };
        }));
    }

    /// Writes the sums of a panel, by column of the turn.
    #[inline(always)]
    fn write<S: Simd, const N: usize>(&self, s: S, panel: usize, sums: [S::F32; N]) {
        self.write_all(s, panel, self.tile, 0, [sums]);
    }

    /// Where a panel's outputs go.
    #[inline(always)]
    fn outputs_of<S: Simd>(&self, s: S, panel: usize) -> PanelOutputs<'_, S> {
        let rows = self.run.part.rows_of(&(panel..panel + 1));
        PanelOutputs {
            s,
            output: self.output,
            place: self.output.offset + rows.start - self.output.first_row,
            count: rows.len(),
            bias: self.bias.map(|bias| s.read_up_to(&bias[rows], 0.0)),
        }
    }
}

/// Where a panel's outputs go, and what is added to them: all that is the same for each column.
struct PanelOutputs<'a, S: Simd> {
    s: S,
    output: Output<'a>,
    /// In the row of a column.
    place: usize,
    /// 16, or fewer of the last panel.
    count: usize,
    bias: Option<S::F32>,
}

impl<S: Simd> PanelOutputs<'_, S> {
    /// Writes the sums for a column of the product.
    #[inline(always)]
    fn write(&self, column: usize, sum: S::F32) {
        let Self { s, output, .. } = self;
        let start = (column - output.first_column) * output.stride + self.place;
        let sum = match self.bias {
            Some(bias) => s.add(sum, bias),
            None => sum,
        };
        // SAFETY: `multiply` was promised these outputs.
        unsafe {
            match self.count {
                LANES => s.write(output.to.part(start, LANES), sum),
                count => s.write_up_to(output.to.part(start, count), sum),
            }
        }
    }
}

/// Panels times a tile.
struct PanelTile<'a, F>(TileWork<'a>, PhantomData<F>);

impl<F: Format> Kernel for PanelTile<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.0.tile.width {
            1 => self.columns::<S, 1>(s),
            4 => self.columns::<S, 4>(s),
            8 if const { S::COLUMNS >= 8 && F::WIDEST >= 8 } => self.columns::<S, 8>(s),
            16 if const { S::COLUMNS >= 16 && F::WIDEST >= 16 } => self.columns::<S, 16>(s),
            width => unreachable!("invariant: no tile has {width} columns"),
        }
    }
}

impl<F: Format> PanelTile<'_, F> {
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&self, s: S) {
        let work = &self.0;
        let (part, expert) = (work.run.part, work.run.expert);
        let columns = work.columns.of_tile(work.tile);
        for panel in work.run.panels.clone() {
            let weights = part.panel(expert, panel).as_ptr();
            // SAFETY: a whole panel, and a tile that `multiply` found filled.
            let sums = unsafe { F::multiply::<S, N>(s, weights, part.cols, columns) };
            work.write(s, panel, sums);
        }
    }
}
