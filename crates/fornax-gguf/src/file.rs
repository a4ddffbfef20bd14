//! An opened GGUF file: where its bytes live, and its parts by name.
//!
//! Owns the memory map, the only `unsafe` of this crate; what the bytes must look like is `parse`.

use std::{collections::HashMap, fs::File, io, ops::Deref, path::Path};

use memmap2::Mmap;

use crate::{
    Error, Metadata, TensorView,
    parse::{self, Parsed, TensorInfo},
};

/// A GGUF file, opened and validated as a whole: every tensor it names lies inside it and can be
/// decoded.
pub struct Gguf {
    source: String,
    bytes: Bytes,
    version: u32,
    metadata: Metadata,
    /// In file order.
    tensors: Vec<TensorInfo>,
    /// Tensor name to index in `tensors`.
    index: HashMap<String, usize>,
}

impl Gguf {
    /// Maps the file at `path` and validates it. Tensor data is not read until it is used.
    /// While it is open no one may change or truncate the file: the system may then end the program.
    ///
    /// # Errors
    /// Where the file cannot be opened, is not GGUF version 2 or 3, contradicts itself or holds a
    /// tensor of a type that is not supported; the error says what, where and what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, Error> {
        let path = path.as_ref();
        let bytes = map(path).map_err(|cause| Error::Open {
            path: path.to_owned(),
            cause,
        })?;
        Self::from_storage(path.display().to_string(), bytes)
    }

    /// Validates a file that is part of the program.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Gguf, Error> {
        Self::from_storage(name.to_owned(), Bytes::Static(bytes))
    }

    /// Validates a file that is in memory.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Gguf, Error> {
        Self::from_storage(name.to_owned(), Bytes::Owned(bytes))
    }

    fn from_storage(source: String, bytes: Bytes) -> Result<Gguf, Error> {
        let Parsed {
            version,
            metadata,
            tensors,
            index,
        } = parse::parse(&source, &bytes)?;
        Ok(Gguf {
            source,
            bytes,
            version,
            metadata,
            tensors,
            index,
        })
    }

    /// Path or name of the file, for errors.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Size of the file in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The key-value pairs.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|info| self.view(info))
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.index
            .get(name)
            .map(|&index| self.view(&self.tensors[index]))
    }

    fn view<'a>(&'a self, info: &'a TensorInfo) -> TensorView<'a> {
        let data = &self.bytes[info.range.clone()];
        TensorView {
            name: &info.name,
            dtype: info.dtype,
            shape: &info.shape,
            data,
        }
    }
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (keys, tensors) = (self.metadata.iter().len(), self.tensors.len());
        write!(
            f,
            "Gguf {{ source: {:?}, version: {}, keys: {keys}, tensors: {tensors} }}",
            self.source, self.version
        )
    }
}

/// Where the bytes of a file live.
enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    Owned(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(bytes) => bytes,
            Bytes::Static(bytes) => bytes,
            Bytes::Owned(bytes) => bytes,
        }
    }
}

fn map(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    let kind = file.metadata()?;
    if !kind.is_file() {
        let problem = if kind.is_dir() {
            "it is a folder; name a .gguf file in it"
        } else {
            "it is not a regular file"
        };
        return Err(io::Error::other(problem));
    }
    if kind.len() == 0 {
        // A map of nothing is refused by some systems; the parser says what is wrong with an empty
        // file.
        return Ok(Bytes::Static(&[]));
    }
    // SAFETY: the map is private to this process and read-only. Its contents are only ever read as
    // bytes, for which every bit pattern is valid, and every range used was checked against its
    // length, which is fixed here. What remains is the usual condition of mapping a model: that no
    // one changes or truncates the file while it is used.
    unsafe { Mmap::map(&file) }.map(Bytes::Mapped)
}
