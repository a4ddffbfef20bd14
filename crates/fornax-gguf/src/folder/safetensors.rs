//! The safetensors format: where each tensor of a folder lies.
//!
//! Owns the layout (<https://github.com/huggingface/safetensors#format>) and every check of it:
//! eight bytes of length, a JSON object of that length, then the data. Must not know what a tensor
//! is for.

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    ops::Range,
};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};

use super::{Read, document, made::Source, refuse};
use crate::{DType, Error, error::Quoted, storage::Bytes};

const DAMAGED: &str = "the file is damaged or incomplete: download it again";
/// A model in one file.
const SINGLE: &str = "model.safetensors";
/// Which tensor of a sharded model lies in which file.
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a folder.
pub(super) struct Stored {
    pub files: Vec<Bytes>,
    /// Their names.
    pub names: Vec<String>,
    /// In the order of files and data.
    pub tensors: Vec<StoredTensor>,
}

/// A tensor whose bytes are known to lie inside its file, and to be as many as its shape needs.
pub(super) struct StoredTensor {
    pub name: String,
    pub element: Element,
    /// Outermost first.
    pub shape: Vec<usize>,
    /// Index of its file.
    pub file: usize,
    /// Bytes of the file.
    pub range: Range<usize>,
}

impl StoredTensor {
    /// Where it lies.
    pub fn source(&self) -> Source {
        Source {
            file: self.file,
            range: self.range.clone(),
        }
    }
}

/// What a tensor's type is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Element {
    /// A number.
    Float(DType),
    /// A byte, for blocks that a model packs itself.
    Byte,
    /// A type that models are not read from.
    Other(String),
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Float(dtype) => f.write_str(dtype.name()),
            Element::Byte => f.write_str("U8"),
            Element::Other(name) => Quoted(name).fmt(f),
        }
    }
}

/// Finds the tensors of a folder, in one file or in those that the index names. Where there are
/// both, the one file counts, as in `transformers`.
pub(super) fn open(folder: &str, read: &mut Read<'_>) -> Result<Stored, Error> {
    let mut names = HashSet::new();
    let mut stored = Stored {
        files: Vec::new(),
        names: Vec::new(),
        tensors: Vec::new(),
    };
    let mut single = read(SINGLE)?;
    let files = match &single {
        Some(_) => vec![SINGLE.to_owned()],
        None => shards(folder, read)?,
    };
    for name in files {
        let bytes = match single.take() {
            Some(bytes) => Some(bytes),
            None => read(&name)?,
        };
        let Some(bytes) = bytes else {
            let problem = "the file is missing";
            return Err(refuse(
                folder,
                &name,
                problem,
                "download the rest of the model",
            ));
        };
        let file = stored.files.len();
        let (data, entries) = header(folder, &name, &bytes)?;
        for (tensor, entry) in entries {
            if !names.insert(tensor.clone()) {
                let problem = format!("tensor {} is in an earlier file already", Quoted(&tensor));
                return Err(refuse(folder, &name, problem, DAMAGED));
            }
            let fault = |problem: String| {
                let problem = format!("tensor {}: {problem}", Quoted(&tensor));
                refuse(folder, &name, problem, DAMAGED)
            };
            stored
                .tensors
                .push(entry.check(tensor.clone(), file).map_err(fault)?);
        }
        stored.files.push(bytes);
        check_ranges(folder, &name, &stored, file, data)?;
        stored.names.push(name);
    }
    Ok(stored)
}

/// The names of the folder's safetensors files.
fn shards(folder: &str, read: &mut Read<'_>) -> Result<Vec<String>, Error> {
    let Some(index) = document::optional(folder, INDEX, read)? else {
        return Ok(vec![SINGLE.to_owned()]);
    };
    let map = index.key("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| index.refuse("weight_map", "is not an object"))?;
    let mut names = BTreeSet::new();
    for name in map.values() {
        let name = name.as_str().filter(|name| is_file_name(name));
        let name = name.ok_or_else(|| index.refuse("weight_map", "has what is no file name"))?;
        names.insert(name.to_owned());
    }
    Ok(names.into_iter().collect())
}

/// Whether the name stays in its folder.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

/// Where the data begins, and what the header says, with ranges turned to bytes of the file.
fn header(folder: &str, name: &str, bytes: &[u8]) -> Result<(usize, Vec<(String, Entry)>), Error> {
    let fault = |problem: String| refuse(folder, name, problem, DAMAGED);
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(fault("the file is too short to be safetensors".to_owned()));
    };
    let length = u64::from_le_bytes(*length);
    let length = usize::try_from(length)
        .ok()
        .filter(|&length| length <= rest.len());
    let Some(length) = length else {
        return Err(fault(format!(
            "the header is longer than the file's {} bytes",
            bytes.len()
        )));
    };
    let header: Header = serde_json::from_slice(&rest[..length])
        .map_err(|error| fault(format!("the header is not what it should be: {error}")))?;
    let data = 8 + length;
    let absolute = |(name, mut entry): (String, Entry)| {
        let [start, end] = &mut entry.data_offsets;
        *start = start.saturating_add(data as u64);
        *end = end.saturating_add(data as u64);
        (name, entry)
    };
    Ok((data, header.0.into_iter().map(absolute).collect()))
}

/// All ranges lie inside the file, and one behind the other without a hole, from the first byte of
/// data to the last, as the format has it: nothing can hide between them.
fn check_ranges(
    folder: &str,
    name: &str,
    stored: &Stored,
    file: usize,
    data: usize,
) -> Result<(), Error> {
    let fault = |tensor: &StoredTensor, problem: &str| {
        let problem = format!("tensor {}: {problem}", Quoted(&tensor.name));
        Err(refuse(folder, name, problem, DAMAGED))
    };
    let tensors = stored.tensors.iter().filter(|tensor| tensor.file == file);
    let mut tensors: Vec<&StoredTensor> = tensors.collect();
    tensors.sort_by_key(|tensor| (tensor.range.start, tensor.range.end));
    let (mut end, len) = (data, stored.files[file].len());
    for tensor in tensors {
        if tensor.range.start < end {
            return fault(tensor, "its data overlaps that of another");
        }
        if tensor.range.end > len {
            return fault(tensor, "its data ends after the file");
        }
        if tensor.range.start > end {
            let hole = tensor.range.start - end;
            let problem = format!("before its data are {hole} bytes that belong to no tensor");
            return fault(tensor, &problem);
        }
        end = tensor.range.end;
    }
    if end < len {
        let problem = format!(
            "behind the last tensor are {} bytes that belong to none",
            len - end
        );
        return Err(refuse(folder, name, problem, DAMAGED));
    }
    Ok(())
}

/// The tensors of a header, none of them twice.
struct Header(Vec<(String, Entry)>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    fn check(self, name: String, file: usize) -> Result<StoredTensor, String> {
        let [start, end] = self.data_offsets.map(|offset| usize::try_from(offset).ok());
        let range = start.zip(end).filter(|(start, end)| start <= end);
        let (start, end) = range.ok_or("its offsets cannot be")?;
        let shape = self
            .shape
            .iter()
            .map(|&length| usize::try_from(length).ok());
        let shape: Option<Vec<usize>> = shape.collect();
        let shape = shape.ok_or("its shape overflows")?;
        let (element, bytes) = match self.dtype.as_str() {
            "F32" => (Element::Float(DType::F32), Some(4)),
            "F16" => (Element::Float(DType::F16), Some(2)),
            "BF16" => (Element::Float(DType::BF16), Some(2)),
            "U8" => (Element::Byte, Some(1)),
            _ => (Element::Other(self.dtype), None),
        };
        if let Some(bytes) = bytes {
            let size = shape
                .iter()
                .try_fold(bytes, |size: usize, &length| size.checked_mul(length));
            if size != Some(end - start) {
                return Err(format!(
                    "{} bytes are not its shape {shape:?} of {element}",
                    end - start
                ));
            }
        }
        Ok(StoredTensor {
            name,
            element,
            shape,
            file,
            range: start..end,
        })
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut tensors, mut names) = (Vec::new(), HashSet::new());
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if !names.insert(name.clone()) {
                let name = Quoted(&name);
                return Err(A::Error::custom(format!("tensor {name} is there twice")));
            }
            tensors.push((name, map.next_value()?));
        }
        Ok(Header(tensors))
    }
}
