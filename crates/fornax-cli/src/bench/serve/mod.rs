//! Load on an OpenAI server: who asks what when, and how long the answers take.
//!
//! Knows the protocol and nothing of Fornax, so that any server can be measured.

pub mod client;
pub mod load;
pub mod measured;
pub mod workload;
