//! An opened model: its metadata and its tensors by name, from one file or from several.
//!
//! What the bytes must look like is `parse`, how parts become one is `split`, and how a folder of
//! safetensors reads as a GGUF file is `folder`.

use std::{borrow::Cow, collections::HashMap, path::Path};

use crate::{
    Error, Metadata, Tensor,
    folder::{self, Origins},
    parse::{self, Content, Parsed, TensorInfo},
    split::{self, PartName},
    storage::{Bytes, map},
};

/// A model, opened and validated as a whole: every tensor it names lies inside its file and can be
/// decoded.
pub struct Gguf {
    source: String,
    /// The file, or its parts, or those of a folder.
    files: Vec<Bytes>,
    version: u32,
    metadata: Metadata,
    /// In file order.
    tensors: Vec<TensorInfo>,
    /// Tensor name to index in `tensors`.
    index: HashMap<String, usize>,
    /// What a folder calls what is here.
    origins: Option<Origins>,
}

impl Gguf {
    /// Maps the model at `path` and validates it: a GGUF file, the first part of a split one, or a
    /// folder with `config.json`, `tokenizer.json` and safetensors, which reads as the GGUF file
    /// that a converter would make of it. Tensor data is not read until it is used.
    ///
    /// While it is open no one may change or truncate a file of it: the system may then end the
    /// program, without a word unless it has asked for one (`end_where_a_file_shrinks`, on Unix).
    ///
    /// # Errors
    /// Where a file or a part cannot be opened, is not GGUF version 2 or 3, contradicts itself or
    /// holds a tensor of a type that is not supported; where a folder's architecture or tokenizer
    /// is not known. The error says what, where and what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf, Error> {
        let path = path.as_ref();
        if path.is_dir() {
            return folder::open(path);
        }
        let first = Self::from_storage(path.display().to_string(), open(path)?)?;
        let Some(count) = split::parts(&first)? else {
            return Ok(first);
        };
        let name = PartName::first(&first, path, count)?;
        name.require()?;
        let mut parts = vec![first];
        for number in 2..=count {
            let path = name.path_of(number);
            parts.push(Self::from_storage(
                path.display().to_string(),
                open(&path)?,
            )?);
        }
        split::join(parts)
    }

    /// Validates a file that is part of the program.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Gguf, Error> {
        split::whole(Self::from_storage(name.to_owned(), Bytes::Static(bytes))?)
    }

    /// Validates a file that is in memory.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Gguf, Error> {
        split::whole(Self::from_storage(name.to_owned(), Bytes::Owned(bytes))?)
    }

    /// Validates the parts of a split file that are in memory, in their order, each with its name.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_parts(parts: Vec<(String, Vec<u8>)>) -> Result<Gguf, Error> {
        let parse = |(name, bytes)| Self::from_storage(name, Bytes::Owned(bytes));
        split::join(parts.into_iter().map(parse).collect::<Result<_, _>>()?)
    }

    /// Validates the files of a model folder that are in memory, each with its name in the folder.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_folder(name: &str, files: Vec<(String, Vec<u8>)>) -> Result<Gguf, Error> {
        folder::from_memory(name, files)
    }

    /// Puts a model together whose tensors lie in `files`.
    pub(crate) fn assemble(
        source: String,
        files: Vec<Bytes>,
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
        origins: Origins,
    ) -> Gguf {
        let index = tensors.iter().enumerate();
        let index = index.map(|(at, info)| (info.name.clone(), at)).collect();
        Gguf {
            source,
            files,
            version: 3,
            metadata,
            tensors,
            index,
            origins: Some(origins),
        }
    }

    /// Takes in another part of the same model, whose tensors are new.
    ///
    /// # Errors
    /// With the name of a tensor that is here already.
    pub(crate) fn absorb(&mut self, part: Gguf) -> Result<(), String> {
        let first = self.files.len();
        self.files.extend(part.files);
        for mut info in part.tensors {
            if let Content::Stored { file, .. } = &mut info.content {
                *file += first;
            }
            let at = self.tensors.len();
            if self.index.insert(info.name.clone(), at).is_some() {
                return Err(info.name);
            }
            self.tensors.push(info);
        }
        Ok(())
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
            files: vec![bytes],
            version,
            metadata,
            tensors,
            index,
            origins: None,
        })
    }

    /// Path or name of the file, for errors.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Version of the format: 2 or 3, and 3 for what a folder would be converted to.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Size of the file in bytes, over all its parts; of a folder that of its tensors' files.
    pub fn len_bytes(&self) -> u64 {
        self.files.iter().map(|bytes| bytes.len() as u64).sum()
    }

    /// The key-value pairs.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor<'_>> {
        self.tensors.iter().map(|info| self.described(info))
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        self.index
            .get(name)
            .map(|&index| self.described(&self.tensors[index]))
    }

    /// The name by which an error should call a tensor, be it here or missing: that of the folder's
    /// own tensor where this is a folder.
    pub fn called<'a>(&'a self, tensor: &'a str) -> Cow<'a, str> {
        let origins = self.origins.as_ref();
        origins.map_or(Cow::Borrowed(tensor), |origins| origins.tensor(tensor))
    }

    /// The file that an error should name for a tensor: the one of a folder that has it.
    pub fn file_of(&self, tensor: &str) -> String {
        let origins = self.origins.as_ref();
        match origins.and_then(|origins| origins.file(tensor)) {
            None => self.source.clone(),
            Some(file) => format!("{}/{file}", self.source),
        }
    }

    /// The file that an error should name for a metadata key.
    pub fn file_of_settings(&self) -> String {
        match self.origins {
            None => self.source.clone(),
            Some(_) => format!("{}/config.json", self.source),
        }
    }

    /// The name by which an error should call a metadata key: the setting of `config.json` that it
    /// comes from where this is a folder.
    pub fn setting<'a>(&'a self, key: &'a str) -> &'a str {
        let origins = self.origins.as_ref();
        origins
            .and_then(|origins| origins.setting(key))
            .unwrap_or(key)
    }

    /// Where an error should say that settings stand.
    pub fn settings(&self) -> &'static str {
        match self.origins {
            None => "the metadata",
            Some(_) => "config.json",
        }
    }

    fn described<'a>(&'a self, info: &'a TensorInfo) -> Tensor<'a> {
        Tensor {
            name: &info.name,
            dtype: info.dtype,
            shape: &info.shape,
            content: &info.content,
            files: &self.files,
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

fn open(path: &Path) -> Result<Bytes, Error> {
    map(path).map_err(|cause| Error::Open {
        path: path.to_owned(),
        cause,
    })
}
