//! Where a model comes from, and how it comes to a backend. Knows no text.

use std::path::{Path, PathBuf};

use fornax_gguf::Gguf;
use fornax_gguf::synthetic::{self, Formats, Shape};
use fornax_model::{Config, RunnerOptions};

use crate::backend::Opened;
use crate::kv_size::{KvSize, Room, available_memory};
use crate::{Error, LoadOptions, LoadedRunner};

/// Tokens of a KV page.
pub(crate) const PAGE_SIZE: usize = 64;

/// A GGUF file on disk or in the program.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, mapped into memory.
    File(PathBuf),
    /// Bytes inside the program.
    Static {
        /// What errors call it.
        name: &'static str,
        /// The file's content.
        bytes: &'static [u8],
    },
    /// Random weights in the shape of a published model, made when it is opened: as fast as the
    /// published ones, and answers nothing that makes sense.
    Synthetic {
        /// The published model's dimensions.
        shape: &'static Shape,
        /// Type of the matrices.
        formats: Formats,
        /// The same seed gives the same weights.
        seed: u64,
        /// Where the vocabulary comes from.
        vocabulary: Box<Source>,
    },
}

impl Source {
    /// Opens and checks the file.
    ///
    /// # Errors
    /// A file that cannot be read or is no valid GGUF file.
    pub fn open(&self) -> Result<Gguf, Error> {
        Ok(match self {
            Source::File(path) => Gguf::open(path)?,
            Source::Static { name, bytes } => Gguf::from_static(name, bytes)?,
            Source::Synthetic {
                shape,
                formats,
                seed,
                vocabulary,
            } => {
                let options = synthetic::Options {
                    formats: *formats,
                    seed: *seed,
                    deviation: None,
                    layers: None,
                    vocabulary: &vocabulary.open()?,
                };
                let bytes = synthetic::write(shape, &options, Vec::new())?;
                Gguf::from_bytes(
                    &format!("synthetic:{}:{}", shape.name, formats.name()),
                    bytes,
                )?
            }
        })
    }
}

impl From<&str> for Source {
    fn from(path: &str) -> Self {
        Source::File(path.into())
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Self {
        Source::File(path.to_owned())
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Source::File(path)
    }
}

/// How much a runner takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSizes {
    /// New tokens of one step.
    pub tokens: usize,
    /// Tokens that the KV pages hold; `None` for a whole context of each sequence.
    pub kv_tokens: Option<usize>,
}

/// Loads a model without engine, tokenizer or template. Chat template and
/// [`kv`](LoadOptions::kv) of the options play no part.
///
/// # Errors
/// A file that holds no model that runs here, or options that it cannot meet.
pub fn load_runner(
    file: &Gguf,
    options: &LoadOptions,
    sizes: StepSizes,
) -> Result<LoadedRunner, Error> {
    runner(file, options, sizes, false)
}

/// As [`load_runner`], with every operation timed by layer into
/// [`profile`](LoadedRunner::profile).
///
/// # Errors
/// As [`load_runner`].
pub fn load_profiled_runner(
    file: &Gguf,
    options: &LoadOptions,
    sizes: StepSizes,
) -> Result<LoadedRunner, Error> {
    runner(file, options, sizes, true)
}

fn runner(
    file: &Gguf,
    options: &LoadOptions,
    sizes: StepSizes,
    profiled: bool,
) -> Result<LoadedRunner, Error> {
    let context = match options.context {
        Some(context) => context,
        None => default_context(&Config::from_gguf(file)?),
    };
    let pages = match sizes.kv_tokens {
        Some(tokens) => tokens.div_ceil(PAGE_SIZE),
        None => pages(context, options.sequences),
    };
    let sizes = RunnerOptions {
        pages,
        ..runner_options(options, context, sizes.tokens)
    };
    Opened::new(options)?.load(file, &sizes, profiled)
}

/// Loads a model with as many pages as were asked for, as are needed, or as fit.
pub(crate) fn load_with_room(
    file: &Gguf,
    options: &LoadOptions,
    context: usize,
    tokens: usize,
) -> Result<(LoadedRunner, KvSize), Error> {
    let opened = Opened::new(options)?;
    let mut sizes = runner_options(options, context, tokens);
    let room = match options.kv_memory {
        Some(bytes) => {
            let at_once = match opened {
                Opened::Scalar => true,
                Opened::Cpu(_) => options.commits_kv,
                Opened::Cuda(..) => false,
            };
            Room::Asked(bytes, at_once.then(available_memory).flatten())
        }
        None => match opened.room_for_kv(file, &sizes)? {
            Some(bytes) => Room::OfDevice(bytes),
            None => Room::OfSystem(available_memory()),
        },
    };
    let memory = Config::from_gguf(file)?.memory(file, options.kv_type);
    let kv = KvSize::choose(&memory, room, context, options.sequences)?;
    sizes.pages = kv.pages;
    Ok((opened.load(file, &sizes, false)?, kv))
}

/// Options of a runner that has no pages yet.
fn runner_options(options: &LoadOptions, context: usize, tokens: usize) -> RunnerOptions {
    RunnerOptions {
        context,
        max_rows: options.sequences,
        max_tokens: tokens,
        page_size: PAGE_SIZE,
        pages: 0,
        kv_type: options.kv_type,
        weights: options.weights,
    }
}

/// The context that is taken unasked.
pub(crate) fn default_context(config: &Config) -> usize {
    config.context.min(LoadOptions::DEFAULT_CONTEXT)
}

/// Pages that let so many sequences each fill the context.
pub(crate) fn pages(context: usize, sequences: usize) -> usize {
    context.div_ceil(PAGE_SIZE).saturating_mul(sequences)
}
