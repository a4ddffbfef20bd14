//! Requests, sequences, KV pages and the loop `plan ▸ step ▸ commit`.
//!
//! Owns what a request is, which tokens go into which step, and who holds which KV page.
//! Knows no text, no JSON and no tensor, and imports nothing of ours: a [`Runner`] does the
//! arithmetic, and everything here can be simulated with a fake one.

mod runner;
mod sampling;

pub use runner::{
    Admission, Input, KvGroup, Limits, PageCopy, PageId, Pooling, Row, RowOutput, Runner,
    RunnerError, StepBatch, StepOutput, Ticket, Token, TokenLogprob, Want,
};
pub use sampling::{SamplingError, SamplingParams};
