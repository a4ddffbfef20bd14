//! Model folders as Hugging Face keeps them, read as the GGUF file that a converter would make.
//!
//! `config.json` becomes metadata keys (`config`), `tokenizer.json` and its neighbours become
//! tokenizer keys (`tokenizer`), and the tensors of one or several safetensors files get GGUF names
//! (`tensors`). What lies in the files as it is needed stays there, mapped; what a converter
//! changes (permuted heads, stacked experts, packed blocks, shifted norms) is made tensor by tensor
//! when it is asked for (`made`). Must not know how a model computes.

mod attention;
mod config;
mod document;
mod latent;
mod made;
mod mixture;
mod names;
mod origins;
mod packed;
mod post_processor;
mod pre_tokenizer;
mod rope;
mod safetensors;
mod special;
mod tensors;
mod tokenizer;
mod tokenizer_rules;
mod vocabulary;

use std::{collections::HashMap, io, path::Path};

pub(crate) use origins::Origins;

use crate::{
    Error, Gguf, Metadata,
    storage::{Bytes, map},
};

/// No vocabulary and no head is larger. A name is made for each row without a token, which takes more
/// than a row does in a file that is nothing but rows.
const LARGEST: usize = 0xff_ffff;

/// Opens the folder at `path`.
pub(crate) fn open(path: &Path) -> Result<Gguf, Error> {
    let folder = path.display().to_string();
    load(&folder, &mut |name| {
        let path = path.join(name);
        match map(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(Error::Open { path, cause }),
        }
    })
}

/// Opens a folder whose files are in memory.
pub(crate) fn from_memory(folder: &str, files: Vec<(String, Vec<u8>)>) -> Result<Gguf, Error> {
    let mut files: HashMap<String, Vec<u8>> = files.into_iter().collect();
    load(folder, &mut |name| Ok(files.remove(name).map(Bytes::Owned)))
}

/// Gives a file of the folder; `None` where there is none of that name.
type Read<'a> = dyn FnMut(&str) -> Result<Option<Bytes>, Error> + 'a;

fn load(folder: &str, read: &mut Read<'_>) -> Result<Gguf, Error> {
    let config = document::required(folder, "config.json", read)?;
    let mut metadata = Metadata::new(folder);
    let model = config::describe(folder, &config, &mut metadata)?;
    let stored = safetensors::open(folder, read)?;
    // What is made for each of them must be justified by what is there.
    let bytes: usize = stored.files.iter().map(|bytes| bytes.len()).sum();
    for (key, count) in [
        ("vocab_size", model.vocabulary),
        ("head_dim", model.heads.dim),
    ] {
        if count > bytes {
            let problem = format!("is {count}, more than the weights have bytes");
            return Err(config.refuse(key, &problem));
        }
        if count > LARGEST {
            return Err(config.refuse(key, &format!("is {count}, and no model has so many")));
        }
    }
    tokenizer::describe(folder, &config, model.vocabulary, read, &mut metadata)?;
    let (files, tensors, origins) = tensors::assemble(folder, &model, stored)?;
    let source = folder.to_owned();
    Ok(Gguf::assemble(source, files, metadata, tensors, origins))
}

/// The error for a file of a folder.
fn refuse(folder: &str, file: &str, problem: impl Into<String>, advice: &str) -> Error {
    Error::NotReadable {
        file: format!("{folder}/{file}"),
        problem: problem.into(),
        advice: advice.to_owned(),
    }
}
