//! The ladder: one model with one optimisation more on every rung, through the engine itself.

mod picture;

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fornax::engine::{
    Engine, EngineOptions, EventKind, Request, Runner, SamplingParams, StepStats, Task,
};
use fornax::gguf::Gguf;
use fornax::{
    BackendChoice, Isa, KvPolicy, KvType, LoadOptions, StepSizes, Token, WeightStorage, load_runner,
};
use serde_json::{Value, json};

use super::random::Random;
pub use picture::svg;

/// Tokens of the prompt before the tokens whose forwards are compared: few, so that a rung without
/// a cache can show how it slows down.
const SHORT_PROMPT: usize = 8;
/// Tokens of the prompt of the first run, which tells how long a rung takes.
const PROBE: usize = 4;
/// Most measurements of a prompt; the median counts.
const PROMPTS: usize = 5;

/// One rung.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rung {
    /// What it adds.
    pub name: &'static str,
    backend: BackendChoice,
    kv: KvPolicy,
    weights: WeightStorage,
    /// Whether it is left out on a machine that cannot climb it.
    device: bool,
}

/// Every rung of this program, lowest first.
pub fn rungs() -> Vec<Rung> {
    let rung = |name, backend, kv, weights| Rung {
        name,
        backend,
        kv,
        weights,
        device: false,
    };
    let (scalar, simd, parallel) = (
        BackendChoice::Scalar,
        BackendChoice::Simd,
        BackendChoice::Parallel,
    );
    let (f32, native) = (WeightStorage::F32, WeightStorage::Native);
    let mut rungs = vec![
        rung("scalar, no KV", scalar, KvPolicy::None, f32),
        rung("+ KV", scalar, KvPolicy::Basic, f32),
        rung("+ SIMD", simd, KvPolicy::Basic, f32),
        rung("+ threads", parallel, KvPolicy::Basic, f32),
        rung("+ native weights", parallel, KvPolicy::Basic, native),
        rung("+ paged KV", parallel, KvPolicy::Paged, native),
    ];
    let devices = [("cuda", "+ GPU (CUDA)"), ("metal", "+ GPU (Metal)")];
    for &(called, backend) in BackendChoice::ALL {
        let Some((_, name)) = devices.iter().find(|(device, _)| *device == called) else {
            continue;
        };
        rungs.push(Rung {
            device: true,
            ..rung(name, backend, KvPolicy::Paged, native)
        });
    }
    rungs
}

/// How far each rung is measured.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Tokens of the prompt, fewer where a rung would take too long.
    pub prompt: usize,
    /// Tokens generated, fewer where a rung would take too long.
    pub generate: usize,
    /// Time for the prompt and again for the tokens.
    pub limit: Duration,
    /// CPU threads of the rungs that use several.
    pub threads: Option<usize>,
    /// Instructions of the rungs on vectors; `None` for the best that the processor has.
    pub isa: Option<Isa>,
    /// Element type of K and V.
    pub kv_type: KvType,
}

/// A rung, climbed.
#[derive(Clone, Debug, PartialEq)]
pub struct Climbed {
    pub name: &'static str,
    pub backend: String,
    /// Tokens of the prompt measured.
    pub prompt: usize,
    /// From the request to its first token.
    pub first_token: Duration,
    /// Each generated token's position and the time of its forward.
    pub forwards: Vec<(usize, Duration)>,
}

impl Climbed {
    fn prefill_rate(&self) -> f64 {
        self.prompt as f64 / self.first_token.as_secs_f64()
    }

    fn decode_rate(&self) -> f64 {
        self.forwards.len() as f64 / seconds(&self.forwards)
    }

    /// How many times as fast as `below`: prompts, and tokens at the positions that both have.
    fn gain(&self, below: &Climbed) -> (f64, f64) {
        let common = self.forwards.len().min(below.forwards.len());
        let decode = seconds(&below.forwards[..common]) / seconds(&self.forwards[..common]);
        (self.prefill_rate() / below.prefill_rate(), decode)
    }
}

fn seconds(forwards: &[(usize, Duration)]) -> f64 {
    let total: Duration = forwards.iter().map(|(_, time)| *time).sum();
    total.as_secs_f64()
}

/// Climbs a rung. `None` where it needs a device that is not there.
pub fn climb(file: &Gguf, rung: &Rung, extent: &Extent) -> Result<Option<Climbed>> {
    let options = LoadOptions {
        backend: rung.backend,
        threads: extent
            .threads
            .filter(|_| rung.backend == BackendChoice::Parallel),
        isa: extent
            .isa
            .filter(|_| rung.backend != BackendChoice::Scalar && !rung.device),
        kv: rung.kv,
        kv_type: extent.kv_type,
        weights: rung.weights,
        context: Some(
            extent
                .prompt
                .max(SHORT_PROMPT.saturating_add(extent.generate))
                .saturating_add(1),
        ),
        sequences: 1,
        ..LoadOptions::default()
    };
    let sizes = StepSizes {
        tokens: 512,
        kv_tokens: None,
    };
    let loaded = match load_runner(file, &options, sizes) {
        Err(_) if rung.device => return Ok(None),
        loaded => loaded?,
    };
    let options = EngineOptions {
        prefix_cache: false,
        ..rung.kv.into()
    };
    let mut engine = Engine::new(loaded.runner, options)?;
    // Not measured: what happens once.
    let probe = generate(&mut engine, PROBE, 2, extent.limit)?;
    let prompt = affordable(extent, probe[0] / PROBE as u32);
    let mut prompts = Vec::new();
    let start = Instant::now();
    while prompts.is_empty() || (start.elapsed() < extent.limit / 2 && prompts.len() < PROMPTS) {
        prompts.push(generate(&mut engine, prompt, 1, extent.limit)?[0]);
    }
    prompts.sort();
    let times = generate(
        &mut engine,
        SHORT_PROMPT,
        extent.generate.saturating_add(1),
        extent.limit,
    )?;
    let forwards = times[1..].iter().enumerate();
    Ok(Some(Climbed {
        name: rung.name,
        backend: loaded.backend,
        prompt,
        first_token: prompts[prompts.len() / 2],
        forwards: forwards
            .map(|(index, &time)| (SHORT_PROMPT + index + 1, time))
            .collect(),
    }))
}

/// The longest prompt, halved from the one asked for, that stays within the limit.
fn affordable(extent: &Extent, token: Duration) -> usize {
    let mut prompt = extent.prompt;
    while prompt > PROBE && token * prompt as u32 > extent.limit {
        prompt /= 2;
    }
    prompt
}

/// The time to each token of an answer; after `limit` no further one is waited for, but for the
/// second.
fn generate(
    engine: &mut Engine<Box<dyn Runner>>,
    prompt: usize,
    tokens: usize,
    limit: Duration,
) -> Result<Vec<Duration>> {
    let mut random = Random::new(prompt as u64);
    let vocabulary = engine.bounds().vocabulary;
    let prompt = (0..prompt).map(|_| random.below(vocabulary) as Token);
    let mut request = Request::generate(prompt.collect(), SamplingParams::greedy());
    if let Task::Generate(generation) = &mut request.task {
        generation.max_tokens = Some(tokens);
    }
    let id = engine.submit(request)?;
    let (mut times, start) = (Vec::new(), Instant::now());
    let mut last = start;
    while let Some(StepStats { .. }) = engine.step() {
        let now = Instant::now();
        for event in engine.events() {
            match event.kind {
                EventKind::Token { .. } => times.push(now - std::mem::replace(&mut last, now)),
                EventKind::Failed(failure) => bail!(failure),
                _ => {}
            }
        }
        if times.len() > 1 && start.elapsed() > limit {
            engine.cancel(id);
        }
    }
    engine.events().for_each(drop);
    Ok(times)
}

/// A table for a person.
pub fn table(climbed: &[Climbed]) -> String {
    let mut text = String::from(
        "| rung             | backend                      |       prefill t/s | first token ms |          forward ms |      decode t/s | gain prefill | gain decode |\n\
         | ---------------- | ---------------------------- | ----------------: | -------------: | ------------------: | --------------: | -----------: | ----------: |\n",
    );
    let mut below: Option<&Climbed> = None;
    for rung in climbed {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let forward =
            |at: Option<&(usize, Duration)>| at.map_or(0.0, |(_, time)| milliseconds(*time));
        let (first, last) = (
            forward(rung.forwards.first()),
            forward(rung.forwards.last()),
        );
        let gain = below.map(|below| rung.gain(below));
        let times = |gain: Option<f64>| gain.map_or("".to_owned(), |gain| format!("{gain:.2} ×"));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {:<16} | {:<28} | {:>17} | {:>14.2} | {:>19} | {:>15} | {:>12} | {:>11} |",
            rung.name,
            rung.backend,
            format!("{:.2} (of {})", rung.prefill_rate(), rung.prompt),
            milliseconds(rung.first_token),
            format!("{first:.2} … {last:.2}"),
            format!("{:.2} (of {})", rung.decode_rate(), rung.forwards.len()),
            times(gain.map(|gain| gain.0)),
            times(gain.map(|gain| gain.1)),
        );
        below = Some(rung);
    }
    text += "\n(of N): tokens measured. forward: the first and the last of them, at growing positions.\n\
             gain: over the rung above in this table; of decode at the positions that both have.\n";
    text
}

/// For a program.
pub fn machine_form(climbed: &[Climbed]) -> Vec<Value> {
    let rung = |rung: &Climbed| {
        let forwards: Vec<Value> = rung
            .forwards
            .iter()
            .map(|(position, time)| json!([position, time.as_secs_f64() * 1e3]))
            .collect();
        json!({
            "rung": rung.name,
            "backend": rung.backend,
            "prompt_tokens": rung.prompt,
            "prefill_ts": rung.prefill_rate(),
            "first_token_ms": rung.first_token.as_secs_f64() * 1e3,
            "decode_ts": rung.decode_rate(),
            "forward_ms_by_position": forwards,
        })
    };
    climbed.iter().map(rung).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn climbed(prompt: usize, milliseconds: &[u64]) -> Climbed {
        Climbed {
            name: "+ KV",
            backend: "cpu".to_owned(),
            prompt,
            first_token: Duration::from_secs(1),
            forwards: milliseconds
                .iter()
                .enumerate()
                .map(|(at, &time)| (9 + at, Duration::from_millis(time)))
                .collect(),
        }
    }

    #[test]
    fn gains_compare_equal_positions() {
        let (below, above) = (climbed(8, &[10, 20]), climbed(32, &[5, 5, 100, 100]));
        assert_eq!(above.gain(&below), (4.0, 3.0));
        let text = table(&[below, above]);
        let row: Vec<&str> = text
            .lines()
            .nth(3)
            .unwrap()
            .split('|')
            .map(str::trim)
            .collect();
        assert_eq!(
            row[1..9],
            [
                "+ KV",
                "cpu",
                "32.00 (of 32)",
                "1000.00",
                "5.00 … 100.00",
                "19.05 (of 4)",
                "4.00 ×",
                "3.00 ×"
            ]
        );
    }

    #[test]
    fn a_slow_rung_is_given_a_shorter_prompt() {
        let extent = Extent {
            prompt: 512,
            generate: 8,
            limit: Duration::from_secs(1),
            threads: None,
            isa: None,
            kv_type: KvType::F16,
        };
        for (token_ms, prompt) in [(1, 512), (3, 256), (200, 4), (9000, 4)] {
            assert_eq!(affordable(&extent, Duration::from_millis(token_ms)), prompt);
        }
    }
}
