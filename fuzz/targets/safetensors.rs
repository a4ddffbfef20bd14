//! A small model folder with one of its files replaced: it opens with tensors in bounds, or is
//! refused.
//!
//!     cargo +nightly fuzz run safetensors
#![no_main]

#[path = "../../crates/fornax-gguf/tests/small_folder/mod.rs"]
mod small_folder;

use fornax_gguf::Gguf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&which, content)) = bytes.split_first() else {
        return;
    };
    let mut files = match which & 128 {
        0 => small_folder::files(),
        _ => small_folder::sharded(),
    };
    let which = usize::from(which & 127) % files.len();
    files[which].1 = content.to_vec();
    if let Ok(model) = Gguf::from_folder("fuzzed", files) {
        for tensor in model.tensors() {
            assert_eq!(tensor.decode().len(), tensor.elements());
        }
    }
});
