//! Bodies of requests: whatever comes, it is read or refused with a message.
//!
//!     cargo +nightly fuzz run request_bodies
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fornax_server::fuzzing::request_bodies(bytes));
