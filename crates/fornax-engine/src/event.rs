//! What the engine says about a request while it runs.
//!
//! Owns the words only; who says them when is the engine's. Every request ends with exactly one
//! [`EventKind::Finished`] or [`EventKind::Failed`], and nothing follows it.

use std::ops::Range;

use crate::{RequestId, RunnerError, Token, TokenLogprob};

/// Something happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Whose it is.
    pub request: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// It has a slot and takes part in the step that begins now. Told once, before all else.
    Started,
    /// The next token of the answer.
    Token {
        /// The token drawn.
        token: Token,
        /// Its natural-log probability, where the request wants it.
        logprob: Option<f32>,
        /// The most likely tokens, most likely first.
        top: Vec<TokenLogprob>,
    },
    /// The next wanted logits of the prompt, in order; a long range comes in several events.
    Logits {
        /// The positions in the prompt that these follow.
        positions: Range<usize>,
        /// `[n_positions, vocabulary]`
        values: Vec<f32>,
    },
    /// The vector of the prompt. `[width]`
    Pooled(Vec<f32>),
    /// The request has its answer, or was cancelled.
    Finished {
        /// Why there is no more.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The request has no answer, or only the part that was told.
    Failed(Failure),
}

impl EventKind {
    /// Whether no event follows this one.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Failed(_))
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// This stop token was drawn; it is no part of the answer.
    Stop(Token),
    /// The answer has `max_tokens` tokens.
    Length,
    /// Prompt and answer fill the context.
    Context,
    /// The whole prompt was scored or embedded.
    Complete,
    /// The request was cancelled.
    Cancelled,
}

/// How many tokens a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt; of a score, those up to the last position wanted.
    pub prompt: usize,
    /// Tokens drawn, a stop token among them.
    pub generated: usize,
    /// Tokens of the prompt that were not computed because another request had left their K and V.
    pub cached: usize,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// No token can be drawn from such logits.
    #[error(
        "the model's output after {tokens} tokens is not a finite number; \
         the weights may be damaged, or a value overflowed: try another backend or weight type"
    )]
    NotFinite {
        /// Tokens that the model had read.
        tokens: usize,
    },
    /// The step failed in which it took part.
    #[error(transparent)]
    Runner(#[from] RunnerError),
    /// The engine's thread is gone, and why.
    #[error("the engine has stopped: {0}; load the model again")]
    Stopped(String),
}
