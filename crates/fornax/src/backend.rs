//! Which backend computes: the one place that names them all.

use std::str::FromStr;

use fornax_backend::{Backend, BackendError, Profile, Profiled, Reference, Sketched};
use fornax_cpu::{Ceilings, Cpu, CpuOptions, Isa};
use fornax_cuda::{Cuda, CudaOptions, Demand, LargeProducts, Progress};
use fornax_engine::Runner;
use fornax_gguf::{DType, Gguf, Tensor};
use fornax_model::{Config, Joined, ModelRunner, RunnerOptions, WeightStorage};

use crate::{Error, LoadOptions};

/// Where a model computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The fastest that runs on this machine.
    #[default]
    Auto,
    /// Plain loops on one core: the reference that every other backend is checked against.
    Scalar,
    /// Vector instructions on one core.
    Simd,
    /// Vector instructions on all cores.
    Parallel,
    /// An NVIDIA GPU.
    Cuda,
}

impl BackendChoice {
    /// Every choice and what it is called.
    pub const ALL: &[(&str, BackendChoice)] = &[
        ("auto", BackendChoice::Auto),
        ("scalar", BackendChoice::Scalar),
        ("simd", BackendChoice::Simd),
        ("parallel", BackendChoice::Parallel),
        ("cuda", BackendChoice::Cuda),
    ];

    /// Measures what these threads can do at most on this machine, which takes about a second;
    /// `None` where the backend is not made for speed.
    ///
    /// # Errors
    /// Options that cannot be met, or no memory for it.
    pub fn ceilings(
        self,
        threads: Option<usize>,
        isa: Option<Isa>,
    ) -> Result<Option<Ceilings>, Error> {
        let mut cpu = match self {
            BackendChoice::Scalar | BackendChoice::Cuda => return Ok(None),
            BackendChoice::Simd => on_one_core(isa)?,
            BackendChoice::Auto | BackendChoice::Parallel => cpu(cpu_options(threads, isa))?,
        };
        Ok(Some(cpu.ceilings().map_err(refused)?))
    }
}

impl FromStr for BackendChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            Error::Options(format!(
                "backend `{name}` is not in this version; choose one of {}",
                names.join(", ")
            ))
        })
    }
}

/// A model on a backend, without engine or text: for a program that decides itself what goes
/// through it, such as a benchmark.
pub struct LoadedRunner {
    /// Runs the model's steps.
    pub runner: Box<dyn Runner>,
    /// What the backend calls itself, its instruction set or device in brackets.
    pub backend: String,
    /// What its operations took, where that was asked for.
    pub profile: Option<Profile>,
    /// What is read of the head where only the largest logits are looked at.
    pub sketched: Option<Sketched>,
}

/// A backend that was started, before it has a model.
pub(crate) enum Opened {
    Scalar,
    /// On one core or on all.
    Cpu(Box<Cpu>),
    Cuda(Box<Cuda>, Option<fn(Progress<'_>)>),
}

impl Opened {
    /// Starts the backend that the options name.
    pub(crate) fn new(options: &LoadOptions) -> Result<Self, Error> {
        let CpuOptions { threads, isa, .. } = options.cpu();
        match options.backend {
            BackendChoice::Scalar => {
                only_one_thread("scalar", threads)?;
                no_instruction_set("scalar", isa)?;
                Ok(Opened::Scalar)
            }
            BackendChoice::Simd => {
                only_one_thread("simd", threads)?;
                let one = CpuOptions {
                    threads: Some(1),
                    ..options.cpu()
                };
                Ok(Opened::Cpu(Box::new(cpu(one)?)))
            }
            BackendChoice::Auto | BackendChoice::Parallel => {
                Ok(Opened::Cpu(Box::new(cpu(options.cpu())?)))
            }
            BackendChoice::Cuda => {
                only_one_thread("cuda", threads)?;
                no_instruction_set("cuda", isa)?;
                let cuda = Cuda::new(CudaOptions {
                    check_launches: std::env::var_os("FORNAX_CUDA_CHECK").is_some(),
                    large_products: match options.bf16_copies {
                        true => LargeProducts::Copied,
                        false => LargeProducts::Decoded,
                    },
                    progress: options.progress,
                    ..CudaOptions::default()
                });
                Ok(Opened::Cuda(
                    Box::new(cuda.map_err(refused)?),
                    options.progress,
                ))
            }
        }
    }

    /// Bytes that keys and values can take beside a model with these options, where the backend
    /// has memory of its own.
    pub(crate) fn room_for_kv(
        &self,
        file: &Gguf,
        options: &RunnerOptions,
    ) -> Result<Option<u64>, Error> {
        match self {
            Opened::Scalar | Opened::Cpu(_) => Ok(None),
            Opened::Cuda(cuda, _) => {
                let room = cuda.room_for_kv(&demand(cuda, file, options)?);
                Ok(Some(room.map_err(refused)?))
            }
        }
    }

    /// Loads a model, whose operations are timed if `profiled`.
    pub(crate) fn load(
        self,
        file: &Gguf,
        options: &RunnerOptions,
        profiled: bool,
    ) -> Result<LoadedRunner, Error> {
        match self {
            Opened::Scalar => loaded(file, Reference, options, profiled),
            Opened::Cpu(cpu) => loaded(file, *cpu, options, profiled),
            Opened::Cuda(mut cuda, progress) => {
                let demand = demand(&cuda, file, options)?;
                let statement = cuda.budget(&demand).map_err(refused)?;
                if let Some(progress) = progress {
                    progress(Progress::Line(&statement));
                }
                loaded(file, *cuda, options, profiled)
            }
        }
    }
}

/// What a model with these options takes of a device.
fn demand(cuda: &Cuda, file: &Gguf, options: &RunnerOptions) -> Result<Demand, Error> {
    let config = Config::from_gguf(file)?;
    let memory = config.memory(file, options.kv_type);
    let RunnerOptions {
        max_rows,
        max_tokens,
        page_size,
        pages,
        weights,
        ..
    } = *options;
    let elements = |tensor: &Tensor<'_>| tensor.elements() as u64;
    let native = weights == WeightStorage::Native;
    let tiled = |matrix: &Joined| match matrix.dtype {
        Some(dtype) if native => cuda.tiles_of(dtype, matrix.rows, matrix.cols),
        _ => 0,
    };
    let copied = file.tensors().filter(|tensor| {
        let single = [DType::F32, DType::BF16].contains(&tensor.dtype);
        native && tensor.shape.len() == 2 && !single
    });
    Ok(Demand {
        weights: match native {
            true => memory.weights,
            false => 4 * file.tensors().map(|tensor| elements(&tensor)).sum::<u64>(),
        },
        tiled: Config::matrices(file)?.iter().map(tiled).sum(),
        sketch: if native { memory.sketch } else { 0 },
        elements: copied.map(|tensor| elements(&tensor)).sum(),
        pages: pages as u64,
        page_tokens: page_size as u64,
        kv_per_token: memory.kv_per_token,
        activations: config.activation_bytes(max_tokens, max_rows),
        samplers: 8_u64
            .saturating_mul(max_rows as u64)
            .saturating_mul(config.vocabulary as u64),
    })
}

fn loaded<B: Backend + 'static>(
    file: &Gguf,
    backend: B,
    options: &RunnerOptions,
    profiled: bool,
) -> Result<LoadedRunner, Error> {
    let name = backend.name();
    if profiled {
        let backend = Profiled::new(backend).map_err(refused)?;
        let profile = Some(backend.profile());
        return Ok(of_runner(
            ModelRunner::load(file, backend, options)?,
            name,
            profile,
        ));
    }
    Ok(of_runner(
        ModelRunner::load(file, backend, options)?,
        name,
        None,
    ))
}

fn of_runner<B: Backend + 'static>(
    runner: ModelRunner<B>,
    backend: String,
    profile: Option<Profile>,
) -> LoadedRunner {
    LoadedRunner {
        sketched: runner.sketched(),
        runner: Box::new(runner),
        backend,
        profile,
    }
}

fn on_one_core(isa: Option<Isa>) -> Result<Cpu, Error> {
    cpu(cpu_options(Some(1), isa))
}

fn cpu_options(threads: Option<usize>, isa: Option<Isa>) -> CpuOptions {
    CpuOptions {
        threads,
        isa,
        ..CpuOptions::default()
    }
}

fn cpu(options: CpuOptions) -> Result<Cpu, Error> {
    Cpu::new(options).map_err(refused)
}

fn refused(error: BackendError) -> Error {
    Error::Options(error.to_string())
}

fn no_instruction_set(backend: &str, isa: Option<Isa>) -> Result<(), Error> {
    isa.map_or(Ok(()), |isa| {
        Err(Error::Options(format!(
            "the {backend} backend uses no instruction set of the CPU, but {isa} was asked for; leave --isa away, or choose simd or parallel"
        )))
    })
}

fn only_one_thread(backend: &str, threads: Option<usize>) -> Result<(), Error> {
    match threads {
        None | Some(1) => Ok(()),
        Some(threads) => Err(Error::Options(format!(
            "{threads} threads were asked for, but the {backend} backend runs on one; leave --threads away, give 1, or choose parallel"
        ))),
    }
}
