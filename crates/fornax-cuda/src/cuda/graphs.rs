//! Steps that were captured as graphs, and how planned actions reach the device.
//!
//! Must not know what the actions compute.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cudarc::driver::{result, sys};
use fornax_backend::{BackendError, StepShape};

use crate::dense;
use crate::device::{Device, Names};
use crate::plan::{Action, Shop};

/// Steps that are kept at most.
const MOST: usize = 512;

/// What steps that run alike have in common.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub shape: StepShape,
    /// Whether rows may go through the layers one after the other.
    pub in_turn: bool,
}

/// A captured step of each kind.
pub(super) struct Graphs {
    captured: HashMap<Kind, Graph>,
    /// Kinds that were run once as they came.
    seen: HashSet<Kind>,
    /// Whether each launch is waited for.
    check: bool,
}

struct Graph {
    device: Arc<Device>,
    graph: sys::CUgraph,
    ready: sys::CUgraphExec,
    /// How often memory had been given back by then.
    freed: u64,
    names: Names,
}

// SAFETY: handles that any thread may pass to the driver.
unsafe impl Send for Graph {}

impl Graphs {
    pub fn new(check: bool) -> Self {
        Self {
            captured: HashMap::new(),
            seen: HashSet::new(),
            check,
        }
    }

    /// Starts the step of this kind again, where it was captured and its memory is still there.
    pub fn replay(&mut self, shop: &Shop, kind: Kind) -> Result<bool, BackendError> {
        let Some(graph) = self.captured.get(&kind) else {
            return Ok(false);
        };
        if graph.freed != shop.device.freed() {
            self.captured.clear();
            return Ok(false);
        }
        graph.start()?;
        Ok(true)
    }

    /// Runs a step and keeps it, if it is likely to come again: one of single tokens, or one that
    /// came before.
    pub fn capture(
        &mut self,
        shop: &mut Shop,
        kind: Kind,
        actions: Vec<Action>,
    ) -> Result<(), BackendError> {
        let again = kind.shape.tokens == kind.shape.rows || !self.seen.insert(kind);
        let once = !again || self.check;
        if let Some(dense) = &mut shop.dense {
            // Before the step itself, which overwrites whatever they do.
            let products = actions.iter().filter_map(Action::product);
            let tuned = products.filter(|product| !once || product.n >= dense::MANY);
            dense.tune(&tuned.collect::<Vec<_>>())?;
        }
        if once {
            return self.run(shop, actions);
        }
        if self.captured.len() >= MOST {
            self.captured.clear();
        }
        let stream = shop.device.stream();
        let failed = |error| shop.device.error("capturing a step", error);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let names = actions.iter().map(Action::name).collect();
        // SAFETY: the stream is ours, and nothing else is put on it until the capture ends.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(failed)?;
        let started = self.run(shop, actions);
        // SAFETY: the capture was begun above.
        let graph = unsafe { result::stream::end_capture(stream) };
        started?;
        let graph = graph.map_err(failed)?;
        let mut ready = std::ptr::null_mut();
        // SAFETY: the graph was just captured, and the pointer is ours.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0) }
            .result()
            .map_err(failed)?;
        let graph = Graph {
            device: Arc::clone(&shop.device),
            graph,
            ready,
            freed: shop.device.freed(),
            names,
        };
        graph.start()?;
        self.captured.insert(kind, graph);
        Ok(())
    }

    /// Starts actions one after the other.
    pub fn run(&self, shop: &Shop, actions: Vec<Action>) -> Result<(), BackendError> {
        let device = &shop.device;
        device.bind();
        device.starts(actions.iter().map(Action::name).collect());
        for mut action in actions {
            if self.check {
                device.starts(Arc::new([]));
                device.starts(Arc::new([action.name()]));
            }
            match &mut action {
                Action::Launch(launch) => launch.start(device)?,
                Action::Product(product) => {
                    let dense = shop.dense.as_ref();
                    dense
                        .expect("invariant: products are planned where they run")
                        .start(product)?;
                }
            }
            if self.check {
                device.synchronize()?;
            }
        }
        Ok(())
    }
}

impl Graph {
    fn start(&self) -> Result<(), BackendError> {
        self.device.starts(Arc::clone(&self.names));
        // SAFETY: the graph is ready, and all memory it uses is there: none was given back since.
        unsafe { result::graph::launch(self.ready, self.device.stream()) }
            .map_err(|error| self.device.error("starting a captured step", error))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        // SAFETY: nothing runs any more; each is destroyed once.
        unsafe {
            let _ = result::graph::exec_destroy(self.ready);
            let _ = result::graph::destroy(self.graph);
        }
    }
}
