//! The words of OpenAI's protocol that several endpoints share.

pub mod envelope;
pub mod error;
pub mod fields;
mod json;
pub mod logprobs;
pub mod messages;
mod no_op;
pub mod sampling;
pub mod usage;
