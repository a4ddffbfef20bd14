//! The real vocabularies of `../shared/vocabs`, for the tests that need them.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::PathBuf;

use fornax_gguf::Gguf;
use fornax_text::Tokenizer;

/// The vocabularies of byte-level BPE.
pub const BPE: [&str; 3] = ["qwen2", "llama-bpe", "gpt-2"];

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
