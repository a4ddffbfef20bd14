//! Buffers, and what operations read about a step.
//!
//! Must not know operations.

use fornax_backend::{BackendError, Element, Pooled, RowSpan, SampleRow, StepCapacity, StepRows};

use crate::memory::Memory;

/// Activations or indices.
#[derive(Debug)]
pub struct Buffer(Stored);

#[derive(Debug)]
enum Stored {
    F32(Memory<f32>),
    U32(Memory<u32>),
}

impl Buffer {
    pub(crate) fn new(element: Element, len: usize) -> Result<Self, BackendError> {
        Ok(Self(match element {
            Element::F32 => Stored::F32(Memory::zeroed(len)?),
            Element::U32 => Stored::U32(Memory::zeroed(len)?),
        }))
    }

    /// The first `len` elements. Panics where it holds indices or fewer.
    pub(crate) fn floats(&self, len: usize) -> &[f32] {
        match &self.0 {
            Stored::F32(values) => &values[..len],
            Stored::U32(_) => panic!("a buffer of indices stands where activations belong"),
        }
    }

    /// The first `len` elements. Panics where it holds indices or fewer.
    pub(crate) fn floats_mut(&mut self, len: usize) -> &mut [f32] {
        match &mut self.0 {
            Stored::F32(values) => &mut values[..len],
            Stored::U32(_) => panic!("a buffer of indices stands where activations belong"),
        }
    }

    /// The first `len` elements. Panics where it holds activations or fewer.
    pub(crate) fn indices(&self, len: usize) -> &[u32] {
        match &self.0 {
            Stored::U32(values) => &values[..len],
            Stored::F32(_) => panic!("a buffer of activations stands where indices belong"),
        }
    }

    /// The first `len` elements. Panics where it holds activations or fewer.
    pub(crate) fn indices_mut(&mut self, len: usize) -> &mut [u32] {
        match &mut self.0 {
            Stored::U32(values) => &mut values[..len],
            Stored::F32(_) => panic!("a buffer of activations stands where indices belong"),
        }
    }
}

/// A step, as [`StepRows`] describes it; its lists keep their memory from step to step.
#[derive(Debug)]
pub struct Step {
    pub(crate) capacity: StepCapacity,
    /// `[tokens]`
    pub(crate) tokens: Vec<u32>,
    /// Position of each new token in its sequence. `[tokens]`
    pub(crate) positions: Vec<u32>,
    /// `(index in tokens, index in the samples of the step before)`
    pub(crate) from_step: Vec<(usize, usize)>,
    /// `[rows]`
    pub(crate) rows: Vec<RowSpan>,
    /// What of each its outputs need of attention. `[rows]`
    pub(crate) attending: Vec<RowSpan>,
    /// `[groups][rows][pages]`
    pub(crate) tables: Vec<Vec<Vec<u32>>>,
    /// `[outputs]`
    pub(crate) outputs: Vec<usize>,
    /// `[samples]`
    pub(crate) samples: Vec<SampleRow>,
    /// `[pooled]`
    pub(crate) pooled: Vec<Pooled>,
}

impl Step {
    pub(crate) fn new(capacity: &StepCapacity) -> Self {
        let table = |&(_, pages): &(usize, usize)| vec![Vec::with_capacity(pages); capacity.rows];
        Self {
            capacity: capacity.clone(),
            tokens: Vec::with_capacity(capacity.tokens),
            positions: Vec::with_capacity(capacity.tokens),
            from_step: Vec::with_capacity(capacity.rows),
            rows: Vec::with_capacity(capacity.rows),
            attending: Vec::with_capacity(capacity.rows),
            tables: capacity.groups.iter().map(table).collect(),
            outputs: Vec::with_capacity(capacity.tokens),
            samples: Vec::with_capacity(capacity.rows),
            pooled: Vec::with_capacity(capacity.rows),
        }
    }

    pub(crate) fn write(&mut self, rows: &StepRows) {
        rows.check(&self.capacity);
        self.tokens.clone_from(&rows.tokens);
        self.positions.clear();
        self.positions
            .extend(rows.positions().map(|position| position as u32));
        self.from_step.clone_from(&rows.from_step);
        self.rows.clone_from(&rows.rows);
        self.attending.clear();
        self.attending.extend(rows.attending());
        for (tables, from) in self.tables.iter_mut().zip(&rows.tables) {
            for (table, from) in tables.iter_mut().zip(from) {
                table.clone_from(from);
            }
        }
        self.outputs.clone_from(&rows.outputs);
        self.samples.clone_from(&rows.samples);
        self.pooled.clone_from(&rows.pooled);
    }

    /// Page and place in it of a token of the step, which is in row `row`.
    pub(crate) fn place(&self, group: usize, row: usize, token: usize) -> (usize, usize) {
        let page_size = self.capacity.groups[group].0;
        let position = self.positions[token] as usize;
        (
            self.tables[group][row][position / page_size] as usize,
            position % page_size,
        )
    }
}
