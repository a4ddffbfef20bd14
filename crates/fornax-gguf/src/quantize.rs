//! From one model file to another with its tensors in other formats, tensor by tensor.
//!
//! Which format a tensor gets is `scheme`. Holds a few rows in memory at a time, and of a folder the
//! one tensor that is in another order there; must not know where the file goes.

use std::io::Write;

use crate::{
    DType, Error, Gguf, GgufWriter, Scheme, TensorView,
    error::Quoted,
    pieces,
    scheme::{Facts, assign},
};

/// How far writing has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The tensor that is being written.
    pub tensor: &'a str,
    /// Values written, of all tensors.
    pub done: u64,
    /// Values to write.
    pub total: u64,
}

/// What a model may be quantised from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum From {
    /// Only from numbers that were not quantised before.
    #[default]
    Exact,
    /// From anything: errors add up.
    Anything,
}

/// Writes `model` to `out`, which should be buffered, with its tensors as `scheme` has them, and
/// hands `out` back. The metadata is the model's, with `general.file_type` of the scheme.
///
/// # Errors
/// Where a tensor that would change is quantised already and `from` does not allow it, where a
/// weight is no finite number, or writing fails.
pub fn quantize<W: Write>(
    model: &Gguf,
    scheme: Scheme,
    from: From,
    out: W,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<W, Error> {
    let facts = Facts::of(model)?;
    let mut writer = GgufWriter::new();
    describe(model, scheme, &mut writer)?;
    let mut tensors = Vec::with_capacity(model.tensors().len());
    for tensor in model.tensors() {
        let dtype = assign(scheme, &facts, tensor.name, tensor.dtype, tensor.shape);
        // Single precision holds whatever a block format can say.
        let loses = dtype != tensor.dtype && dtype != DType::F32;
        if loses && tensor.dtype.block_len() > 1 && from == From::Exact {
            return Err(Error::Unwritable(format!(
                "tensor {} is {} already, and would lose again as {dtype}; start from the \
                 original, or allow it (--requantize)",
                Quoted(tensor.name),
                tensor.dtype
            )));
        }
        writer.declare(tensor.name, dtype, tensor.shape)?;
        tensors.push((tensor, dtype));
    }
    let total = tensors.iter().map(|(tensor, _)| tensor.elements() as u64);
    let (total, mut before) = (total.sum(), 0);
    let mut stream = writer.start(out)?;
    for (tensor, dtype) in tensors {
        let cols = tensor.cols();
        let written = |rows: usize| {
            progress(Progress {
                tensor: tensor.name,
                done: before + (rows * cols) as u64,
                total,
            });
        };
        let data = tensor.data();
        let view = tensor.with(&data);
        let row = |row: usize, bytes: &mut Vec<u8>| convert_row(&view, row, dtype, bytes);
        let row_bytes = dtype.row_bytes(cols);
        pieces::write(&mut stream, tensor.rows(), row_bytes, row, written)?;
        before += tensor.elements() as u64;
    }
    stream.finish()
}

fn describe(model: &Gguf, scheme: Scheme, writer: &mut GgufWriter) -> Result<(), Error> {
    const FILE_TYPE: &str = "general.file_type";
    const VERSION: &str = "general.quantization_version";
    let file_type = scheme.file_type();
    for (key, value) in model.metadata().iter() {
        let stale = key == VERSION || file_type.is_some() && key == FILE_TYPE;
        // What is written is one file.
        if !stale && !key.starts_with("split.") {
            writer.set(key, value.clone())?;
        }
    }
    // The version of the block formats, which the specification wants wherever they are used.
    writer.set(VERSION, 2u32)?;
    file_type.map_or(Ok(()), |number| writer.set(FILE_TYPE, number))
}

/// Appends a row in another format.
fn convert_row(
    tensor: &TensorView<'_>,
    row: usize,
    dtype: DType,
    bytes: &mut Vec<u8>,
) -> Result<(), Error> {
    if dtype == tensor.dtype {
        bytes.extend_from_slice(tensor.row(row));
        return Ok(());
    }
    let mut values = vec![0.0; tensor.cols()];
    tensor.dtype.decode(tensor.row(row), &mut values);
    if let Some(column) = values.iter().position(|value| !value.is_finite()) {
        return Err(Error::Unwritable(format!(
            "tensor {}: value {column} of row {row} is {}; the model is damaged",
            Quoted(tensor.name),
            values[column]
        )));
    }
    dtype.encode(&values, bytes);
    Ok(())
}
