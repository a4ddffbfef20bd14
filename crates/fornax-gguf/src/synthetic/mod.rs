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
//! use fornax_gguf::synthetic::{Formats, Options, Shape, write};
//!
//! let shape = Shape::named("tiny-qwen3").expect("a known shape");
//! let options = Options {
//!     formats: Formats::Of(DType::Q8_0),
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

use std::io::Write;

use crate::{DType, Error, Gguf, GgufWriter, Scheme, TensorWriter, pieces};

pub use shapes::{Experts, Shape};
use tensors::{Content, Tensor};

/// How to fill a shape.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Which formats the matrices have. Norms and routers are F32.
    pub formats: Formats,
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

/// The formats of a model's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formats {
    /// One for all; but beside Q4_0 the embedding and the head are Q8_0, as in published files.
    Of(DType),
    /// As a quantiser assigns them.
    Mix(Scheme),
}

impl Formats {
    /// By name: first a format's own, then a mix.
    pub fn from_name(name: &str) -> Option<Formats> {
        let dtype = DType::from_name(name).map(Formats::Of);
        dtype.or_else(|| Scheme::from_name(name).map(Formats::Mix))
    }

    /// The names of all formats and mixes, for help and errors.
    pub fn list() -> String {
        let mixes = Scheme::all().filter(|scheme| DType::from_name(scheme.name()).is_none());
        let mixes: Vec<&str> = mixes.map(Scheme::name).collect();
        format!("{}, {}", DType::list(), mixes.join(", "))
    }

    /// The name of the format or the mix.
    pub fn name(self) -> &'static str {
        match self {
            Formats::Of(dtype) => dtype.name(),
            Formats::Mix(scheme) => scheme.name(),
        }
    }
}

/// Writes a whole model to `out`, which should be buffered, and hands `out` back.
///
/// # Errors
/// Where the vocabulary is missing, damaged or too large for the shape, rows of the shape are not
/// whole blocks of the type, or writing fails.
pub fn write<W: Write>(shape: &Shape, options: &Options<'_>, out: W) -> Result<W, Error> {
    let layers = options.layers.unwrap_or(shape.layers);
    let mut writer = GgufWriter::new();
    shape.describe(layers, options.formats, &mut writer)?;
    let vocabulary = vocabulary::copy(options.vocabulary, shape, &mut writer)?;
    let tensors = tensors::of(shape, layers, vocabulary, options.formats);
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

/// Writes a tensor's data.
fn fill<W: Write>(
    tensor: &Tensor,
    seed: u64,
    deviation: f32,
    stream: &mut TensorWriter<W>,
) -> Result<(), Error> {
    let (cols, rows) = tensor.cols_and_rows();
    let make = |row: usize, bytes: &mut Vec<u8>| {
        let mut values = vec![0.0; cols];
        random::normal(seed, &tensor.name, row, &mut values);
        match tensor.content {
            Content::Matrix => values.iter_mut().for_each(|value| *value *= deviation),
            Content::Norm => values
                .iter_mut()
                .for_each(|value| *value = 1.0 + 0.1 * *value),
        }
        tensor.dtype.encode(&values, bytes);
        Ok(())
    };
    pieces::write(stream, rows, tensor.dtype.row_bytes(cols), make, |_| ())
}
