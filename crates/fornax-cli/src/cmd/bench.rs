//! `fornax bench`: how fast a model is here. Chooses what is measured; measuring is `bench/`'s.

use std::ffi::OsString;
use std::str::FromStr;

use anyhow::{Result, bail};
use clap::Args;
use fornax::gguf::Gguf;
use fornax::{BackendChoice, Ceilings, Config, LoadOptions, LoadedRunner, StepSizes, load_runner};

use crate::bench::description::Description;
use crate::bench::driver::{Driver, Run, Test};
use crate::bench::progress::Progress;
use crate::bench::ranges::{Numbers, all};
use crate::bench::report::{Format, Record, Report, Setting, Shown};
use crate::bench::work::Work;
use crate::builtin;
use crate::model::{Kv, KvElement, Weights, backends, flag_value};
use crate::model_name::ModelName;

/// Measure how fast a model is on this machine
#[derive(Args)]
#[command(after_help = "\
Options and the first table are those of llama-bench, so that both can be laid side by side. Every
number may be a list 1,2,4 or a range: 1-4, 0-4096+1024, 128-512*2. A test ppN puts a prompt of N
random tokens through the model, tgN generates N tokens one by one; both after a warm-up.
The second table has the time to the first token, the duration of each forward, and the bytes read
and multiplied a second, beside what this machine can do at most.

Examples:
  fornax bench
  fornax bench -m qwen3-0.6b-q8_0.gguf -p 512 -n 128 -t 1,2
  fornax bench -m synthetic:qwen3-0.6b:q8_0 -p 512 -n 64 -d 0,4096 -o json
  fornax bench -m synthetic:qwen3-0.6b:q8_0 -p 0 -n 64 -d 512 -npl 1-8*2")]
pub struct Arguments {
    /// GGUF files, or synthetic:SHAPE:TYPE; without any the small model inside this program
    #[arg(long, short, value_name = "FILE,…", value_delimiter = ',')]
    model: Vec<ModelName>,
    #[command(flatten)]
    tests: Tests,
    #[command(flatten)]
    settings: Settings,
    /// Form of the output
    #[arg(long, short, value_enum, default_value_t = Format::Md)]
    output: Format,
}

#[derive(Args)]
#[command(next_help_heading = "Tests")]
struct Tests {
    /// Tokens of a prompt; 0 for no such test
    #[arg(long, short = 'p', value_name = "N,…", default_value = "512")]
    n_prompt: Vec<Numbers>,
    /// Tokens to generate; 0 for no such test
    #[arg(long, short = 'n', value_name = "N,…", default_value = "128")]
    n_gen: Vec<Numbers>,
    /// A prompt and then tokens, measured together; -pg for short, may be repeated
    #[arg(long = "pg", value_name = "P,N", value_parser = pair)]
    prompt_gen: Vec<(usize, usize)>,
    /// Tokens that stand before what is measured
    #[arg(long, short = 'd', value_name = "N,…", default_value = "0")]
    n_depth: Vec<Numbers>,
    /// Sequences that run together; -npl for short
    #[arg(long, value_name = "N,…", default_value = "1")]
    parallel: Vec<Numbers>,
    /// Runs of each test
    #[arg(long, short, value_name = "N", default_value_t = 5)]
    repetitions: usize,
    /// Measure without a run before
    #[arg(long)]
    no_warmup: bool,
}

#[derive(Args)]
#[command(next_help_heading = "Settings")]
struct Settings {
    /// CPU threads [default: one a core]
    #[arg(long, short, value_name = "N,…")]
    threads: Vec<Numbers>,
    /// Tokens of a logical batch
    #[arg(long, short, value_name = "N,…", default_value = "2048")]
    batch_size: Vec<Numbers>,
    /// Tokens of one step, at most those of a batch; -ub for short
    #[arg(long, value_name = "N,…", default_value = "512")]
    ubatch_size: Vec<Numbers>,
    /// Where to compute
    #[arg(long, value_name = "NAME,…", default_value = "auto", value_delimiter = ',', value_parser = backends())]
    backend: Vec<String>,
    /// How keys and values are kept from token to token
    #[arg(
        long,
        value_name = "KV,…",
        value_enum,
        default_value = "paged",
        value_delimiter = ','
    )]
    kv: Vec<Kv>,
    /// Element type of keys and values
    #[arg(
        long,
        value_name = "TYPE,…",
        value_enum,
        default_value = "f16",
        value_delimiter = ','
    )]
    kv_type: Vec<KvElement>,
    /// Multiply weights as the file has them, or decoded to f32
    #[arg(
        long,
        value_name = "W,…",
        value_enum,
        default_value = "native",
        value_delimiter = ','
    )]
    weights: Vec<Weights>,
    /// Do not measure what this machine can do at most
    #[arg(long)]
    no_ceilings: bool,
}

/// What a runner is loaded with.
#[derive(Clone, Copy)]
struct Loading<'a> {
    backend: &'a str,
    threads: Option<usize>,
    weights: Weights,
    kv_type: KvElement,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let grid = arguments.tests.grid(&arguments.settings)?;
    let loadings = arguments.settings.loadings();
    let built_in = [None];
    let named: Vec<Option<&ModelName>> = arguments.model.iter().map(Some).collect();
    let models = if named.is_empty() {
        &built_in[..]
    } else {
        &named
    };
    let runs = models.len() * loadings.len() * arguments.settings.kv.len() * grid.len();
    let progress = Progress::new(runs * arguments.tests.repetitions);

    let mut report = Report::new(arguments.output, &arguments.settings.unusual());
    progress.print(&report.head())?;
    for model in models {
        let bench = Bench {
            arguments,
            grid: &grid,
            progress: &progress,
        };
        let source = model.map_or_else(builtin::source, ModelName::source);
        progress.at(format_args!("opening {}", file_name(*model)));
        bench.model(&source.open()?, *model, &loadings, &mut report)?;
    }
    progress.print(&report.tail())
}

fn file_name(model: Option<&ModelName>) -> String {
    model.map_or_else(|| builtin::NAME.to_owned(), ToString::to_string)
}

/// What stays the same from model to model.
struct Bench<'a> {
    arguments: &'a Arguments,
    grid: &'a [Case],
    progress: &'a Progress,
}

/// A test and the sizes of batches that it is told with.
#[derive(Clone, Copy)]
struct Case {
    test: Test,
    n_batch: usize,
    n_ubatch: usize,
}

impl Bench<'_> {
    fn model(
        &self,
        file: &Gguf,
        name: Option<&ModelName>,
        loadings: &[Loading<'_>],
        report: &mut Report,
    ) -> Result<()> {
        let config = Config::from_gguf(file)?;
        let description = Description::of(file, &config);
        for loading in loadings {
            let ceilings = self.ceilings(loading)?;
            for &kv in &self.arguments.settings.kv {
                self.progress
                    .at(format_args!("{}: loading", description.name));
                let work = Work::of(file, &config, loading.kv_type.kv_type());
                let LoadedRunner { runner, backend } = self.load(file, loading)?;
                let mut driver = Driver::new(runner, work, kv.policy());
                for case in self.grid {
                    let setting = Setting {
                        backend: without_threads(&backend),
                        model_filename: file_name(name),
                        model_type: description.name.clone(),
                        model_size: description.bytes,
                        model_n_params: description.parameters,
                        n_batch: case.n_batch,
                        n_ubatch: case.n_ubatch,
                        n_threads: loading.threads(),
                        kv_type: flag_value(loading.kv_type),
                        kv: flag_value(kv),
                        weights: flag_value(loading.weights),
                        ceilings,
                    };
                    let record = self.case(&mut driver, case, setting)?;
                    let shown = Shown::new(description.size(), description.parameters());
                    self.progress.print(&report.push(record, shown))?;
                }
            }
        }
        Ok(())
    }

    fn case(&self, driver: &mut Driver, case: &Case, setting: Setting) -> Result<Record> {
        let tests = &self.arguments.tests;
        let mut runs: Vec<Run> = Vec::with_capacity(tests.repetitions);
        let test = &case.test;
        self.progress
            .at(format_args!("{} {test}", setting.model_type));
        if !tests.no_warmup {
            driver.warm_up(test)?;
        }
        for _ in 0..tests.repetitions {
            runs.push(driver.run(test)?);
            self.progress.step();
        }
        Ok(Record::new(setting, test, &runs))
    }

    /// A runner with room for every test.
    fn load(&self, file: &Gguf, loading: &Loading<'_>) -> Result<LoadedRunner> {
        let most = |of: fn(&Case) -> usize| self.grid.iter().map(of).max().unwrap_or(1);
        let options = LoadOptions {
            backend: BackendChoice::from_str(loading.backend)?,
            threads: loading.threads,
            kv_type: loading.kv_type.kv_type(),
            weights: loading.weights.storage(),
            context: Some(most(|case| {
                case.test.depth + case.test.prompt + case.test.generate
            })),
            sequences: most(|case| case.test.parallel),
            ..LoadOptions::default()
        };
        let sizes = StepSizes {
            tokens: most(|case| case.test.batch.max(case.test.parallel)),
            kv_tokens: None,
        };
        Ok(load_runner(file, &options, sizes)?)
    }

    fn ceilings(&self, loading: &Loading<'_>) -> Result<Option<Ceilings>> {
        if self.arguments.settings.no_ceilings {
            return Ok(None);
        }
        self.progress.at("measuring what this machine can do");
        let choice = BackendChoice::from_str(loading.backend)?;
        Ok(choice.ceilings(loading.threads)?)
    }
}

impl Tests {
    /// Every test, in the order in which `llama-bench` runs them.
    fn grid(&self, settings: &Settings) -> Result<Vec<Case>> {
        let (prompts, generated) = (all(&self.n_prompt), all(&self.n_gen));
        let prompts = prompts.iter().map(|&prompt| (prompt, 0));
        let generated = generated.iter().map(|&generate| (0, generate));
        let pairs = prompts.chain(generated).chain(self.prompt_gen.clone());
        let pairs: Vec<_> = pairs.filter(|&pair| pair != (0, 0)).collect();
        if pairs.is_empty() {
            bail!("there is nothing to measure: give -p, -n or -pg more than 0 tokens");
        }
        if self.repetitions == 0 {
            bail!("--repetitions is 0; give at least 1");
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
            bail!("a batch of 0 tokens gets nowhere; give -b and -ub at least 1");
        }
        if grid.iter().any(|case| case.test.parallel == 0) {
            bail!("0 sequences do nothing; give --parallel at least 1");
        }
        Ok(grid)
    }
}

impl Settings {
    fn loadings(&self) -> Vec<Loading<'_>> {
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
    fn unusual(&self) -> Vec<&'static str> {
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
    fn threads(&self) -> usize {
        match (self.backend, self.threads) {
            ("scalar" | "simd", _) => 1,
            (_, Some(threads)) => threads,
            (_, None) => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// A backend's name; its threads have a column of their own.
fn without_threads(backend: &str) -> String {
    match backend.rsplit_once(", ") {
        Some((name, threads)) if threads.contains("thread") => format!("{name})"),
        _ => backend.to_owned(),
    }
}

fn pair(text: &str) -> Result<(usize, usize), String> {
    let (prompt, generate) = text
        .split_once(',')
        .ok_or("write tokens of the prompt, a comma, tokens to generate: 512,128")?;
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
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
            if let Some((_, long)) = SHORT.iter().find(|(short, _)| short == argument) {
                *argument = (*long).into();
            }
        }
    }
    arguments
}
