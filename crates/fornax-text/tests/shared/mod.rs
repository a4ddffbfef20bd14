//! The real vocabularies of `../shared/vocabs`, for the tests that need them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;

use fornax_gguf::Gguf;
use fornax_text::Tokenizer;

/// The vocabularies that have published vectors.
pub fn vocabularies() -> Vec<String> {
    let files = std::fs::read_dir(path("vocabs")).expect("the folder of vocabularies");
    let mut names: Vec<String> = files
        .filter_map(|file| file.expect("a file").file_name().into_string().ok())
        .filter_map(|file| {
            let name = file
                .strip_prefix("ggml-vocab-")?
                .strip_suffix(".gguf.inp")?;
            Some(name.to_owned())
        })
        .collect();
    names.sort();
    names
}

/// A file of the shared folder.
pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("FORNAX_SHARED_DIR")).join(name)
}

/// The file of a vocabulary.
pub fn gguf(name: &str) -> Gguf {
    Gguf::open(path(&format!("vocabs/ggml-vocab-{name}.gguf"))).expect("a vocabulary that opens")
}

/// The tokenizer of a vocabulary.
pub fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_gguf(&gguf(name)).expect("a vocabulary that is supported")
}
