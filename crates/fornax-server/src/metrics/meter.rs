//! One answer's clock and counts, from its submission to its end.

use std::sync::Arc;
use std::time::Instant;

use fornax::StopReason;
use serde_json::json;

use super::{Metrics, add};
use crate::app::App;
use crate::config::LogForm;
use crate::journal::{self, RequestId};

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// By the model, or at a stop string.
    Stop,
    /// At a limit.
    Length,
    /// Its client went away.
    Abort,
    /// The engine could not go on.
    Error,
}

impl Outcome {
    /// Every outcome, in the order of their counters.
    pub const ALL: [Outcome; 4] = [
        Outcome::Stop,
        Outcome::Length,
        Outcome::Abort,
        Outcome::Error,
    ];

    /// What it is called.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Stop => "stop",
            Outcome::Length => "length",
            Outcome::Abort => "abort",
            Outcome::Error => "error",
        }
    }

    /// Whether the client has a whole answer.
    pub fn is_success(self) -> bool {
        matches!(self, Outcome::Stop | Outcome::Length)
    }
}

impl From<&StopReason> for Outcome {
    fn from(reason: &StopReason) -> Self {
        match reason {
            StopReason::EndOfTurn | StopReason::StopString(_) => Outcome::Stop,
            StopReason::MaxTokens | StopReason::ContextFull => Outcome::Length,
            StopReason::Cancelled => Outcome::Abort,
        }
    }
}

/// Follows one answer. Dropped before its end, the answer was aborted.
pub struct Meter {
    metrics: Arc<Metrics>,
    log: LogForm,
    request: String,
    prompt: usize,
    /// Whether the tokens of the prompt are counted: once they are known to be computed.
    is_prompt_counted: bool,
    start: Instant,
    /// Since when it waits for its turn.
    submitted: Instant,
    /// Whether it waits for its turn no more.
    started: bool,
    /// When its newest token came.
    newest: Option<Instant>,
    drawn: usize,
    outcome: Outcome,
}

impl Meter {
    /// An answer to a prompt of so many tokens begins.
    pub fn start(app: &App, request: &RequestId, prompt: usize) -> Self {
        let start = Instant::now();
        Self {
            metrics: app.metrics.clone(),
            log: app.config.log,
            request: request.0.clone(),
            prompt,
            is_prompt_counted: false,
            start,
            submitted: start,
            started: false,
            newest: None,
            drawn: 0,
            outcome: Outcome::Abort,
        }
    }

    /// It waits for its turn from now on: its echo was computed before.
    pub fn submitted(&mut self) {
        self.submitted = Instant::now();
    }

    /// Its turn has come; only the first time counts.
    pub fn started(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            self.metrics.queue.observe(self.submitted.elapsed());
        }
    }

    /// It grew by a token.
    pub fn token(&mut self) {
        let now = Instant::now();
        match self.newest.replace(now) {
            Some(before) => self.metrics.inter_token.observe(now - before),
            None => self.metrics.first_token.observe(now - self.start),
        }
        self.count_prompt();
        self.drawn += 1;
        add(&self.metrics.generation_tokens, 1);
    }

    /// It is complete: by an end of the model before any text, a prompt may be all there is.
    pub fn finished(&mut self, reason: &StopReason) {
        self.outcome = reason.into();
        self.count_prompt();
        self.metrics.whole.observe(self.start.elapsed());
    }

    /// It broke off.
    pub fn failed(&mut self) {
        self.outcome = Outcome::Error;
    }

    fn count_prompt(&mut self) {
        if !std::mem::replace(&mut self.is_prompt_counted, true) {
            add(&self.metrics.prompt_tokens, self.prompt);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // The counters stand in the order of the variants.
        add(&self.metrics.outcomes[self.outcome as usize], 1);
        let entry = [
            ("request", json!(self.request)),
            ("outcome", json!(self.outcome.word())),
            ("prompt_tokens", json!(self.prompt)),
            ("tokens", json!(self.drawn)),
            ("ms", journal::milliseconds(self.start)),
        ];
        journal::write(self.log, "answer", entry);
    }
}
