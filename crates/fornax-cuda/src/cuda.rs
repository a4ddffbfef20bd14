//! The backend's state: device, kernels, graphs, and the list of a step that is being recorded.
//!
//! Must not know which operations there are; they are in `cuda/operations.rs`.

mod cache;
mod graphs;
mod operations;
mod routing;

use std::sync::Arc;

use fornax_backend::BackendError;
use fornax_gguf::DType;

use crate::dense::Dense;
use crate::device::Device;
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::memory::Memory;
use crate::operation::Operation;
use crate::plan::{self, Shop};
use crate::readback::Readback;
use crate::weight::{Layout, Weight};
use graphs::Graphs;

/// How the device is used.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Which device, as `nvidia-smi` counts them.
    pub device: usize,
    /// Whether large products run in bf16, on weights that are kept in it beside their own format.
    /// Else every product is one of single precision, in plain loops where it is large.
    pub dense: bool,
    /// Whether each launch is waited for, so that an error names its kernel.
    pub check_launches: bool,
    /// Told what takes long: kernels being compiled.
    pub progress: Option<fn(&str)>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            device: 0,
            dense: true,
            check_launches: false,
            progress: None,
        }
    }
}

/// Computes on an NVIDIA GPU.
pub struct Cuda {
    shop: Shop,
    graphs: Graphs,
    /// Operations so far of the step that is being recorded.
    recording: Option<Vec<Operation>>,
    /// What went wrong outside of a record, told at the next chance.
    failed: Option<BackendError>,
    keeps_dense: bool,
    /// Where answers of steps under way go, in turn.
    readbacks: [Readback; 2],
    next_readback: usize,
}

impl Cuda {
    /// Opens a device.
    ///
    /// # Errors
    /// A library that is missing, with where it was looked for; no such device; one too old.
    pub fn new(options: CudaOptions) -> Result<Self, BackendError> {
        let device = Device::open(options.device)?;
        let mut kernels = Kernels::new(&device, options.progress);
        // What every model needs is compiled now, so that a missing compiler is told at once.
        kernels.kernel(Module::Rows, "rms_norm")?;
        let dense = match options.dense {
            true => Some(Dense::new(&device)?),
            false => None,
        };
        let readbacks = [Readback::new(&device)?, Readback::new(&device)?];
        Ok(Self {
            readbacks,
            next_readback: 0,
            shop: Shop {
                device,
                kernels,
                dense,
                rounded: None,
                between: None,
                pieces: None,
                arrived: None,
            },
            graphs: Graphs::new(options.check_launches),
            recording: None,
            failed: None,
            keeps_dense: options.dense,
        })
    }

    pub(crate) fn device_name(&self) -> &str {
        self.device().name()
    }

    /// Bytes that are free and bytes there are.
    pub(crate) fn free_memory(&self) -> Result<(usize, usize), BackendError> {
        self.device().bind();
        self.device().memory()
    }

    pub(crate) fn keeps_dense(&self) -> bool {
        self.keeps_dense
    }

    fn device(&self) -> &Arc<Device> {
        &self.shop.device
    }

    /// Puts an operation on the list, or does it at once where there is none.
    fn push(&mut self, operation: Operation) {
        match &mut self.recording {
            Some(operations) => operations.push(operation),
            None => {
                let done = plan::plan(&mut self.shop, vec![operation])
                    .and_then(|actions| self.graphs.run(&self.shop, actions));
                self.note(done);
            }
        }
    }

    /// Keeps the first error until somebody can be told.
    fn note(&mut self, done: Result<(), BackendError>) {
        if let Err(error) = done {
            self.failed.get_or_insert(error);
        }
    }

    fn told(&mut self) -> Result<(), BackendError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn launch(
        &mut self,
        module: Module,
        name: &'static str,
        grid: [usize; 3],
        threads: usize,
        arguments: impl FnOnce(Launch) -> Launch,
    ) {
        match self.shop.kernels.kernel(module, name) {
            Ok(kernel) => {
                let launch = arguments(Launch::new(kernel, grid, threads));
                self.push(Operation::Launch(launch));
            }
            Err(error) => self.note(Err(error)),
        }
    }

    /// A copy of a matrix in bf16, for large products.
    fn dense(&mut self, weight: &mut Weight) -> Result<(), BackendError> {
        let Some(layout) = weight.layout() else {
            return Ok(());
        };
        let single = layout.parts.iter().all(|part| part.format == DType::F32);
        if !self.keeps_dense || layout.dense.is_some() || layout.experts > 1 || single {
            return Ok(());
        }
        let Layout { parts, rows, .. } = layout;
        let padded = layout.padded();
        let memory = Memory::new(self.device(), 2 * rows * padded, "weights in bf16")?;
        let mut row = 0;
        for part in parts {
            let kernel = self
                .shop
                .kernels
                .kernel(Module::Product(part.format), "to_bf16")?;
            Launch::new(kernel, [part.rows.min(2048), 1, 1], 128)
                .wide(memory.pointer() + (2 * row * padded) as u64)
                .wide(part.pointer)
                .wide(part.pitch as u64)
                .number(padded)
                .number(part.rows)
                .start(self.device())?;
            row += part.rows;
        }
        weight.keep_dense(memory);
        Ok(())
    }
}
