//! One answer: streamed to stdout, measured, ended early by Ctrl-C.

use std::io::{IsTerminal, stdout};
use std::process::exit;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fornax::{CancelHandle, Event, Finished, Generation, Model, StopReason};
use serde_json::{Value, json};

use crate::metrics::{Metrics, reason_word};
use crate::output;

/// What Ctrl-C ends: the answer that is running, else the program.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Mutex<Option<CancelHandle>>>);

impl Interrupt {
    /// Takes over Ctrl-C and SIGTERM for the rest of the program.
    pub fn install() -> Result<Self> {
        let interrupt = Self::default();
        let running = interrupt.clone();
        ctrlc::set_handler(move || match running.replace(None) {
            Some(answer) => answer.cancel(),
            // Nothing runs, or it did not end at the first Ctrl-C.
            None => exit(130),
        })
        .context("Ctrl-C cannot be taken over")?;
        Ok(interrupt)
    }

    fn replace(&self, answer: Option<CancelHandle>) -> Option<CancelHandle> {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut running, answer)
    }
}

/// An answer that has ended.
pub struct Answer {
    /// All of its text.
    pub text: String,
    /// How it went.
    pub metrics: Metrics,
    /// Whether stdout stands in the middle of a line.
    pub line_is_open: bool,
    finished: Finished,
    context: usize,
}

impl Answer {
    /// What a person should know of how it ended.
    pub fn note(&self) -> Option<String> {
        match self.finished.reason {
            StopReason::ContextFull => Some(format!(
                "the context of {} tokens is full, so the answer ends here (finish reason `length`); a model that was trained for more takes a larger --ctx",
                self.context
            )),
            StopReason::Cancelled => Some("stopped".to_owned()),
            _ => None,
        }
    }

    /// For a program.
    pub fn json(&self) -> Value {
        let stop_string = match &self.finished.reason {
            StopReason::StopString(text) => Some(text),
            _ => None,
        };
        let usage = self.finished.usage;
        json!({
            "text": self.text,
            "finish_reason": reason_word(&self.finished.reason),
            "stop_string": stop_string,
            "context_full": self.finished.reason == StopReason::ContextFull,
            "usage": {
                "prompt_tokens": usage.prompt,
                "cached_tokens": usage.cached,
                "completion_tokens": usage.generated,
            },
            "metrics": self.metrics.json(),
        })
    }
}

/// Waits for an answer, its text going to stdout as it comes if `stream`. The first forward may be over
/// by now, so those of an answer before it have to be taken before this one begins.
pub fn answer(
    model: &Model,
    generation: Generation,
    interrupt: &Interrupt,
    stream: bool,
) -> Result<Answer> {
    let start = Instant::now();
    interrupt.replace(Some(generation.cancel_handle()));
    let outcome = collect(model, generation, stream, start);
    interrupt.replace(None);
    outcome
}

fn collect(model: &Model, generation: Generation, stream: bool, start: Instant) -> Result<Answer> {
    let (mut text, mut first) = (String::new(), None);
    let is_open = |text: &str| stream && !text.is_empty() && !text.ends_with('\n');
    for event in generation {
        // What went wrong is told on a line of its own.
        if event.is_err() && is_open(&text) {
            output::say("");
        }
        match event? {
            Event::Delta(delta) => {
                first.get_or_insert_with(Instant::now);
                text.push_str(&delta.text);
                if stream {
                    output::exact(delta.text.as_bytes())?;
                }
            }
            Event::Finished(finished) => {
                let mut line_is_open = is_open(&text);
                // A prompt of the shell belongs on a line of its own; a pipe gets the bare text.
                if line_is_open && stdout().is_terminal() {
                    output::exact(b"\n")?;
                    line_is_open = false;
                }
                let metrics = Metrics {
                    first_token: first.map_or(Duration::ZERO, |first| first - start),
                    decode: first.map_or(Duration::ZERO, |first| first.elapsed()),
                    usage: finished.usage,
                    forwards: model.take_forwards(),
                };
                let context = model.context();
                return Ok(Answer {
                    text,
                    metrics,
                    line_is_open,
                    finished,
                    context,
                });
            }
        }
    }
    unreachable!("invariant: an answer ends with `Finished` or an error")
}
