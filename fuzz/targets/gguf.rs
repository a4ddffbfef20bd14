//! GGUF files, whole and as the parts of a split one: whatever comes, it is read in bounds or
//! refused.
//!
//!     cargo +nightly fuzz run gguf
#![no_main]

use fornax_gguf::Gguf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Gguf::from_bytes("fuzzed", bytes.to_vec()) {
        read(&model);
    }
    // The first byte says where the second part begins.
    let Some((&at, rest)) = bytes.split_first() else {
        return;
    };
    let (first, second) = rest.split_at(rest.len() * usize::from(at) / 256);
    let parts = [("first", first), ("second", second)];
    let parts = parts.map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
    if let Ok(model) = Gguf::from_parts(parts.into()) {
        read(&model);
    }
});

fn read(model: &Gguf) {
    for tensor in model.tensors() {
        assert_eq!(tensor.decode().len(), tensor.elements());
    }
}
