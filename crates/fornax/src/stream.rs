//! An answer as it comes: tokens from the engine, turned into text that is certain.

use std::task::{Context, Poll};

use fornax_engine::{
    CancelHandle, EventKind, EventStream, FinishReason, Token, TokenLogprob, Usage,
};
use fornax_text::{Detokenizer, StopStrings};

use crate::Error;

/// One thing that happened to an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The answer grew.
    Delta(Delta),
    /// It is complete; nothing follows.
    Finished(Finished),
}

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Text that is now certain: never half a character, never the beginning of a stop string.
    pub text: String,
    /// The token drawn; `None` where text that was held back is let go.
    pub token: Option<Token>,
    /// Its natural-log probability, where the request wants it.
    pub logprob: Option<f32>,
    /// The most likely tokens in its place, most likely first.
    pub top: Vec<TokenLogprob>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: StopReason,
    /// What it took.
    pub usage: Usage,
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended its turn.
    EndOfTurn,
    /// This stop string came up.
    StopString(String),
    /// The answer has as many tokens as were asked for.
    MaxTokens,
    /// Prompt and answer fill the context.
    ContextFull,
    /// It was cancelled.
    Cancelled,
}

/// The events of one answer, for a thread as an iterator, for a task by
/// [`next_event`](Self::next_event). Dropping it cancels the answer.
pub struct Generation {
    events: EventStream,
    detokenizer: Detokenizer,
    stops: StopStrings,
    stop_texts: Vec<String>,
    /// The stop string found; the engine is then only waited for to end.
    stopped_by: Option<usize>,
    /// How it ended, while held-back text is still to be told.
    finished: Option<Finished>,
    drawn: usize,
    /// Whether it takes part in steps, or did.
    started: bool,
}

impl Generation {
    pub(crate) fn new(
        detokenizer: Detokenizer,
        stop: &[String],
        events: EventStream,
    ) -> Result<Self, Error> {
        Ok(Self {
            events,
            detokenizer,
            stops: StopStrings::new(stop)?,
            stop_texts: stop.to_vec(),
            stopped_by: None,
            finished: None,
            drawn: 0,
            started: false,
        })
    }

    /// Whether its turn has come, as far as its events were read: the task that waits for them is
    /// woken for that too.
    pub fn has_started(&self) -> bool {
        self.started
    }

    /// A handle that ends this answer from anywhere, a signal handler for one.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.events.cancel_handle()
    }

    /// The next event if it is there; else the task is woken once it is worth another look.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event, Error>>> {
        loop {
            if let Some(finished) = self.finished.take() {
                return Poll::Ready(Some(Ok(Event::Finished(finished))));
            }
            let Poll::Ready(told) = self.events.poll_next(context) else {
                return Poll::Pending;
            };
            let Some(told) = told else {
                return Poll::Ready(None);
            };
            if let Some(event) = self.turn(told) {
                return Poll::Ready(Some(event));
            }
        }
    }

    /// Waits for the next event without holding a thread; any async runtime will do.
    pub async fn next_event(&mut self) -> Option<Result<Event, Error>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// The answer broke off.
    pub fn text(self) -> Result<String, Error> {
        let mut text = String::new();
        for event in self {
            if let Event::Delta(delta) = event? {
                text.push_str(&delta.text);
            }
        }
        Ok(text)
    }

    /// What an event of the engine means for the text, if anything.
    fn turn(&mut self, told: EventKind) -> Option<Result<Event, Error>> {
        match told {
            EventKind::Started => {
                self.started = true;
                None
            }
            EventKind::Token { .. } if self.stopped_by.is_some() => None,
            EventKind::Token {
                token,
                logprob,
                top,
            } => Some(self.token(token, logprob, top).map(Event::Delta)),
            EventKind::Finished { reason, usage } => Some(Ok(self.finish(reason, usage))),
            EventKind::Failed(failure) => Some(Err(failure.into())),
            // Only scoring and embedding have these.
            EventKind::Logits { .. } | EventKind::Pooled(_) => None,
        }
    }

    fn token(
        &mut self,
        token: Token,
        logprob: Option<f32>,
        top: Vec<TokenLogprob>,
    ) -> Result<Delta, Error> {
        self.drawn += 1;
        let text = self.detokenizer.push(token)?;
        let stopped = self.stops.push(&text);
        if stopped.by.is_some() {
            self.stopped_by = stopped.by;
            self.events.cancel_handle().cancel();
        }
        Ok(Delta {
            text: stopped.text,
            token: Some(token),
            logprob,
            top,
        })
    }

    /// The end, after whatever text was held back.
    fn finish(&mut self, reason: FinishReason, mut usage: Usage) -> Event {
        let reason = match (self.stopped_by, reason) {
            (Some(by), _) => {
                // Tokens drawn behind the stop string are no part of the answer.
                usage.generated = self.drawn;
                StopReason::StopString(self.stop_texts[by].clone())
            }
            (None, FinishReason::Stop(_) | FinishReason::Complete) => StopReason::EndOfTurn,
            (None, FinishReason::Length) => StopReason::MaxTokens,
            (None, FinishReason::Context) => StopReason::ContextFull,
            (None, FinishReason::Cancelled) => StopReason::Cancelled,
        };
        let finished = Finished { reason, usage };
        let last = self.detokenizer.finish();
        let text = self.stops.push(&last).text + &self.stops.finish();
        if text.is_empty() {
            return Event::Finished(finished);
        }
        self.finished = Some(finished);
        Event::Delta(Delta {
            text,
            ..Delta::default()
        })
    }
}

impl Iterator for Generation {
    type Item = Result<Event, Error>;

    /// Waits for the next event.
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(finished) = self.finished.take() {
            return Some(Ok(Event::Finished(finished)));
        }
        loop {
            let told = self.events.next()?;
            if let Some(event) = self.turn(told) {
                return Some(event);
            }
        }
    }
}
