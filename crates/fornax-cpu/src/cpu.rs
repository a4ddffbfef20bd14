//! The state of the backend. What it computes is in `backend.rs` and the files of the operations.

use std::{ops::Range, thread};

use fornax_backend::BackendError;

use crate::{
    attention, columns::Columns, cores::Cores, feed_forward, head_linear, isa::Isa, largest,
    memory::Arena, projection, rope::RopeTables, select, step::Buffer, weight::Matrix,
};

/// Threads of a backend at most: each takes memory of its own, and a system has only so much.
const MOST_THREADS: usize = 1024;

/// Bytes from which on a matrix gets a sketch unasked: less stays in the caches, and is read as fast.
const SKETCHED_FROM: usize = 16 << 20;

/// How the CPU is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Threads that compute, the calling one included; `None` for one a core.
    pub threads: Option<usize>,
    /// Instructions to use; `None` for the best that the processor has.
    pub isa: Option<Isa>,
    /// Bytes of the smallest matrix that [`sketch`](fornax_backend::Backend::sketch) makes one of; `None` for
    /// those that do not stay in the caches.
    pub sketched_from: Option<usize>,
    /// Whether the memory of a KV cache is taken from the system when it is made, by all threads,
    /// and not by steps as it fills up.
    pub commits_kv: bool,
}

/// Computes on the processor, with its vector instructions and all its cores.
pub struct Cpu {
    pub(crate) cores: Cores,
    /// Bytes of the smallest matrix that gets a sketch.
    pub(crate) sketched_from: usize,
    pub(crate) commits_kv: bool,
    /// Where weights lie.
    pub(crate) arena: Arena,
    pub(crate) columns: Columns,
    /// Of the second product of a feed-forward layer, filled while those of the first are read.
    pub(crate) hidden_columns: Columns,
    pub(crate) projection: projection::Scratch,
    pub(crate) rope: RopeTables,
    pub(crate) attention: attention::Scratch,
    pub(crate) feed_forward: feed_forward::Scratch,
    pub(crate) head_linear: head_linear::Scratch,
    pub(crate) largest: largest::Scratch,
    pub(crate) select: select::Scratch,
}

impl Cpu {
    /// Starts the threads.
    ///
    /// # Errors
    /// No thread was asked for or more than 1,024, or one could not be started.
    pub fn new(options: CpuOptions) -> Result<Self, BackendError> {
        let cores = || thread::available_parallelism().map_or(1, usize::from);
        let threads = options.threads.unwrap_or_else(cores);
        if threads == 0 {
            return Err(BackendError(
                "cpu: 0 threads cannot compute; ask for at least 1".into(),
            ));
        }
        if threads > MOST_THREADS {
            return Err(BackendError(format!(
                "cpu: {threads} threads are more than any machine has cores for; ask for {MOST_THREADS} at most"
            )));
        }
        Ok(Self {
            cores: Cores::new(options.isa.unwrap_or_else(Isa::detect), threads)?,
            sketched_from: options.sketched_from.unwrap_or(SKETCHED_FROM),
            commits_kv: options.commits_kv,
            arena: Arena::default(),
            columns: Columns::default(),
            projection: projection::Scratch::default(),
            rope: RopeTables::default(),
            attention: attention::Scratch::default(),
            hidden_columns: Columns::default(),
            feed_forward: feed_forward::Scratch::default(),
            head_linear: head_linear::Scratch::default(),
            largest: largest::Scratch::default(),
            select: select::Scratch::default(),
        })
    }
}

impl Cpu {
    /// Fills the columns of a matrix's product with `n` rows of its inputs, and returns their tiles.
    pub(crate) fn fill_columns(&mut self, matrix: &Matrix, x: &Buffer, n: usize) -> Range<usize> {
        let (isa, columns) = (self.cores.isa, &mut self.columns);
        columns.clear(matrix.cols, matrix.precisions(isa));
        let tiles = columns.push_group(isa, 0..n);
        columns.fill(&mut self.cores, x.floats(n * matrix.cols));
        tiles
    }
}
