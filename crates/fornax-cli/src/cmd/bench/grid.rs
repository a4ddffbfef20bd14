//! Which tests are run with which settings: the flags of `fornax bench` and their combinations.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;
use fornax::Isa;

use crate::bench::driver::Test;
use crate::bench::ranges::{Numbers, all};
use crate::misuse::{at_least_one, misuse};
use crate::model::{Kv, KvElement, Weights, backends, isa_help};

#[derive(Args)]
#[command(next_help_heading = "Tests")]
pub struct Tests {
    /// Tokens of a prompt; 0 for no such test
    #[arg(long, short = 'p', value_name = "N,…", default_value = "512")]
    pub n_prompt: Vec<Numbers>,
    /// Tokens to generate; 0 for no such test
    #[arg(long, short = 'n', value_name = "N,…", default_value = "128")]
    pub n_gen: Vec<Numbers>,
    /// A prompt and then tokens, measured together; -pg for short, may be repeated
    #[arg(long = "pg", value_name = "P,N", value_parser = pair)]
    pub prompt_gen: Vec<(usize, usize)>,
    /// Tokens that stand before what is measured
    #[arg(long, short = 'd', value_name = "N,…", default_value = "0")]
    pub n_depth: Vec<Numbers>,
    /// Sequences that run together; -npl for short
    #[arg(long, value_name = "N,…", default_value = "1")]
    pub parallel: Vec<Numbers>,
    /// Runs of each test
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    pub repetitions: usize,
    /// Measure without a run before
    #[arg(long)]
    pub no_warmup: bool,
}

#[derive(Args)]
#[command(next_help_heading = "Settings")]
pub struct Settings {
    /// CPU threads [default: one a core]
    #[arg(long, short, value_name = "N,…")]
    pub threads: Vec<Numbers>,
    #[arg(long, value_name = "NAME", help = isa_help())]
    pub isa: Option<Isa>,
    /// Tokens of a logical batch
    #[arg(long, short, value_name = "N,…", default_value = "2048")]
    pub batch_size: Vec<Numbers>,
    /// Tokens of one step, at most those of a batch; -ub for short
    #[arg(long, value_name = "N,…", default_value = "512")]
    pub ubatch_size: Vec<Numbers>,
    /// Where to compute
    #[arg(long, value_name = "NAME,…", default_value = "auto", value_delimiter = ',', value_parser = backends())]
    pub backend: Vec<String>,
    /// How keys and values are kept from token to token
    #[arg(
        long,
        value_name = "KV,…",
        value_enum,
        default_value = "paged",
        value_delimiter = ','
    )]
    pub kv: Vec<Kv>,
    /// Element type of keys and values
    #[arg(
        long,
        value_name = "TYPE,…",
        value_enum,
        default_value = "f16",
        value_delimiter = ','
    )]
    pub kv_type: Vec<KvElement>,
    /// Multiply weights as the file has them, or decoded to f32
    #[arg(
        long,
        value_name = "W,…",
        value_enum,
        default_value = "native",
        value_delimiter = ','
    )]
    pub weights: Vec<Weights>,
    /// Do not measure what this machine can do at most
    #[arg(long)]
    pub no_ceilings: bool,
}

/// What a runner is loaded with.
#[derive(Clone, Copy)]
pub struct Loading<'a> {
    pub backend: &'a str,
    pub threads: Option<usize>,
    pub weights: Weights,
    pub kv_type: KvElement,
}

/// A test and the sizes of batches that it is told with.
#[derive(Clone, Copy)]
pub struct Case {
    pub test: Test,
    pub n_batch: usize,
    pub n_ubatch: usize,
}

impl Tests {
    /// Every test, in the order in which `llama-bench` runs them.
    pub fn grid(&self, settings: &Settings) -> Result<Vec<Case>> {
        let (prompts, generated) = (all(&self.n_prompt), all(&self.n_gen));
        let prompts = prompts.iter().map(|&prompt| (prompt, 0));
        let generated = generated.iter().map(|&generate| (0, generate));
        let pairs = prompts.chain(generated).chain(self.prompt_gen.clone());
        let pairs: Vec<_> = pairs.filter(|&pair| pair != (0, 0)).collect();
        if pairs.is_empty() {
            misuse!("there is nothing to measure: give -p, -n or -pg more than 0 tokens");
        }
        let mut grid = Vec::new();
        for n_batch in all(&settings.batch_size) {
            for n_ubatch in all(&settings.ubatch_size) {
                for parallel in all(&self.parallel) {
                    for depth in all(&self.n_depth) {
                        for &(prompt, generate) in &pairs {
                            let batch = n_batch.min(n_ubatch);
                            let test = Test {
                                prompt,
                                generate,
                                depth,
                                parallel,
                                batch,
                            };
                            grid.push(Case {
                                test,
                                n_batch,
                                n_ubatch,
                            });
                        }
                    }
                }
            }
        }
        if grid.iter().any(|case| case.test.batch == 0) {
            misuse!("a batch of 0 tokens gets nowhere; give -b and -ub at least 1");
        }
        if grid.iter().any(|case| case.test.parallel == 0) {
            misuse!("0 sequences do nothing; give --parallel at least 1");
        }
        if all(&settings.threads).contains(&0) {
            misuse!("0 threads cannot compute; give --threads at least 1");
        }
        Ok(grid)
    }
}

impl Settings {
    pub fn loadings(&self) -> Vec<Loading<'_>> {
        let mut threads: Vec<Option<usize>> = all(&self.threads).into_iter().map(Some).collect();
        if threads.is_empty() {
            threads.push(None);
        }
        let mut loadings = Vec::new();
        for backend in &self.backend {
            for &weights in &self.weights {
                for &kv_type in &self.kv_type {
                    loadings.extend(threads.iter().map(|&threads| Loading {
                        backend,
                        threads,
                        weights,
                        kv_type,
                    }));
                }
            }
        }
        loadings
    }

    /// Which settings get a column of their own.
    pub fn unusual(&self) -> Vec<&'static str> {
        let mut unusual = Vec::new();
        let mut column = |name, is_unusual| {
            if is_unusual {
                unusual.push(name);
            }
        };
        column("n_batch", all(&self.batch_size) != [2048]);
        column("n_ubatch", all(&self.ubatch_size) != [512]);
        column("type_kv", self.kv_type != [KvElement::F16]);
        column("kv", self.kv != [Kv::Paged]);
        column("weights", self.weights != [Weights::Native]);
        unusual
    }
}

impl Loading<'_> {
    /// As a table has them.
    pub fn threads(&self) -> usize {
        match (self.backend, self.threads) {
            ("scalar" | "simd" | "cuda", _) => 1,
            (_, Some(threads)) => threads,
            (_, None) => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let (prompt, generate) = text
        .split_once(',')
        .ok_or("write tokens of the prompt, a comma, tokens to generate: 512,128")?;
    let wrong = |text: &str| format!("`{text}` is no whole number from 0 on; write 512,128");
    let number = |text: &str| text.parse().map_err(|_| wrong(text));
    Ok((number(prompt)?, number(generate)?))
}

/// Two-letter options of `llama-bench` behind one dash, which no parser of today's style knows.
const SHORT: [(&str, &str); 3] = [
    ("-pg", "--pg"),
    ("-npl", "--parallel"),
    ("-ub", "--ubatch-size"),
];

/// The long form of what `llama-bench` writes with one dash, if these are arguments of `bench`.
pub fn long_options(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    if arguments.get(1).is_some_and(|command| command == "bench") {
        for argument in &mut arguments[2..] {
            let text = argument.to_string_lossy();
            let name = text.split_once('=').map_or(&*text, |(name, _)| name);
            if let Some((short, long)) = SHORT.iter().find(|(short, _)| *short == name) {
                *argument = format!("{long}{}", &text[short.len()..]).into();
            }
        }
    }
    arguments
}
