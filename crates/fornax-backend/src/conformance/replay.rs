//! A backend that really records: the operations of a shape once, then replayed with whatever the
//! device memory holds by then.
//!
//! Shows without a GPU where a closure of [`Backend::record`] depends on anything but device
//! memory: what it took from the host is still the first step's. Wraps any backend and knows
//! nothing of it.

mod arguments;
mod operations;

use std::collections::HashMap;
use std::marker::PhantomData;

use crate::{Backend, StepShape};

/// Records each [`StepShape`] once and replays it ever after. What it allocates lives as long as
/// it does.
pub struct Replay<B: Backend> {
    inner: B,
    memory: Memory<B>,
    recorded: HashMap<StepShape, Vec<Operation<B>>>,
    /// Operations so far of the closure that is running.
    recording: Option<Vec<Operation<B>>>,
}

/// An operation with its arguments.
type Operation<B> = Box<dyn Fn(&mut B, &mut Memory<B>) + Send>;

/// Names something in the wrapped backend's memory.
pub struct Handle<T> {
    index: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Handle<T> {
    fn last(slots: usize) -> Self {
        Self {
            index: slots - 1,
            of: PhantomData,
        }
    }
}

/// Everything that was allocated. A slot is empty while an operation writes to it.
struct Memory<B: Backend> {
    buffers: Vec<Option<B::Buffer>>,
    weights: Vec<B::Weight>,
    kvs: Vec<Option<B::Kv>>,
    steps: Vec<Option<B::Step>>,
    samplers: Vec<Option<B::Sampler>>,
}

impl<B: Backend> Memory<B> {
    /// Runs `write` on a buffer, while the rest of the memory can be read or written too.
    fn with(&mut self, buffer: usize, write: impl FnOnce(&mut B::Buffer, &mut Self)) {
        let mut taken = self.buffers[buffer].take().expect(TAKEN);
        write(&mut taken, self);
        self.buffers[buffer] = Some(taken);
    }

    /// As [`with`](Self::with), on a cache.
    fn with_kv(&mut self, kv: usize, write: impl FnOnce(&mut B::Kv, &mut Self)) {
        let mut taken = self.kvs[kv].take().expect(TAKEN);
        write(&mut taken, self);
        self.kvs[kv] = Some(taken);
    }

    fn buffer(&self, index: usize) -> &B::Buffer {
        self.buffers[index].as_ref().expect(TAKEN)
    }

    fn step(&self, index: usize) -> &B::Step {
        self.steps[index].as_ref().expect(TAKEN)
    }
}

const TAKEN: &str = "invariant: an operation writes each buffer once";

impl<B: Backend + 'static> Replay<B> {
    /// Wraps a backend.
    pub fn new(inner: B) -> Self {
        Self {
            inner,
            memory: Memory {
                buffers: Vec::new(),
                weights: Vec::new(),
                kvs: Vec::new(),
                steps: Vec::new(),
                samplers: Vec::new(),
            },
            recorded: HashMap::new(),
            recording: None,
        }
    }

    /// How many shapes it has recorded.
    pub fn shapes(&self) -> usize {
        self.recorded.len()
    }

    fn operation(&mut self, operation: impl Fn(&mut B, &mut Memory<B>) + Send + 'static) {
        match &mut self.recording {
            Some(operations) => operations.push(Box::new(operation)),
            None => operation(&mut self.inner, &mut self.memory),
        }
    }

    /// An operation that writes a buffer and may read or write the rest of the memory.
    fn writing(
        &mut self,
        out: usize,
        operation: impl Fn(&mut B, &mut B::Buffer, &mut Memory<B>) + Send + 'static,
    ) {
        self.operation(move |inner, memory| {
            memory.with(out, |out, memory| operation(inner, out, memory));
        });
    }

    /// Panics inside a closure of `record`.
    fn host_only(&self, what: &str) {
        assert!(
            self.recording.is_none(),
            "`{what}` inside of `record`: a recorded step is replayed without the host, so its \
             closure may only call operations on device memory; do this before `record` or after"
        );
    }
}
