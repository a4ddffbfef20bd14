//! The answers of one request, several at once, as one stream of events.

use std::task::{Context, Poll};

use fornax::{Event, Generation, StopReason, Token};

use crate::app::App;
use crate::gate::Place;
use crate::journal::RequestId;
use crate::metrics::Meter;
use crate::openai::error::ApiError;
use crate::openai::logprobs::Drawn;
use crate::openai::sampling::Sampling;
use crate::openai::usage::Usage;

/// Answers that are being made. Dropping this cancels those that have not ended.
pub struct Answers {
    answers: Vec<Answer>,
    /// Who is looked at first, so that none is told before the others every time.
    turn: usize,
    /// Held until all have ended.
    _place: Place,
}

struct Answer {
    /// `None` once it has ended.
    generation: Option<Generation>,
    /// `None` once it has ended.
    meter: Option<Meter>,
}

/// An answer that is complete.
#[derive(Default)]
pub struct Collected {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub drawn: Vec<Drawn>,
    /// Why it ended, in the protocol's word.
    pub finish_reason: &'static str,
}

impl Answers {
    /// Begins the answers to these prompts: those to the first, then those to the second …
    ///
    /// # Errors
    /// A prompt that does not fit the context, a value out of range.
    pub fn begin(
        app: &App,
        request: &RequestId,
        prompts: &[Vec<Token>],
        sampling: &Sampling,
        place: Place,
    ) -> Result<Self, ApiError> {
        let mut begun = Vec::with_capacity(prompts.len() * sampling.choices);
        for prompt in prompts {
            for options in sampling.of_each_choice() {
                let generation = app.model.generate_tokens(prompt.clone(), &options)?;
                begun.push((prompt.len(), generation));
            }
        }
        // Counted only once all of them were taken in.
        let answer = |(prompt, generation)| Answer {
            generation: Some(generation),
            meter: Some(Meter::start(app, request, prompt)),
        };
        Ok(Self {
            answers: begun.into_iter().map(answer).collect(),
            turn: 0,
            _place: place,
        })
    }

    /// Waits for all of them, and adds what they took to the usage of their prompts. So many
    /// `choices` in a row answer the same prompt.
    ///
    /// # Errors
    /// One of them broke off.
    pub async fn collect(
        mut self,
        mut usage: Usage,
        choices: usize,
    ) -> Result<(Vec<Collected>, Usage), ApiError> {
        let mut collected = Vec::new();
        collected.resize_with(self.answers.len(), Collected::default);
        while let Some((index, event)) = self.next().await? {
            let answer = &mut collected[index];
            match event {
                Event::Delta(mut delta) => {
                    answer.text.push_str(&delta.text);
                    answer.drawn.extend(Drawn::of(&mut delta));
                }
                Event::Finished(finished) => {
                    usage.add(finished.usage, index.is_multiple_of(choices));
                    answer.finish_reason = finish_reason(&finished.reason);
                }
            }
        }
        Ok((collected, usage))
    }

    /// Waits for the next event of any answer, and says whose it is; `None` once all have ended.
    ///
    /// # Errors
    /// One of them broke off.
    pub async fn next(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        let told = std::future::poll_fn(|context| self.poll_next(context)).await;
        match told {
            None => Ok(None),
            Some((index, Ok(event))) => Ok(Some((index, event))),
            Some((_, Err(error))) => Err(error.into()),
        }
    }

    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<(usize, Result<Event, fornax::Error>)>> {
        let (count, mut waits) = (self.answers.len(), false);
        for offset in 0..count {
            let index = (self.turn + offset) % count;
            match self.answers[index].poll_next(context) {
                Poll::Pending => waits = true,
                Poll::Ready(None) => {}
                Poll::Ready(Some(told)) => {
                    self.turn = index + 1;
                    return Poll::Ready(Some((index, told)));
                }
            }
        }
        if waits {
            Poll::Pending
        } else {
            Poll::Ready(None)
        }
    }
}

/// Why an answer ended, in the protocol's word.
pub fn finish_reason(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::EndOfTurn | StopReason::StopString(_) => "stop",
        StopReason::MaxTokens | StopReason::ContextFull => "length",
        StopReason::Cancelled => "abort",
    }
}

impl Answer {
    fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Event, fornax::Error>>> {
        let Some(generation) = &mut self.generation else {
            return Poll::Ready(None);
        };
        let told = generation.poll_next(context);
        if generation.has_started()
            && let Some(meter) = &mut self.meter
        {
            meter.started();
        }
        if let (Poll::Ready(Some(told)), Some(meter)) = (&told, &mut self.meter) {
            let is_last = match told {
                Ok(Event::Delta(delta)) => {
                    if delta.token.is_some() {
                        meter.token();
                    }
                    false
                }
                Ok(Event::Finished(finished)) => {
                    meter.finished(&finished.reason);
                    true
                }
                Err(_) => {
                    meter.failed();
                    true
                }
            };
            if is_last {
                (self.generation, self.meter) = (None, None);
            }
        }
        told
    }
}
