//! Weights as the kernels read them: vectors as they are, matrices and experts in panels.
//!
//! Owns upload and the way back for single rows; layouts are in `panel.rs`. Must not know
//! operations.

use std::ops::Range;

use fornax_backend::BackendError;
use fornax_gguf::{DType, TensorView};

use crate::{
    columns::Precisions,
    cores::Cores,
    isa::Isa,
    memory::{Arena, Memory, Parts},
    panel::{self, Format, with_format},
    pool::Pool,
    product::precisions,
    simd::LANES,
    sketch::Sketch,
};

/// A weight on the CPU.
#[derive(Debug)]
pub struct Weight {
    stored: Stored,
    sketch: Option<Sketch>,
}

#[derive(Debug)]
enum Stored {
    /// `[width]`
    Vector(Vec<f32>),
    Matrix(Matrix),
}

/// Rows in panels, part below part.
#[derive(Debug)]
pub(crate) struct Matrix {
    /// Outputs, over all parts.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Joined along the outputs.
    pub parts: Vec<Part>,
}

/// Rows of one block format. Each expert's last panel is filled up with zero rows.
#[derive(Debug)]
pub(crate) struct Part {
    pub dtype: DType,
    /// Its first output.
    pub first_row: usize,
    /// Its outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Panels of an expert.
    pub panels: usize,
    panel_bytes: usize,
    /// `[experts][panels][panel_bytes]`
    memory: Memory<u8>,
}

impl Weight {
    pub(crate) fn upload(
        pool: &mut Pool,
        arena: &mut Arena,
        views: &[TensorView<'_>],
    ) -> Result<Self, BackendError> {
        let first = views.first().expect("invariant: a weight has a part");
        let (rank, cols) = (first.shape.len(), first.cols());
        if rank == 1 {
            assert!(
                views.iter().all(|view| view.shape.len() == 1),
                "upload: ranks of the parts"
            );
            let values = views.iter().flat_map(TensorView::decode);
            return Ok(Self::of(Stored::Vector(values.collect())));
        }
        assert!(rank <= 3, "upload: `{}` has {rank} dimensions", first.name);
        let experts = if rank == 3 { first.shape[0] } else { 1 };
        let mut matrix = Matrix {
            rows: 0,
            cols,
            parts: Vec::new(),
        };
        for view in views {
            let same =
                view.shape.len() == rank && view.cols() == cols && view.rows() % experts == 0;
            assert!(
                same,
                "upload: shape of `{}` beside `{}`",
                view.name, first.name
            );
            let part = Part::upload(pool, arena, view, experts, matrix.rows)?;
            matrix.rows += part.rows;
            matrix.parts.push(part);
        }
        Ok(Self::of(Stored::Matrix(matrix)))
    }

    fn of(stored: Stored) -> Self {
        Self {
            stored,
            sketch: None,
        }
    }

    /// Makes a sketch of a matrix that can have one.
    pub(crate) fn draw_sketch(
        &mut self,
        cores: &mut Cores,
        arena: &mut Arena,
    ) -> Result<(), BackendError> {
        self.sketch = Sketch::of(cores, arena, self.matrix())?;
        Ok(())
    }

    /// The sketch of a matrix that has one.
    pub(crate) fn sketch(&self) -> Option<&Sketch> {
        self.sketch.as_ref()
    }

    /// The values of a vector. Panics for a matrix.
    pub(crate) fn vector(&self) -> &[f32] {
        match &self.stored {
            Stored::Vector(values) => values,
            Stored::Matrix(_) => panic!("a matrix stands where a vector belongs"),
        }
    }

    /// The matrix. Panics for a vector.
    pub(crate) fn matrix(&self) -> &Matrix {
        match &self.stored {
            Stored::Matrix(matrix) => matrix,
            Stored::Vector(_) => panic!("a vector stands where a matrix belongs"),
        }
    }
}

impl Matrix {
    /// In which precisions it wants its activations.
    pub fn precisions(&self, isa: Isa) -> Precisions {
        precisions(isa, self.parts.iter().map(|part| part.dtype))
    }

    /// Takes a row of a matrix that is no stack. `[cols]`
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        let mut parts = self.parts.iter();
        let part = parts.find(|part| row < part.first_row + part.rows);
        let part = part.expect("invariant: a row of the matrix");
        let row = row - part.first_row;
        let panel = part.panel(0, row / LANES);
        with_format!(part.dtype, F => F::unpack(panel, row % LANES, &mut out[..self.cols]));
    }
}

impl Part {
    /// Packs straight from the file's bytes, panel by panel, so that no second copy of the weight
    /// is ever held.
    fn upload(
        pool: &mut Pool,
        arena: &mut Arena,
        view: &TensorView<'_>,
        experts: usize,
        first_row: usize,
    ) -> Result<Self, BackendError> {
        let (dtype, rows) = (view.dtype, view.rows() / experts);
        let shape = [experts, rows, view.cols()];
        let mut part = Self::made(pool, arena, dtype, shape, |panel, expert, rows_of_panel| {
            for (lane, row) in rows_of_panel.enumerate() {
                let row = view.row(expert * rows + row);
                with_format!(dtype, F => F::pack(panel, lane, row));
            }
        })?;
        part.first_row = first_row;
        Ok(part)
    }

    /// Panels of so many experts, rows and columns, each of which `pack` is given in zeros, with its expert
    /// and its rows.
    pub fn made(
        pool: &mut Pool,
        arena: &mut Arena,
        dtype: DType,
        [experts, rows, cols]: [usize; 3],
        pack: impl Fn(&mut [u8], usize, Range<usize>) + Sync,
    ) -> Result<Self, BackendError> {
        let (panels, panel_bytes) = (rows.div_ceil(LANES), panel::panel_bytes(dtype, cols));
        let mut memory = arena.zeroed(experts * panels * panel_bytes)?;
        let packed = Parts::new(&mut memory);
        pool.run(experts * panels, |index, _| {
            // SAFETY: each piece is another panel.
            let panel = unsafe { packed.part(index * panel_bytes, panel_bytes) };
            let (expert, first) = (index / panels, index % panels * LANES);
            pack(panel, expert, first..rows.min(first + LANES));
        });
        Ok(Self {
            dtype,
            first_row: 0,
            rows,
            cols,
            panels,
            panel_bytes,
            memory,
        })
    }

    /// A panel of an expert.
    pub fn panel(&self, expert: usize, panel: usize) -> &[u8] {
        self.panels(expert, panel..panel + 1)
    }

    /// Panels of an expert, which lie one behind the other.
    pub fn panels(&self, expert: usize, panels: Range<usize>) -> &[u8] {
        let first = expert * self.panels;
        &self.memory[(first + panels.start) * self.panel_bytes..][..panels.len() * self.panel_bytes]
    }

    /// Outputs of some panels, within the part.
    pub fn rows_of(&self, panels: &Range<usize>) -> Range<usize> {
        LANES * panels.start..self.rows.min(LANES * panels.end)
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }
}
