//! The offline workload: many requests handed in at once, through the engine with continuous
//! batching.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fornax::engine::{
    Engine, EngineOptions, EventKind, Request, RequestId, Runner, SamplingParams, Task,
};
use fornax::{Forward, Token};
use serde_json::{Value, json};

use super::progress::Progress;
use super::random::Random;
use super::statistics::{Percentiles, mean};

/// The workload that comes with Fornax: 256 pairs of tokens in and out.
const WORKLOAD: &str = include_str!("../../bench/batch-workload.json");
/// Prompts are random tokens below this.
const TOKENS_BELOW: usize = 10_000;

/// Tokens of a request's prompt and of its answer.
pub type Pair = (usize, usize);

/// Reads a workload: an array of pairs.
pub fn pairs(text: &str) -> Result<Vec<Pair>> {
    let pairs: Vec<Pair> = serde_json::from_str(text)
        .context("the workload is no JSON array of pairs [prompt tokens, answer tokens]")?;
    match pairs
        .iter()
        .position(|&(prompt, answer)| prompt == 0 || answer == 0)
    {
        Some(index) => bail!("pair {index} of the workload has 0 tokens; give each at least 1"),
        None => Ok(pairs),
    }
}

/// The pairs that come with Fornax.
pub fn own_pairs() -> Vec<Pair> {
    pairs(WORKLOAD).expect("invariant: the committed workload is well formed")
}

/// What was measured.
pub struct Outcome {
    requests: usize,
    prompt_tokens: usize,
    generated: usize,
    total: Duration,
    /// Of each request, from the start of all.
    first_tokens: Vec<Duration>,
    /// Between a request's tokens.
    gaps: Vec<Duration>,
    forwards: Vec<Forward>,
}

/// Pairs on an engine.
pub struct Batch {
    engine: Engine<Box<dyn Runner>>,
    temperature: f32,
    random: Random,
}

impl Batch {
    /// Answers will be drawn at this temperature.
    pub fn new(runner: Box<dyn Runner>, options: EngineOptions, temperature: f32) -> Result<Self> {
        Ok(Self {
            engine: Engine::new(runner, options)?,
            temperature,
            random: Random::new(1),
        })
    }

    /// Runs short requests that end one after the other, so that every number of rows came once.
    pub fn warm_up(&mut self, parallel: usize, longest: usize) -> Result<()> {
        let prompt = 16.min(longest.div_ceil(2));
        let answers = (1..=parallel).map(|answer| (prompt, answer.min(longest - prompt).max(1)));
        for (index, pair) in answers.enumerate() {
            self.submit(index, pair)?;
        }
        while self.engine.step().is_some() {
            for event in self.engine.events() {
                if let EventKind::Failed(failure) = event.kind {
                    bail!(failure);
                }
            }
        }
        Ok(())
    }

    /// Runs all pairs to their end; answers never stop early.
    pub fn run(&mut self, pairs: &[Pair], progress: &Progress) -> Result<Outcome> {
        let start = Instant::now();
        let mut last: HashMap<RequestId, Option<Instant>> = HashMap::new();
        for (index, &pair) in pairs.iter().enumerate() {
            last.insert(self.submit(index, pair)?, None);
        }
        let mut outcome = Outcome {
            requests: pairs.len(),
            prompt_tokens: pairs.iter().map(|pair| pair.0).sum(),
            generated: 0,
            total: Duration::ZERO,
            first_tokens: Vec::new(),
            gaps: Vec::new(),
            forwards: Vec::new(),
        };
        let mut before = Instant::now();
        while let Some(step) = self.engine.step() {
            let now = Instant::now();
            let duration = now - before;
            self.engine.took(&step, duration);
            outcome.forwards.push(Forward { step, duration });
            before = now;
            for event in self.engine.events() {
                match event.kind {
                    EventKind::Token { .. } => {
                        outcome.generated += 1;
                        match last.insert(event.request, Some(now)).flatten() {
                            Some(last) => outcome.gaps.push(now - last),
                            None => outcome.first_tokens.push(now - start),
                        }
                    }
                    EventKind::Finished { .. } => progress.step(),
                    EventKind::Failed(failure) => bail!(failure),
                    EventKind::Started | EventKind::Logits { .. } | EventKind::Pooled(_) => {}
                }
            }
        }
        outcome.total = start.elapsed();
        Ok(outcome)
    }

    /// Hands in a random prompt of so many tokens, for an answer of so many.
    fn submit(&mut self, index: usize, (prompt, answer): Pair) -> Result<RequestId> {
        let below = self.engine.bounds().vocabulary.min(TOKENS_BELOW);
        let prompt = (0..prompt).map(|_| self.random.below(below) as Token);
        let sampling = SamplingParams {
            temperature: self.temperature,
            seed: index as u64,
            ..SamplingParams::greedy()
        };
        let mut request = Request::generate(prompt.collect(), sampling);
        if let Task::Generate(generation) = &mut request.task {
            generation.max_tokens = Some(answer);
        }
        Ok(self.engine.submit(request)?)
    }
}

impl Outcome {
    /// For a program.
    pub fn json(&self) -> Value {
        let seconds = self.total.as_secs_f64();
        let of_forwards = |of: fn(&Forward) -> usize| {
            let values: Vec<f64> = self
                .forwards
                .iter()
                .map(|forward| of(forward) as f64)
                .collect();
            mean(&values)
        };
        let preempted: usize = self
            .forwards
            .iter()
            .map(|forward| forward.step.preempted)
            .sum();
        json!({
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.generated,
            "seconds": seconds,
            "requests_per_second": self.requests as f64 / seconds,
            "prompt_ts": self.prompt_tokens as f64 / seconds,
            "output_ts": self.generated as f64 / seconds,
            "first_token_ms": milliseconds(&self.first_tokens),
            "inter_token_ms": milliseconds(&self.gaps),
            "forward_ms": Percentiles::of(
                self.forwards.iter().map(|forward| forward.duration.as_secs_f64() * 1e3)
            ),
            "forwards": self.forwards.len(),
            "sequences_per_forward": of_forwards(|forward| forward.step.rows),
            "tokens_per_forward": of_forwards(|forward| forward.step.tokens),
            "preemptions": preempted,
        })
    }

    /// For a person.
    pub fn text(&self) -> String {
        let told = self.json();
        let number = |name: &str| told[name].as_f64().unwrap_or(0.0);
        let three = |name: &str| {
            let parts = ["p50", "p90", "p99"].map(|part| match told[name][part].as_f64() {
                Some(time) => format!("{time:>10.2}"),
                None => format!("{:>10}", "-"),
            });
            parts.join(" ")
        };
        format!(
            "requests           {:>10} in {:.2} s ({:.2} a second)\n\
             prompt tokens      {:>10} ({:.1} a second)\n\
             output tokens      {:>10} ({:.1} a second)\n\
             forwards           {:>10} of {:.1} sequences and {:.1} tokens on average, {} preemptions\n\n\
             ms                        p50        p90        p99\n\
             first token        {}\n\
             inter-token        {}\n\
             forward            {}\n",
            self.requests,
            number("seconds"),
            number("requests_per_second"),
            self.prompt_tokens,
            number("prompt_ts"),
            self.generated,
            number("output_ts"),
            self.forwards.len(),
            number("sequences_per_forward"),
            number("tokens_per_forward"),
            told["preemptions"],
            three("first_token_ms"),
            three("inter_token_ms"),
            three("forward_ms"),
        )
    }
}

/// `None` where nothing was measured.
fn milliseconds(durations: &[Duration]) -> Option<Percentiles> {
    let times = durations.iter().map(|time| time.as_secs_f64() * 1e3);
    (!durations.is_empty()).then(|| Percentiles::of(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_is_the_published_one() {
        let pairs = own_pairs();
        let sum = |of: fn(&Pair) -> usize| pairs.iter().map(of).sum::<usize>();
        assert_eq!(pairs.len(), 256);
        assert_eq!((sum(|pair| pair.0), sum(|pair| pair.1)), (142_827, 133_966));
    }

    #[test]
    fn a_workload_of_something_else_is_told() {
        for (text, part) in [("{}", "array of pairs"), ("[[1, 2], [3, 0]]", "pair 1")] {
            let error = format!("{:#}", pairs(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
