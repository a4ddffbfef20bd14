//! Operations of the prefix cache, compared with a naive one after each.
//!
//!     cargo +nightly fuzz run radix_operations
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fornax_engine::testing::radix_operations(bytes));
