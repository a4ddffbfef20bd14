//! Models of random weights in the exact shape of published ones.
//!
//! Speed and memory traffic do not depend on what the weights are, so such a model stands in for a
//! download in benchmarks, and in comparisons between engines that read the same file. Owns the
//! shapes, the weights and the borrowed vocabulary; must not know where the file goes.
//!
//! ```
//! # use fornax_gguf::{DType, Error, Gguf, GgufWriter};
//! # let mut vocabulary = GgufWriter::new();
//! # vocabulary.set("tokenizer.ggml.model", "gpt2")?;
//! # vocabulary.set("tokenizer.ggml.tokens", vec!["a".to_owned(), "b".to_owned()])?;
//! # let vocabulary = Gguf::from_bytes("vocabulary", vocabulary.start(Vec::new())?.finish()?)?;
//! use fornax_gguf::synthetic::{Options, Shape, write};
//!
//! let shape = Shape::named("tiny-qwen3").expect("a known shape");
//! let options = Options {
//!     dtype: DType::Q8_0,
//!     seed: 1,
//!     deviation: None,
//!     layers: Some(1),
//!     vocabulary: &vocabulary,
//! };
//! let model = Gguf::from_bytes("synthetic", write(shape, &options, Vec::new())?)?;
//! assert_eq!(model.metadata().u32("qwen3.block_count")?, 1);
//! # Ok::<(), Error>(())
//! ```

mod random;
mod shapes;
mod tensors;
mod vocabulary;

use std::{io::Write, thread};

use crate::{DType, Error, Gguf, GgufWriter, TensorWriter};

pub use shapes::{Experts, Shape};
use tensors::{Content, Tensor};

/// How to fill a shape.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Type of the matrices. Norms and routers are F32, and beside Q4_0 the embedding and the head
    /// are Q8_0, as in published files.
    pub dtype: DType,
    /// The same seed gives the same weights, before rounding to `dtype`, whatever the other
    /// options.
    pub seed: u64,
    /// Standard deviation of the matrices; `None` for the shape's own.
    pub deviation: Option<f32>,
    /// How many of the shape's layers to write, or more; `None` for as many as the shape has.
    pub layers: Option<usize>,
    /// Where all `tokenizer.*` keys come from.
    pub vocabulary: &'a Gguf,
}

/// Writes a whole model to `out`, which should be buffered, and hands `out` back.
///
/// # Errors
/// Where the vocabulary is missing, damaged or too large for the shape, rows of the shape are not
/// whole blocks of the type, or writing fails.
pub fn write<W: Write>(shape: &Shape, options: &Options<'_>, out: W) -> Result<W, Error> {
    let layers = options.layers.unwrap_or(shape.layers);
    let mut writer = GgufWriter::new();
    shape.describe(layers, &mut writer)?;
    let vocabulary = vocabulary::copy(options.vocabulary, shape, &mut writer)?;
    let tensors = tensors::of(shape, layers, vocabulary, options.dtype);
    for Tensor {
        name, dtype, shape, ..
    } in &tensors
    {
        writer.declare(name, *dtype, shape)?;
    }
    let deviation = options.deviation.unwrap_or(shape.deviation);
    let mut stream = writer.start(out)?;
    for tensor in &tensors {
        fill(tensor, options.seed, deviation, &mut stream)?;
    }
    stream.finish()
}

/// About how many bytes a thread makes before they are written.
const PIECE_BYTES: usize = 1 << 20;

/// Writes a tensor's data, made by all cores in pieces of rows.
fn fill<W: Write>(
    tensor: &Tensor,
    seed: u64,
    deviation: f32,
    stream: &mut TensorWriter<W>,
) -> Result<(), Error> {
    let (cols, rows) = tensor.cols_and_rows();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let piece_rows = (PIECE_BYTES / tensor.dtype.row_bytes(cols)).max(1);
    let make = |first: usize| {
        let last = rows.min(first + piece_rows);
        let mut bytes = Vec::with_capacity((last - first) * tensor.dtype.row_bytes(cols));
        let mut values = vec![0.0; cols];
        for row in first..last {
            random::normal(seed, &tensor.name, row, &mut values);
            match tensor.content {
                Content::Matrix => values.iter_mut().for_each(|value| *value *= deviation),
                Content::Norm => values
                    .iter_mut()
                    .for_each(|value| *value = 1.0 + 0.1 * *value),
            }
            tensor.dtype.encode(&values, &mut bytes);
        }
        bytes
    };
    let starts: Vec<usize> = (0..rows).step_by(piece_rows).collect();
    for starts in starts.chunks(threads) {
        let pieces: Vec<Vec<u8>> = match starts {
            &[only] => vec![make(only)],
            several => thread::scope(|scope| {
                let workers: Vec<_> = several
                    .iter()
                    .map(|&first| scope.spawn(move || make(first)))
                    .collect();
                let join = |worker: thread::ScopedJoinHandle<'_, _>| {
                    worker.join().expect("invariant: rows are whole blocks")
                };
                workers.into_iter().map(join).collect()
            }),
        };
        for piece in pieces {
            stream.append(&piece)?;
        }
    }
    Ok(())
}
