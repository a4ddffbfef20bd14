//! Perplexity as llama.cpp's tool defines it, so that both can be laid side by side.
//!
//! Owns the protocol: which tokens are scored and how. Must not know arguments or models.

pub mod chunks;
pub mod logits_file;
pub mod score;
