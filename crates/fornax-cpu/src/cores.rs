//! What every operation is computed with.
//!
//! Must not know operations.

use fornax_backend::BackendError;

use crate::{
    isa::Isa,
    memory::{Growing, Line},
    pool::Pool,
};

/// Threads, the instructions that they use, and room for what they leave in between.
pub(crate) struct Cores {
    pub isa: Isa,
    pub pool: Pool,
    /// Scratch of whoever runs. Grows to what the largest step needs and stays. `[threads][what a piece needs]`
    pub lines: Growing<Line>,
}

impl Cores {
    /// Starts the threads, of which the calling one is the first.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, BackendError> {
        Ok(Self {
            isa,
            pool: Pool::new(threads)?,
            lines: Growing::default(),
        })
    }

    /// What a kernel is run with.
    pub fn parts(&mut self) -> (Isa, &mut Pool) {
        (self.isa, &mut self.pool)
    }
}
