//! The few largest of many products: a matrix's sketch is multiplied whole, and of the matrix itself the
//! panels that can have one of them.
//!
//! Owns which panels these are. Must not know how a sketch is made or what the products are for.
//!
//! For each column the panels in which the sketch has its peaks come first. Then so many products are known
//! that those wanted are at least as large as the least of these, and whatever panel has a peak nearer to
//! that than its error can be comes second. Most of the matrix is not read.

use crate::{
    columns::Columns,
    cores::Cores,
    isa::Isa,
    memory::Parts,
    panel::FEW,
    product,
    simd::{Kernel, LANES, Simd},
    sketch::Sketch,
    weight::Matrix,
};
use fornax_backend::{SKETCH_BLOCK, loudness};

/// Panels that a thread looks through at a time.
const PANELS_EACH: usize = 512;
/// Panels that are read first for a column of which one product is wanted: the more of them, the nearer to
/// the largest is the largest that is known, and the fewer come second.
const FIRST: usize = 4;
/// One in so many panels is read first at most: where more are wanted, all are read.
const ONE_IN: usize = 32;

/// Scratch of choices. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[n]`
    measured: Vec<Column>,
    /// Largest product of each panel with the sketch. `[n, panels]`
    peaks: Vec<f32>,
    /// The panel with the highest peak of each piece. `[n, pieces]`
    tops: Vec<usize>,
    /// The panels that are read first for each column, as many for each.
    highest: Vec<usize>,
    /// What a product of a column has to reach. `[n]`
    least: Vec<f32>,
    /// Panels by peak.
    ranked: Vec<usize>,
    /// Products that are known.
    known: Vec<f32>,
    /// Whether a panel was read. `[panels]`
    is_read: Vec<bool>,
    /// Whether a panel can have what is wanted. `[panels]`
    is_near: Vec<bool>,
    /// Those that are read next.
    chosen: Vec<usize>,
}

/// Rows at a time, at most: they are one tile, which reads panels themselves.
pub(crate) fn rows(isa: Isa) -> usize {
    FEW.min(isa.columns())
}

/// What a column says about errors.
#[derive(Clone, Copy, Debug)]
struct Column {
    /// As [`loudness`] has it, of what it is quantised to.
    loudness: f32,
    /// Length.
    length: f32,
    /// How far it is from what it is quantised to, at most.
    rounding: f32,
}

/// A block of activations is so far from what it is quantised to at most, in its largest values: half of one
/// of 127 steps for each of 32. Heads that would have fewer steps, under coarse scales, have no sketch.
const QUANTISED: f32 = 0.0223;
/// The same of brain floats.
const BRAINS: f32 = 1.0 / 256.0;
/// Sums in single precision are nearer than this to what they stand for, in lengths of what is multiplied.
const SUMMED: f32 = 1.0 / 65536.0;
/// Lengths of a column, and of a product, between which squares are numbers in single precision.
const SHORTEST: f32 = 1e-6;
const LONGEST: f32 = 1e30;

/// The `largest` largest products of each column, as all of them together give them, at their places
/// in `out`; others are less. `x` is `[n, matrix.cols]`, `out` `[n, matrix.rows]`.
pub(crate) fn largest(
    cores: &mut Cores,
    scratch: &mut Scratch,
    columns: &mut Columns,
    out: &mut [f32],
    (matrix, sketch): (&Matrix, &Sketch),
    x: &[f32],
    largest: usize,
) {
    let isa = cores.isa;
    let [part] = &matrix.parts[..] else {
        unreachable!("invariant: a matrix with a sketch is in one part")
    };
    let dtypes = [part.dtype, sketch.matrix.parts[0].dtype];
    let n = x.len() / matrix.cols;
    columns.clear(matrix.cols, product::precisions(isa, dtypes));
    let tiles = columns.push_group(isa, 0..n);
    columns.fill(cores, x);
    scratch.measured.clear();
    let rows = x.chunks_exact(matrix.cols);
    scratch
        .measured
        .extend(rows.map(|row| isa.run(Measure(row))));
    let panels = part.panels;
    let is_bounded = scratch
        .measured
        .iter()
        .all(|column| SHORTEST < column.length && sketch.longest * column.length < LONGEST);
    // A request may ask for any number.
    let is_worth_it = is_bounded && largest.saturating_mul(n) <= panels / ONE_IN;
    let first = if is_worth_it { &sketch.matrix } else { matrix };
    let all = [(0, tiles.clone())];
    product::multiply(cores, out, first, None, columns, &all);
    if !is_worth_it {
        return;
    }
    scratch.find_peaks(cores, out, matrix.rows, panels);

    let each = match largest {
        1 => FIRST.min(panels.div_ceil(PANELS_EACH)),
        _ => largest,
    };
    scratch.start(panels, each * n);
    for column in 0..n {
        scratch.choose_highest(panels, column, each, largest);
    }
    product::multiply_chosen(cores, out, part, columns, &tiles, &scratch.chosen);
    let precisions = product::precisions(isa, [part.dtype]);
    for column in 0..n {
        let of_column = &out[column * matrix.rows..][..matrix.rows];
        let least = scratch.least_known(of_column, column, each, largest);
        let Column {
            length, rounding, ..
        } = scratch.measured[column];
        // The sketch is multiplied with quants, and so are blocks; what else is nearer to the column.
        let moved = match precisions.quants {
            true => 0.0,
            false if precisions.brains => rounding + BRAINS * length,
            false => rounding,
        };
        let same = sketch.longest * (moved + SUMMED * length);
        scratch.least.push(least - same);
    }
    scratch.choose_near(cores, out, sketch, panels);
    product::multiply_chosen(cores, out, part, columns, &tiles, &scratch.chosen);
}

impl Scratch {
    /// Nothing is chosen yet, and there is room for all that may be.
    fn start(&mut self, panels: usize, highest: usize) {
        self.is_read.clear();
        self.is_read.resize(panels, false);
        self.chosen.clear();
        self.chosen.reserve(panels);
        self.ranked.clear();
        self.ranked.reserve(panels);
        self.highest.clear();
        self.highest.reserve(highest);
        self.least.clear();
        self.known.clear();
        self.known.reserve(highest * LANES);
    }

    fn find_peaks(&mut self, cores: &mut Cores, out: &[f32], rows: usize, panels: usize) {
        let (isa, pool) = cores.parts();
        let n = out.len() / rows;
        let pieces = panels.div_ceil(PANELS_EACH);
        self.peaks.resize(n * panels, 0.0);
        self.tops.resize(n * pieces, 0);
        let (peaks, tops) = (Parts::new(&mut self.peaks), Parts::new(&mut self.tops));
        pool.run(n * pieces, |piece, _| {
            let (column, first) = (piece / pieces, piece % pieces * PANELS_EACH);
            let count = PANELS_EACH.min(panels - first);
            let products = &out[column * rows..(column + 1) * rows][LANES * first..];
            // SAFETY: pieces have different places.
            let (peaks, top) = unsafe {
                (
                    peaks.part(column * panels + first, count),
                    tops.part(piece, 1),
                )
            };
            isa.run(Peaks {
                products,
                peaks: &mut *peaks,
            });
            top[0] = first + isa.run(Highest(peaks));
        });
    }

    /// Chooses so many panels in which a column has its highest peaks. Where one product is wanted, any
    /// that is near the largest does for a start: those of different pieces, which are known already.
    fn choose_highest(&mut self, panels: usize, column: usize, count: usize, largest: usize) {
        let peaks = &self.peaks[column * panels..][..panels];
        let higher = |a: &usize, b: &usize| peaks[*b].total_cmp(&peaks[*a]);
        self.ranked.clear();
        if largest == 1 {
            let pieces = panels.div_ceil(PANELS_EACH);
            let tops = &self.tops[column * pieces..][..pieces];
            self.ranked.extend_from_slice(tops);
        } else {
            self.ranked.extend(0..panels);
        }
        self.ranked.select_nth_unstable_by(count - 1, higher);
        self.ranked.truncate(count);
        for &panel in &self.ranked {
            self.highest.push(panel);
            if !std::mem::replace(&mut self.is_read[panel], true) {
                self.chosen.push(panel);
            }
        }
    }

    /// What the wanted products of a column, of which so many panels were read, are not below.
    fn least_known(&mut self, products: &[f32], column: usize, each: usize, largest: usize) -> f32 {
        self.known.clear();
        for &panel in &self.highest[column * each..][..each] {
            let of_panel = &products[LANES * panel..];
            let count = LANES.min(of_panel.len());
            self.known.extend_from_slice(&of_panel[..count]);
        }
        let higher = |a: &f32, b: &f32| b.total_cmp(a);
        *self.known.select_nth_unstable_by(largest - 1, higher).1
    }

    /// Chooses the panels that may have a wanted product of some column and were not read.
    fn choose_near(&mut self, cores: &mut Cores, out: &[f32], sketch: &Sketch, panels: usize) {
        let (isa, pool) = cores.parts();
        let (n, rows) = (self.least.len(), sketch.matrix.rows);
        self.is_near.clear();
        self.is_near.resize(panels, false);
        let is_near = Parts::new(&mut self.is_near);
        pool.run(panels.div_ceil(PANELS_EACH), |piece, _| {
            let first = piece * PANELS_EACH;
            let range = first..panels.min(first + PANELS_EACH);
            // SAFETY: pieces have different places.
            let is_near = unsafe { is_near.part(first, range.len()) };
            for column in 0..n {
                isa.run(Near {
                    peaks: &self.peaks[column * panels..][range.clone()],
                    products: &out[column * rows..][LANES * first..rows.min(LANES * range.end)],
                    panel_spreads: &sketch.panel_spreads[range.clone()],
                    spreads: &sketch.spreads[LANES * first..],
                    loudness: self.measured[column].loudness,
                    least: self.least[column],
                    is_read: &self.is_read[range.clone()],
                    is_near: &mut *is_near,
                });
            }
        });
        self.chosen.clear();
        let panels = 0..panels;
        self.chosen
            .extend(panels.filter(|&panel| self.is_near[panel]));
    }
}

/// Where the largest of some numbers stands.
struct Highest<'a>(&'a [f32]);

impl Kernel for Highest<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let (mut place, mut highest) = (0, f32::NEG_INFINITY);
        for (index, numbers) in self.0.chunks(LANES).enumerate() {
            let of_these = s.largest(s.read_up_to(numbers, f32::NEG_INFINITY));
            if of_these > highest {
                let within = numbers.iter().position(|number| *number == of_these);
                highest = of_these;
                place = LANES * index + within.unwrap_or(0);
            }
        }
        place
    }
}

/// Marks the panels, of some that lie one behind the other, that may have products of a column that are not
/// below `least`, and were not read.
struct Near<'a> {
    /// `[panels]`
    peaks: &'a [f32],
    /// With the sketch, but for panels that were read. `[rows]`
    products: &'a [f32],
    /// `[panels]`
    panel_spreads: &'a [f32],
    /// Of these rows, and maybe of more.
    spreads: &'a [f32],
    loudness: f32,
    least: f32,
    /// `[panels]`
    is_read: &'a [bool],
    /// `[panels]`
    is_near: &'a mut [bool],
}

impl Kernel for Near<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { least, peaks, .. } = self;
        let loudness = s.splat(self.loudness);
        // What up to 16 products can be at most.
        let reach = |products: &[f32], spreads: &[f32]| {
            let (products, spreads) = match products.len() >= LANES {
                true => (s.read(products), s.read(spreads)),
                false => (
                    s.read_up_to(products, f32::NEG_INFINITY),
                    s.read_up_to(spreads, 0.0),
                ),
            };
            s.mul_add(spreads, loudness, products)
        };
        for first in (0..peaks.len()).step_by(LANES) {
            let reached = reach(&peaks[first..], &self.panel_spreads[first..]);
            if s.largest(reached) < least {
                continue;
            }
            let mut of_panels = [0.0; LANES];
            s.write(&mut of_panels, reached);
            for (panel, reached) in (first..peaks.len()).zip(of_panels) {
                if reached < least || self.is_read[panel] || self.is_near[panel] {
                    continue;
                }
                let (products, spreads) = (&self.products[LANES * panel..], self.spreads);
                let reached = s.largest(reach(products, &spreads[LANES * panel..]));
                self.is_near[panel] = reached >= least;
            }
        }
    }
}

/// The largest product of each of some panels, which lie one behind the other.
struct Peaks<'a> {
    products: &'a [f32],
    peaks: &'a mut [f32],
}

impl Kernel for Peaks<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (index, peak) in self.peaks.iter_mut().enumerate() {
            let products = &self.products[LANES * index..];
            *peak = s.largest(match products.len() >= LANES {
                true => s.read(products),
                false => s.read_up_to(products, f32::NEG_INFINITY),
            });
        }
    }
}

/// Measures a column.
struct Measure<'a>(&'a [f32]);

impl Kernel for Measure<'_> {
    type Output = Column;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Column {
        let (blocks, _) = self.0.as_chunks::<SKETCH_BLOCK>();
        let squares = |block: &[f32; SKETCH_BLOCK]| {
            let (low, high) = (s.read(block), s.read(&block[LANES..]));
            s.sum(s.mul_add(low, low, s.mul(high, high)))
        };
        let magnitude = |block: &[f32; SKETCH_BLOCK]| {
            let (low, high) = (s.read(block), s.read(&block[LANES..]));
            let magnitudes = s.larger_magnitude(low, high);
            s.largest(s.larger_magnitude(magnitudes, s.splat(0.0)))
        };
        let (mut length, mut rounding) = (0.0, 0.0);
        let loudness = loudness(blocks.iter().map(|block| {
            let (squares, largest) = (squares(block), magnitude(block));
            length += squares;
            rounding += largest * largest;
            let quantised = squares.sqrt() + QUANTISED * largest;
            quantised * quantised
        }));
        Column {
            loudness,
            length: length.sqrt(),
            rounding: QUANTISED * rounding.sqrt(),
        }
    }
}
