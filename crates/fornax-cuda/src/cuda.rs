//! The backend's state: device, kernels, graphs, and the list of a step that is being recorded.
//!
//! Must not know which operations there are; they are in `cuda/operations.rs`.

mod cache;
mod graphs;
mod operations;
mod routing;

use std::sync::Arc;

use fornax_backend::BackendError;
use fornax_gguf::TensorView;

use crate::dense::Dense;
use crate::device::Device;
use crate::ferry::{self, Piece};
use crate::kernels::{Kernels, Module};
use crate::launch::Launch;
use crate::memory::{Memory, Scratch};
use crate::operation::Operation;
use crate::options::{CudaOptions, LargeProducts, Progress};
use crate::plan::{self, Shop};
use crate::readback::Readback;
use crate::tiles::tiles_of;
use crate::upload::Upload;
use crate::weight::{Layout, Weight};
use graphs::Graphs;

/// Computes on an NVIDIA GPU.
pub struct Cuda {
    shop: Shop,
    graphs: Graphs,
    /// Operations so far of the step that is being recorded.
    recording: Option<Vec<Operation>>,
    /// What went wrong outside of a record, told at the next chance.
    failed: Option<BackendError>,
    large_products: LargeProducts,
    loading: Loading,
    /// Where answers of steps under way go, in turn.
    readbacks: [Readback; 2],
    next_readback: usize,
    /// Positions before those of the step that was prepared last, of the row that has most.
    seen: usize,
}

/// How far weights are on their way to the device.
#[derive(Default)]
struct Loading {
    /// There while weights come.
    upload: Option<Upload>,
    /// Whether something is still being made of them.
    unsettled: bool,
    /// Bytes that came, and bytes that were announced.
    done: u64,
    all: u64,
    progress: Option<fn(Progress<'_>)>,
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
        let dense = match options.large_products {
            LargeProducts::Copied | LargeProducts::Decoded => Some(Dense::new(&device)?),
            LargeProducts::Single => None,
        };
        let readbacks = [Readback::new(&device)?, Readback::new(&device)?];
        Ok(Self {
            readbacks,
            next_readback: 0,
            seen: 0,
            shop: Shop {
                device,
                kernels,
                dense,
                decodes: options.large_products == LargeProducts::Decoded,
                decoded: Scratch::default(),
                rounded: Scratch::default(),
                halved: Scratch::default(),
                between: Scratch::default(),
                pieces: Scratch::default(),
                shares: Scratch::default(),
                turns: Scratch::default(),
                apart: options.apart,
                programs: Vec::new(),
            },
            graphs: Graphs::new(options.check_launches),
            recording: None,
            failed: None,
            large_products: options.large_products,
            loading: Loading {
                progress: options.progress,
                ..Loading::default()
            },
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

    pub(crate) fn large_products(&self) -> LargeProducts {
        self.large_products
    }

    /// So many bytes of weights will come.
    pub(crate) fn announce(&mut self, bytes: u64) {
        self.loading.all = bytes;
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.shop.device
    }

    /// Puts an operation on the list, or does it at once where there is none.
    fn push(&mut self, operation: Operation) {
        match &mut self.recording {
            Some(operations) => operations.push(operation),
            None => {
                let done = self
                    .settle()
                    .and_then(|()| self.carry(Vec::new()))
                    .and_then(|()| plan::plan(&mut self.shop, vec![operation], false))
                    .and_then(|actions| self.graphs.run(&self.shop, actions));
                self.note(done);
            }
        }
    }

    /// Carries what is written for the device, and with it the answers that were asked for: another launch between two
    /// steps costs a microsecond in which nothing is computed.
    fn carry(&mut self, mut pieces: Vec<Piece>) -> Result<(), BackendError> {
        let mut answers: Vec<&mut Readback> = self.readbacks.iter_mut().collect();
        answers.retain(|readback| readback.asked().is_some());
        pieces.extend(answers.iter().filter_map(|readback| readback.asked()));
        if pieces.is_empty() {
            return Ok(());
        }
        let Shop {
            device, kernels, ..
        } = &mut self.shop;
        device.bind();
        ferry::carry(device, kernels, &pieces)?;
        answers.into_iter().try_for_each(Readback::mark_carried)
    }

    /// Waits for what is made of weights, which products ask for before it is their turn.
    fn settle(&mut self) -> Result<(), BackendError> {
        match std::mem::take(&mut self.loading.unsettled) {
            true => self.device().synchronize(),
            false => Ok(()),
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

    /// Brings a weight to the device, and says how far all of them are.
    fn bring(&mut self, parts: &[TensorView<'_>]) -> Result<Weight, BackendError> {
        let Loading {
            upload,
            done,
            all,
            progress,
            ..
        } = &mut self.loading;
        let device = &self.shop.device;
        let upload = match upload {
            Some(upload) => upload,
            None => upload.insert(Upload::new(device)?),
        };
        let mut weight = Weight::upload(device, upload, parts)?;
        *done += parts.iter().map(|part| part.data.len() as u64).sum::<u64>();
        if let (Some(progress), true) = (progress, *all > 0) {
            progress(Progress::Weights {
                done: *done,
                all: *all,
            });
        }
        if self.large_products == LargeProducts::Copied {
            self.copy_in_bf16(&mut weight)?;
        }
        Ok(weight)
    }

    /// A copy of a quantised matrix in bf16, for large products, and tiles of it for a few tokens.
    fn copy_in_bf16(&mut self, weight: &mut Weight) -> Result<(), BackendError> {
        let Some(layout) = weight.layout() else {
            return Ok(());
        };
        if layout.dense.is_some() || !layout.is_decodable() {
            return Ok(());
        }
        let Layout { parts, rows, .. } = layout;
        let padded = layout.padded();
        let memory = Memory::new(self.device(), 2 * rows * padded, "weights in bf16")?;
        let mut row = 0;
        for part in parts {
            let to = memory.pointer() + (2 * row * padded) as u64;
            plan::decode(&mut self.shop.kernels, part, 0..part.rows, padded, to)?
                .start(&self.shop.device)?;
            row += part.rows;
        }
        let Shop {
            device, kernels, ..
        } = &mut self.shop;
        let tiles = match plan::is_skinny(device, *rows, padded) {
            true => tiles_of(device, kernels, layout)?,
            false => None,
        };
        self.loading.unsettled = true;
        weight.keep_dense(memory);
        if let Some(tiles) = tiles {
            weight.keep_tiles(tiles);
        }
        Ok(())
    }
}
