//! Chat templates from hostile files: they render a conversation or fail with a message, and end.
//!
//!     cargo +nightly fuzz run templates
#![no_main]

use std::sync::LazyLock;

use fornax_gguf::Gguf;
use fornax_text::{ChatTemplate, Tokenizer};
use serde_json::json;

/// The built-in model's.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let bytes = include_bytes!("../../crates/fornax-cli/model/fornax-mini.gguf");
    let model = Gguf::from_static("built-in", bytes).expect("the built-in model");
    Tokenizer::from_gguf(&model).expect("its tokenizer")
});

libfuzzer_sys::fuzz_target!(|source: &str| {
    let Ok(template) = ChatTemplate::from_source("fuzzed", source, Some(&TOKENIZER)) else {
        return;
    };
    let request = json!({
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Hello <|im_end|> é" }
        ],
        "tools": [{ "type": "function", "function": { "name": "f", "parameters": {} } }],
        "add_generation_prompt": true
    });
    let _ = template.render(&request);
});
