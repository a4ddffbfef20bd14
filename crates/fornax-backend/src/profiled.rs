//! A backend that times every operation of another one.
//!
//! Owns the counting: time, bytes and multiply-adds by layer and operation. Computes nothing itself
//! and knows no model: a layer is read off the names of weights (`blk.7.…`) and the order in which
//! KV pages are made.
//!
//! Operations run one by one, each waited for, and nothing recorded is replayed; so a profile says
//! where time goes, and is slower in all than what it looks at where a device overlaps operations.

mod cost;
mod operations;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::{Backend, BackendError, Element, KvShape, RopeSpec, Sketched};
use cost::Cost;

/// What an operation took, over all its calls in one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// How often it ran.
    pub calls: u64,
    /// All of its time.
    pub time: Duration,
    /// Bytes of weights, and of K and V, that it must read or write; activations are not counted.
    pub bytes: u64,
    /// Multiply-adds of its matrices and of attention.
    pub macs: u64,
}

/// Which operation, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Operation {
    /// `None` outside of all layers.
    pub layer: Option<usize>,
    /// The method of [`Backend`].
    pub name: &'static str,
    /// The weights multiplied, where a layer has several such operations: `attn_q+attn_k+attn_v`.
    pub weight: Option<Arc<str>>,
}

/// What was spent so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Profile(Arc<Mutex<BTreeMap<Operation, Spent>>>);

impl Profile {
    /// Takes what was counted since the last call.
    pub fn take(&self) -> BTreeMap<Operation, Spent> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Operation, Spent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Times another backend's operations.
pub struct Profiled<B: Backend> {
    backend: B,
    profile: Profile,
    /// Read after each operation: a device is waited for so.
    probe: B::Buffer,
    /// The first failure since the last [`record`](Backend::record).
    failure: Option<BackendError>,
    /// Where the last operation belonged that said so.
    layer: Option<usize>,
    /// Layers that have KV pages.
    kv_layers: usize,
}

/// A weight and what it costs to multiply with.
pub struct ProfiledWeight<W> {
    weight: W,
    /// What its parts are called within their layer.
    label: Arc<str>,
    layer: Option<usize>,
    bytes: u64,
    elements: u64,
    /// Size of its outermost dimension.
    outer: u64,
    sketched: Option<Sketched>,
}

/// The KV pages of a layer.
pub struct ProfiledKv<K> {
    kv: K,
    layer: usize,
    /// K and V of one token.
    token_bytes: u64,
}

/// A step and its rows.
pub struct ProfiledStep<S> {
    step: S,
    /// `(new tokens, tokens before them)` of each row.
    rows: Vec<(usize, usize)>,
    /// The same of those that [outputs need](StepRows::attending).
    attending: Vec<(usize, usize)>,
}

impl<B: Backend> Profiled<B> {
    /// Times what `backend` does.
    ///
    /// # Errors
    /// Memory ran out.
    pub fn new(mut backend: B) -> Result<Self, BackendError> {
        let mut probe = backend.alloc(Element::U32, 1)?;
        backend.write_u32(&mut probe, &[0]);
        Ok(Self {
            backend,
            profile: Profile::default(),
            probe,
            failure: None,
            layer: None,
            kv_layers: 0,
        })
    }

    /// Where the counts go.
    pub fn profile(&self) -> Profile {
        self.profile.clone()
    }

    /// The pages of the layer behind those that have some.
    fn next_layer(&mut self, shape: &KvShape, kv: B::Kv) -> ProfiledKv<B::Kv> {
        let layer = self.kv_layers;
        self.kv_layers += 1;
        let width = shape.kv_heads * (shape.k_dim + shape.v_dim);
        ProfiledKv {
            kv,
            layer,
            token_bytes: shape.element.bytes(width) as u64,
        }
    }

    /// Runs an operation in the layer of the last one.
    fn timed(&mut self, name: &'static str, cost: Cost, operation: impl FnOnce(&mut B)) {
        self.timed_with(name, None, cost, operation);
    }

    fn timed_with(
        &mut self,
        name: &'static str,
        weight: Option<&Arc<str>>,
        cost: Cost,
        operation: impl FnOnce(&mut B),
    ) {
        let start = Instant::now();
        operation(&mut self.backend);
        let done = self.backend.read_u32(&self.probe, &mut [0]);
        let time = start.elapsed();
        if let Err(error) = done {
            self.failure.get_or_insert(error);
        }
        let mut spent = self.profile.lock();
        let operation = Operation {
            layer: self.layer,
            name,
            weight: weight.cloned(),
        };
        let spent = spent.entry(operation).or_default();
        spent.calls += 1;
        spent.time += time;
        spent.bytes += cost.bytes;
        spent.macs += cost.macs;
    }

    /// Runs an operation in the layer that a weight or KV pages name.
    fn timed_in(
        &mut self,
        layer: Option<usize>,
        name: &'static str,
        cost: Cost,
        operation: impl FnOnce(&mut B),
    ) {
        self.layer = layer;
        self.timed(name, cost, operation);
    }
}

impl<W> ProfiledWeight<W> {
    /// The cost of multiplying `n` vectors with all of it.
    fn product(&self, n: usize) -> Cost {
        Cost {
            bytes: self.bytes,
            macs: self.elements * n as u64,
        }
    }

    /// The cost of multiplying `n` vectors with all but its first `queries` rows, and some with these.
    fn projection(&self, queries: usize, attending: usize, n: usize) -> Cost {
        let (queries, attending, n) = (queries as u64, attending as u64, n as u64);
        let others = self.outer - queries;
        let rows_read = others + if attending > 0 { queries } else { 0 };
        Cost {
            bytes: self.bytes * rows_read / self.outer,
            macs: self.elements / self.outer * (others * n + queries * attending),
        }
    }

    /// The cost of reading it.
    fn read(&self) -> Cost {
        Cost {
            bytes: self.bytes,
            macs: 0,
        }
    }
}

impl<K> ProfiledKv<K> {
    fn written(&self, n: usize) -> Cost {
        Cost {
            bytes: self.token_bytes * n as u64,
            macs: 0,
        }
    }
}

fn rope_spec<W>(spec: RopeSpec<'_, ProfiledWeight<W>>) -> RopeSpec<'_, W> {
    RopeSpec {
        style: spec.style,
        rotary: spec.rotary,
        frequencies: &spec.frequencies.weight,
        magnitude: spec.magnitude,
    }
}

/// The layer in a weight's name: 7 of `blk.7.attn_q.weight`.
fn layer_of(name: &str) -> Option<usize> {
    let (layer, _) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.parse().ok()
}

/// What a weight is called within its layer: `attn_q` of `blk.7.attn_q.weight`.
fn label_of(name: &str) -> &str {
    let own = name.strip_suffix(".weight").unwrap_or(name);
    match own.strip_prefix("blk.").and_then(|own| own.split_once('.')) {
        Some((_, own)) => own,
        None => own,
    }
}
