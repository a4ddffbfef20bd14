//! From bytes to a validated description of a GGUF file.
//!
//! Owns the layout of the format (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>) and
//! every check that a file passes before it is used. What is allocated is bounded, for no count is
//! believed that the rest of the file could not hold or that no model has. Must not know where the
//! bytes come from.
//!
//! ```text
//! file   = "GGUF" version:u32 tensors:u64 pairs:u64 | pair × pairs | tensor × tensors
//!          | padding | tensor data
//! pair   = key:string type:u32 value
//! tensor = name:string n_dims:u32 (dim:u64) × n_dims, innermost first
//!          type:u32 offset:u64 into the tensor data
//! string = length:u64 bytes
//! ```

use std::{collections::HashMap, ops::Range};

use crate::{
    DType, Error, Metadata, cursor::Cursor, dtype::ggml_type_name, error::Quoted, pairs,
    storage::Bytes,
};

/// Alignment of tensor data where `general.alignment` is absent, in bytes.
pub(crate) const DEFAULT_ALIGNMENT: usize = 32;
/// The largest that is taken: each tensor may be padded by as much.
pub(crate) const MAX_ALIGNMENT: usize = 1 << 20;
/// The key that sets another alignment.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// The most dimensions a tensor has.
pub(crate) const MAX_DIMENSIONS: usize = 4;
/// The least that a pair takes: a key of one byte and a value of one.
const SMALLEST_PAIR: usize = 8 + 1 + 4 + 1;
/// The least that a tensor's description takes: a name of one byte and one dimension.
const SMALLEST_TENSOR: usize = 8 + 1 + 4 + 8 + 4 + 8;

/// What a file says, with nothing left to check.
pub(crate) struct Parsed {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
    /// Tensor name to index in `tensors`.
    pub index: HashMap<String, usize>,
}

/// A tensor whose bytes are known to be there.
pub(crate) struct TensorInfo {
    pub name: String,
    pub dtype: DType,
    /// Outermost first.
    pub shape: Vec<usize>,
    pub content: Content,
}

/// Where a tensor's bytes come from.
pub(crate) enum Content {
    /// They lie in one of the model's files.
    Stored {
        /// Which one.
        file: usize,
        /// Bytes of it.
        range: Range<usize>,
    },
    /// They are made of those of the model's files, as many as type and shape need.
    Made(Make),
}

/// Makes a tensor's bytes of the model's files.
pub(crate) type Make = Box<dyn Fn(&[Bytes]) -> Vec<u8> + Send + Sync>;

/// A tensor as the file describes it.
struct Described {
    name: String,
    dtype: DType,
    /// Outermost first.
    shape: Vec<usize>,
    /// Bytes of the file, relative to the tensor data until [`locate`] has made them absolute.
    range: Range<usize>,
}

pub(crate) fn parse(file: &str, bytes: &[u8]) -> Result<Parsed, Error> {
    let mut cursor = Cursor::new(file, bytes);
    let version = version(&mut cursor)?;
    let tensor_count = cursor.count("the number of tensors", SMALLEST_TENSOR)?;
    let pair_count = cursor.count("the number of metadata pairs", SMALLEST_PAIR)?;
    let metadata = pairs::read(&mut cursor, pair_count)?;
    let alignment = alignment(&cursor, &metadata)?;
    let (mut tensors, index) = tensors(&mut cursor, tensor_count, alignment)?;
    locate(&mut cursor, &mut tensors, alignment, bytes.len())?;
    let stored = |described: Described| TensorInfo {
        name: described.name,
        dtype: described.dtype,
        shape: described.shape,
        content: Content::Stored {
            file: 0,
            range: described.range,
        },
    };
    Ok(Parsed {
        version,
        metadata,
        tensors: tensors.into_iter().map(stored).collect(),
        index,
    })
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32, Error> {
    let file = cursor.file().to_owned();
    let refuse = |problem: String, advice: &str| {
        Err(Error::NotReadable {
            file: file.clone(),
            problem,
            advice: advice.to_owned(),
        })
    };
    let Ok(magic) = cursor.array::<4>("the magic number") else {
        return refuse(
            "the file is too short to be GGUF".to_owned(),
            "download it again",
        );
    };
    if &magic != b"GGUF" {
        let problem = format!(
            "not a GGUF file: it starts with \"{}\"",
            magic.escape_ascii()
        );
        return refuse(problem, "name a .gguf file, or convert the model to one");
    }
    let convert = "convert the model again with a current converter";
    match cursor.u32("the version")? {
        version @ 2..=3 => Ok(version),
        1 => refuse(
            "GGUF version 1 is not supported, only 2 and 3".to_owned(),
            convert,
        ),
        swapped if matches!(swapped.swap_bytes(), 1..=3) => refuse(
            "big-endian GGUF is not supported".to_owned(),
            "convert the model again as little-endian",
        ),
        other => refuse(
            format!("GGUF version {other} is not supported, only 2 and 3"),
            convert,
        ),
    }
}

fn alignment(cursor: &Cursor<'_>, metadata: &Metadata) -> Result<usize, Error> {
    let Some(alignment) = metadata.optional_u32(ALIGNMENT_KEY)? else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match usize::try_from(alignment) {
        Ok(bytes) if is_alignment(bytes) => Ok(bytes),
        _ => Err(Error::NotReadable {
            file: cursor.file().to_owned(),
            problem: format!(
                "metadata key \"{ALIGNMENT_KEY}\" is {alignment}, not a power of two from 8 to {MAX_ALIGNMENT}"
            ),
            advice: "convert the model again".to_owned(),
        }),
    }
}

/// Whether tensor data may be aligned so.
pub(crate) fn is_alignment(bytes: usize) -> bool {
    bytes.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&bytes)
}

type Tensors = (Vec<Described>, HashMap<String, usize>);

fn tensors(cursor: &mut Cursor<'_>, count: usize, alignment: usize) -> Result<Tensors, Error> {
    cursor.keep(count, 2 * size_of::<Described>())?;
    let mut tensors = Vec::with_capacity(count);
    let mut index = HashMap::with_capacity(count);
    for position in 0..count {
        cursor.about(format!("tensor {position} of {count}"));
        let start = cursor.position();
        let info = tensor(cursor, alignment)?;
        if index.insert(info.name.clone(), position).is_some() {
            return Err(cursor.fault(start, "the tensor is there twice"));
        }
        tensors.push(info);
    }
    Ok((tensors, index))
}

fn tensor(cursor: &mut Cursor<'_>, alignment: usize) -> Result<Described, Error> {
    let start = cursor.position();
    let name = cursor.string("the name")?;
    if name.is_empty() {
        return Err(cursor.fault(start, "the name is empty"));
    }
    cursor.about(format!("tensor {}", Quoted(name)));
    let shape = shape(cursor)?;
    let at_type = cursor.position();
    let dtype = dtype(cursor)?;
    let size = size(dtype, &shape).map_err(|problem| cursor.fault(at_type, problem))?;
    let at_offset = cursor.position();
    let offset = cursor.u64("the offset")?;
    if !offset.is_multiple_of(alignment as u64) {
        return Err(cursor.fault(
            at_offset,
            format!("its offset {offset} is not a multiple of {alignment}"),
        ));
    }
    let range = usize::try_from(offset)
        .ok()
        .and_then(|offset| Some(offset..offset.checked_add(size)?));
    match range {
        Some(range) => Ok(Described {
            name: name.to_owned(),
            dtype,
            shape,
            range,
        }),
        None => Err(cursor.fault(
            at_offset,
            format!("its offset {offset} lies far outside the file"),
        )),
    }
}

/// The dimensions, turned to outermost first.
fn shape(cursor: &mut Cursor<'_>) -> Result<Vec<usize>, Error> {
    let start = cursor.position();
    let dimensions = cursor.u32("the number of dimensions")?;
    let dimensions = match usize::try_from(dimensions) {
        Ok(dimensions @ 1..=MAX_DIMENSIONS) => dimensions,
        _ => {
            return Err(cursor.fault(
                start,
                format!("it has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}"),
            ));
        }
    };
    let mut shape = Vec::with_capacity(dimensions);
    for index in 0..dimensions {
        let start = cursor.position();
        let length = cursor.u64("a dimension")?;
        match usize::try_from(length) {
            Ok(length) if length > 0 => shape.push(length),
            _ => return Err(cursor.fault(start, format!("its dimension {index} is {length}"))),
        }
    }
    shape.reverse();
    Ok(shape)
}

fn dtype(cursor: &mut Cursor<'_>) -> Result<DType, Error> {
    let offset = cursor.position();
    let number = cursor.u32("the type")?;
    DType::from_ggml_number(number).ok_or_else(|| Error::UnsupportedType {
        file: cursor.file().to_owned(),
        offset: offset as u64,
        tensor: cursor.subject().to_owned(),
        type_name: ggml_type_name(number).unwrap_or("an unknown type"),
        number,
    })
}

/// Bytes of a tensor, or why there can be no such tensor.
pub(crate) fn size(dtype: DType, shape: &[usize]) -> Result<usize, String> {
    let (&cols, outer) = shape.split_last().ok_or("it has no dimensions")?;
    if !cols.is_multiple_of(dtype.block_len()) {
        return Err(format!(
            "its rows of {cols} values are not whole {dtype} blocks of {}",
            dtype.block_len()
        ));
    }
    // Elements must fit as well as bytes: a format may take less than a byte for each.
    let elements = shape
        .iter()
        .try_fold(1usize, |product, &length| product.checked_mul(length));
    let bytes = (cols / dtype.block_len()).checked_mul(dtype.block_bytes());
    let bytes = outer
        .iter()
        .try_fold(bytes, |product, &length| Some(product?.checked_mul(length)))
        .flatten();
    match (elements, bytes) {
        (Some(_), Some(bytes)) => Ok(bytes),
        _ => Err(format!("its shape {shape:?} overflows")),
    }
}

/// Makes the tensors' ranges absolute, and checks that they lie inside the file and apart.
fn locate(
    cursor: &mut Cursor<'_>,
    tensors: &mut [Described],
    alignment: usize,
    file_bytes: usize,
) -> Result<(), Error> {
    let header_end = cursor.position();
    for info in &mut *tensors {
        let absolute = header_end
            .checked_next_multiple_of(alignment)
            .and_then(|data| {
                Some(data.checked_add(info.range.start)?..data.checked_add(info.range.end)?)
            });
        match absolute {
            Some(range) if range.end <= file_bytes => info.range = range,
            _ => {
                cursor.about(format!("tensor {}", Quoted(&info.name)));
                let Range { start, end } = info.range;
                let problem = format!(
                    "its data (bytes {start} to {end} of the tensor data) ends after the file \
                                       ({file_bytes} bytes)"
                );
                return Err(cursor.fault(header_end, problem));
            }
        }
    }
    let mut by_start: Vec<&Described> = tensors.iter().collect();
    by_start.sort_by_key(|info| info.range.start);
    for pair in by_start.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            cursor.about(format!("tensor {}", Quoted(&pair[1].name)));
            let problem = format!("its data overlaps that of tensor {}", Quoted(&pair[0].name));
            return Err(cursor.fault(pair[1].range.start, problem));
        }
    }
    Ok(())
}
