//! One file per endpoint: its fields, its answer, its handler.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod models;
pub mod status;
pub mod tokenize;
