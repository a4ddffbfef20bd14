//! A matrix in four bits beside the matrix itself, which says what need not be read of it.
//!
//! Owns what is kept of a sketch and when one is worth its memory; how values are rounded and what that
//! promises is in `fornax_backend`, what it is used for in `largest.rs`.

use fornax_backend::{BackendError, SKETCH_BLOCK, SKETCH_BYTES, sketch_row};
use fornax_gguf::DType;

use crate::{
    cores::Cores,
    memory::{Arena, Parts},
    panel::{Format, with_format},
    simd::{Kernel, LANES, Simd},
    weight::{Matrix, Part},
};

/// A matrix in four bits.
#[derive(Debug)]
pub(crate) struct Sketch {
    /// Of the same rows in one part.
    pub matrix: Matrix,
    /// Of each row, as [`sketch_row`] has it. `[rows]`
    pub spreads: Vec<f32>,
    /// The largest of a panel's rows. `[panels]`
    pub panel_spreads: Vec<f32>,
    /// Length of the longest row.
    pub longest: f32,
}

impl Sketch {
    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        let parts = self.matrix.parts.iter();
        parts
            .map(|part| (part.panels * part.panel_bytes()) as u64)
            .sum()
    }

    /// Whether a matrix has so many bytes, and so many more bits than a sketch that one is worth its memory.
    pub fn pays(matrix: &Matrix, least_bytes: usize) -> bool {
        let bytes = |part: &Part| part.panels * part.panel_bytes();
        let bytes: usize = matrix.parts.iter().map(bytes).sum();
        let of_sketch = matrix.rows * matrix.cols / SKETCH_BLOCK * SKETCH_BYTES;
        bytes >= least_bytes && 4 * of_sketch <= 3 * bytes
    }

    /// The sketch of a matrix in one part that is no stack; `None` of any other, and of one that cannot be
    /// sketched.
    pub fn of(
        cores: &mut Cores,
        arena: &mut Arena,
        matrix: &Matrix,
    ) -> Result<Option<Self>, BackendError> {
        let (isa, pool) = cores.parts();
        let [part] = &matrix.parts[..] else {
            return Ok(None);
        };
        if part.rows != matrix.rows || !matrix.cols.is_multiple_of(SKETCH_BLOCK) {
            return Ok(None);
        }
        let (mut spreads, mut longest) = (vec![0.0; matrix.rows], vec![0.0; part.panels]);
        let told = (Parts::new(&mut spreads), Parts::new(&mut longest));
        let shape = [1, matrix.rows, matrix.cols];
        let panels = Part::made(pool, arena, DType::Q4_0, shape, |panel, _, rows| {
            // SAFETY: each panel has other rows.
            let (spreads, longest) = unsafe {
                (
                    told.0.part(rows.start, rows.len()),
                    told.1.part(rows.start / LANES, 1),
                )
            };
            longest[0] = isa.run(SketchPanel {
                part,
                first: rows.start,
                panel,
                spreads,
            });
        })?;
        let largest = |numbers: &[f32]| numbers.iter().copied().fold(0.0, f32::max);
        let (panel_spreads, longest) = (
            spreads.chunks(LANES).map(largest).collect(),
            largest(&longest),
        );
        Ok(longest.is_finite().then(|| Self {
            matrix: Matrix {
                rows: matrix.rows,
                cols: matrix.cols,
                parts: vec![panels],
            },
            spreads,
            panel_spreads,
            longest,
        }))
    }
}

/// Sketches the rows of a panel and answers the length of the longest: infinite where one cannot be
/// sketched.
struct SketchPanel<'a> {
    part: &'a Part,
    /// Its first row.
    first: usize,
    panel: &'a mut [u8],
    /// `[rows]`
    spreads: &'a mut [f32],
}

impl Kernel for SketchPanel<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let Self {
            part, first, panel, ..
        } = self;
        let cols = part.cols;
        let mut values = vec![0.0; cols];
        let mut blocks = vec![0; cols / SKETCH_BLOCK * SKETCH_BYTES];
        let mut longest = 0.0_f32;
        let from = part.panel(0, first / LANES);
        for (lane, spread) in self.spreads.iter_mut().enumerate() {
            with_format!(part.dtype, F => F::unpack(from, lane, &mut values));
            match sketch_row(&values, (first + lane) * cols, &mut blocks) {
                Some(of_row) => *spread = of_row,
                None => return f32::INFINITY,
            }
            with_format!(DType::Q4_0, F => F::pack(panel, lane, &blocks));
            let mut squares = s.splat(0.0);
            for values in values.as_chunks::<LANES>().0 {
                let values = s.read(values);
                squares = s.mul_add(values, values, squares);
            }
            longest = longest.max(s.sum(squares).sqrt());
        }
        longest
    }
}
