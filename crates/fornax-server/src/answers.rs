//! The answers of one request, several at once, as one stream of events.

use std::iter;
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
        let generations = generations(app, prompts, sampling)?;
        // Counted only once all of them were taken in.
        let meters = meters(app, request, prompts, sampling.choices);
        Ok(Self::of(generations, meters, place))
    }

    /// Begins answers that are counted already, since their echoes came first.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_behind_echoes(
        app: &App,
        mut meters: Vec<Meter>,
        prompts: &[Vec<Token>],
        sampling: &Sampling,
        place: Place,
    ) -> Result<Self, ApiError> {
        match generations(app, prompts, sampling) {
            Ok(generations) => {
                meters.iter_mut().for_each(Meter::submitted);
                Ok(Self::of(generations, meters, place))
            }
            Err(error) => {
                meters.iter_mut().for_each(Meter::failed);
                Err(error)
            }
        }
    }

    /// Makes sure of all that [`begin`](Self::begin) asks of prompts, before anything is computed.
    ///
    /// # Errors
    /// A prompt that is empty, has unknown tokens or does not fit the context with its answer.
    pub fn check(app: &App, prompts: &[Vec<Token>], sampling: &Sampling) -> Result<(), ApiError> {
        for prompt in prompts {
            app.model.check_tokens(prompt)?;
            // An echo alone has no answer that could be too long.
            if sampling.max_tokens() != Some(0) {
                let options = sampling.options();
                app.model.check_generation(prompt.clone(), options)?;
            }
        }
        Ok(())
    }

    fn of(generations: Vec<Generation>, meters: Vec<Meter>, place: Place) -> Self {
        let answer = |(generation, meter)| Answer {
            generation: Some(generation),
            meter: Some(meter),
        };
        Self {
            answers: generations.into_iter().zip(meters).map(answer).collect(),
            turn: 0,
            _place: place,
        }
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

/// The answers to the first prompt, then those to the second …
fn generations(
    app: &App,
    prompts: &[Vec<Token>],
    sampling: &Sampling,
) -> Result<Vec<Generation>, ApiError> {
    let mut generations = Vec::with_capacity(prompts.len() * sampling.choices);
    for prompt in prompts {
        for options in sampling.of_each_choice() {
            generations.push(app.model.generate_tokens(prompt.clone(), &options)?);
        }
    }
    Ok(generations)
}

/// The clocks of these answers, so many to each prompt.
pub fn meters(
    app: &App,
    request: &RequestId,
    prompts: &[Vec<Token>],
    choices: usize,
) -> Vec<Meter> {
    let answers = prompts
        .iter()
        .flat_map(|prompt| iter::repeat_n(prompt, choices));
    answers
        .map(|prompt| Meter::start(app, request, prompt.len()))
        .collect()
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
