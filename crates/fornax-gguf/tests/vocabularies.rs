//! Real files of other writers open: the vocabularies of `../shared`.
//!
//! Knows their sizes only; what they mean is `fornax-text`.

use std::path::Path;

use fornax_gguf::{Error, Gguf};

#[test]
#[cfg_attr(no_shared, ignore = "needs ../shared: real vocabularies")]
fn real_vocabularies_open() -> Result<(), Error> {
    let folder = Path::new(env!("FORNAX_SHARED_DIR")).join("vocabs");
    for (name, model, tokens, merges) in [
        ("gpt-2", "gpt2", 50_257, 50_000),
        ("llama-bpe", "gpt2", 128_256, 280_147),
        ("llama-spm", "llama", 32_000, 0),
        ("qwen2", "gpt2", 151_936, 151_387),
    ] {
        let gguf = Gguf::open(folder.join(format!("ggml-vocab-{name}.gguf")))?;
        let metadata = gguf.metadata();
        assert_eq!(metadata.str("tokenizer.ggml.model")?, model, "{name}");
        assert_eq!(
            metadata.strings("tokenizer.ggml.tokens")?.len(),
            tokens,
            "{name}"
        );
        assert_eq!(
            metadata.i32s("tokenizer.ggml.token_type")?.len(),
            tokens,
            "{name}"
        );
        let found = metadata
            .optional_strings("tokenizer.ggml.merges")?
            .map_or(0, <[String]>::len);
        assert_eq!(found, merges, "{name}");
        assert_eq!(gguf.tensors().len(), 0, "{name}");
    }
    Ok(())
}
