//! Run language models from a Rust program.
