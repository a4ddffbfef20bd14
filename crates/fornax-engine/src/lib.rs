//! Requests, sequences, KV pages and the loop `plan ▸ step ▸ commit`.
//!
//! Owns what a request is, which tokens go into which step, and who holds which KV page.
//! Knows no text, no JSON and no tensor, and imports nothing of ours: a [`Runner`] does the
//! arithmetic, and everything here can be simulated with a fake one.
//!
//! ```text
//! Request ─ submit ─▶ waiting ─ admitted: a slot, pages ─▶ running ─ Finished ─▶ gone
//!                        ▲                                    │
//!                        └────── preempted: pages are short ──┘
//! ```
//!
//! What a sequence computed stays in its pages, and whoever begins with the same tokens takes them
//! from there, until the pages are needed.

mod engine;
mod event;
mod options;
mod pace;
mod pages;
mod pool;
mod radix;
mod request;
mod runner;
mod sampling;
mod scheduler;
mod sequence;
mod stats;
mod thread;

#[doc(hidden)]
pub mod testing;

pub use engine::Engine;
pub use event::{Event, EventKind, Failure, FinishReason, Usage};
pub use options::EngineOptions;
pub use pace::PromptPace;
pub use pages::{KvPolicy, LimitsError};
pub use request::{Bounds, Generation, MAX_LOGPROBS, Request, RequestError, RequestId, Task};
pub use runner::{
    Admission, Input, KvGroup, Limits, PageCopy, PageId, Pooling, Row, RowOutput, Runner,
    RunnerError, StepBatch, StepOutput, Ticket, Token, TokenLogprob, Want,
};
pub use sampling::{SamplingError, SamplingParams};
pub use stats::{Load, StepStats};
pub use thread::{CancelHandle, EngineThread, EventStream, SubmitError};
