//! `fornax bench batch`: many requests at once through the engine.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::Args;
use fornax::engine::EngineOptions;
use fornax::{
    BackendChoice, Config, GenerateOptions, Isa, KvPolicy, LoadOptions, Profile, PromptPace,
    StepSizes, load_profiled_runner, load_runner,
};

use crate::bench::batch::{Batch, own_pairs, pairs};
use crate::bench::description::Description;
use crate::bench::profile::Profiled;
use crate::bench::progress::Progress;
use crate::misuse::{at_least_one, misuse};
use crate::model::{KvElement, ModelFile, backends, isa_help, prompt_pace};
use crate::output;
use crate::sampling::checked;

/// Run many requests at once through the engine, as an offline job would
#[derive(Args)]
#[command(after_help = "\
Without --workload it is the published one of 256 requests, 142,827 tokens in and 133,966 out:
random prompts, temperature 0.6, no answer stops early, all handed in at once.

Examples:
  fornax bench batch --sequences 8
  fornax bench batch -m synthetic:qwen3-0.6b:q8_0 --sequences 16 --parallel 16
  fornax bench batch -m synthetic:qwen3-0.6b:bf16 --backend cuda --kv-type bf16 --parallel 256 \
    --step-tokens 8192 --kv-tokens 400000 --no-prefix-cache --warm-up")]
pub struct Arguments {
    #[command(flatten)]
    file: ModelFile,
    /// Take only the first N requests of the workload
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    sequences: Option<usize>,
    /// A JSON array of [prompt tokens, answer tokens] instead of the published workload
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Requests that run together
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    parallel: usize,
    /// Tokens that the KV cache holds, at least the longest request
    /// [default: 1024 for each that runs, or the longest request]
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    kv_tokens: Option<usize>,
    /// Tokens of one step
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = at_least_one)]
    step_tokens: usize,
    /// How answers are drawn; 0 takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 0.6)]
    temperature: f32,
    /// How much of new prompts a step takes while answers go on, as of `serve`
    #[arg(long, default_value = "0", value_name = "TIMES|TOKENS", value_parser = prompt_pace)]
    prompt_chunk: PromptPace,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = KvElement::F16)]
    kv_type: KvElement,
    /// Compute every prompt whole, whatever was computed before
    #[arg(long)]
    no_prefix_cache: bool,
    /// Run short requests first, as many as run together, for what happens once: kernels are
    /// compiled and steps captured before the clock starts
    #[arg(long)]
    warm_up: bool,
    /// Where to compute
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = backends())]
    backend: String,
    /// CPU threads [default: one a core]
    #[arg(long, short, value_name = "N", value_parser = at_least_one)]
    threads: Option<usize>,
    #[arg(long, value_name = "NAME", help = isa_help())]
    isa: Option<Isa>,
    /// Tell where the time goes, by operation and by layer, in place of how long it took
    #[arg(long)]
    profile: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.step_tokens < arguments.parallel {
        misuse!("--parallel must be at most --step-tokens");
    }
    checked(GenerateOptions {
        temperature: Some(arguments.temperature),
        ..GenerateOptions::default()
    })?;
    let mut workload = match &arguments.workload {
        None => own_pairs(),
        Some(path) => {
            let name = path.display();
            let text = std::fs::read_to_string(path).with_context(|| {
                format!("{name}: the workload cannot be read; name a JSON file of pairs")
            })?;
            pairs(&text).with_context(|| name.to_string())?
        }
    };
    workload.truncate(arguments.sequences.unwrap_or(usize::MAX));
    if workload.is_empty() {
        bail!("there is no request in the workload; give it a pair");
    }
    let file = arguments.file.source().open()?;
    let config = Config::from_gguf(&file)?;
    // What cannot be added up is more than any model's context.
    let lengths = workload.iter();
    let lengths = lengths.map(|&(prompt, answer)| prompt.saturating_add(answer));
    let longest = lengths.max().unwrap_or(1);
    let options = LoadOptions {
        backend: BackendChoice::from_str(&arguments.backend)?,
        threads: arguments.threads,
        isa: arguments.isa,
        context: Some(longest),
        sequences: arguments.parallel,
        kv_type: arguments.kv_type.kv_type(),
        commits_kv: true,
        ..LoadOptions::default()
    };
    // What is longer than any context is refused as that.
    let is_short = |tokens: &usize| *tokens < longest && longest <= config.context;
    if let Some(tokens) = arguments.kv_tokens.filter(is_short) {
        bail!(
            "--kv-tokens {tokens} cannot hold the longest request, of {longest} tokens; give more"
        );
    }
    let kv_tokens = arguments
        .kv_tokens
        .unwrap_or(arguments.parallel.saturating_mul(1024));
    let sizes = StepSizes {
        tokens: arguments.step_tokens,
        kv_tokens: Some(kv_tokens.max(longest)),
    };
    let progress = Progress::new(workload.len());
    progress.at("loading");
    let model = Description::of(&file, &config).name;
    let sum =
        |of: fn(&(usize, usize)) -> usize| workload.iter().map(of).fold(0, usize::saturating_add);
    let loaded = match arguments.profile {
        true => load_profiled_runner(&file, &options, sizes)?,
        false => load_runner(&file, &options, sizes)?,
    };
    drop(file);
    let title = format!(
        "{model}, {}, {} requests of {} and {} tokens",
        loaded.backend,
        workload.len(),
        sum(|pair| pair.0),
        sum(|pair| pair.1),
    );
    progress.at(&title);
    let options = EngineOptions {
        prompt_pace: arguments.prompt_chunk,
        prefix_cache: !arguments.no_prefix_cache,
        ..KvPolicy::Paged.into()
    };
    let mut batch = Batch::new(loaded.runner, options, arguments.temperature)?;
    if arguments.warm_up {
        batch.warm_up(arguments.parallel, longest)?;
    }
    // Of loading and warming up.
    drop(loaded.profile.as_ref().map(Profile::take));
    let outcome = batch.run(&workload, &progress)?;
    drop(progress);
    if let Some(profile) = loaded.profile {
        let profiled = Profiled::of_one(title, profile.take());
        return match arguments.json {
            true => output::json(&profiled.json()),
            false => output::exact(profiled.text().as_bytes()),
        };
    }
    match arguments.json {
        true => output::json(&outcome.json()),
        false => output::exact(outcome.text().as_bytes()),
    }
}
