//! Vocabularies from hostile metadata: a tokenizer that is made of them encodes and decodes, or
//! they are refused.
//!
//!     cargo +nightly fuzz run tokenizer_metadata
#![no_main]

use fornax_gguf::Gguf;
use fornax_text::{ControlTokens, Special, Tokenizer};

const TEXT: &str = "The fox's 2 hens, schön 🦊\n\n  <s>";

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(model) = Gguf::from_bytes("fuzzed", bytes.to_vec()) else {
        return;
    };
    let Ok(tokenizer) = Tokenizer::from_gguf(&model) else {
        return;
    };
    for special in [Special::Parse, Special::Plain] {
        let tokens = tokenizer.with_markers(tokenizer.encode(TEXT, special));
        assert!(tokenizer.decode(&tokens, ControlTokens::Show).is_ok());
    }
});
