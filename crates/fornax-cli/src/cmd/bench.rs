//! `fornax bench`: how fast a model is here. Chooses what is measured; measuring is `bench/`'s.

mod batch;
mod grid;
mod ladder;
mod serve;

use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use fornax::gguf::Gguf;
use fornax::{
    BackendChoice, Ceilings, Config, LoadOptions, LoadedRunner, StepSizes, load_profiled_runner,
    load_runner,
};

use crate::bench::description::Description;
use crate::bench::driver::{Driver, Run, Test};
use crate::bench::ladder::Extent;
use crate::bench::profile::Profiled;
use crate::bench::progress::Progress;
use crate::bench::ranges::{Numbers, all};
use crate::bench::report::{Format, Record, Report, Setting, Shown};
use crate::bench::work::Work;
use crate::misuse::misuse;
use crate::model::{Kv, flag_value};
use crate::model_name::ModelName;
use crate::{builtin, output};
pub use grid::long_options;
use grid::{Case, Loading, Settings, Tests};

/// Measure how fast a model is on this machine
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Options and the first table are those of llama-bench, so that both can be laid side by side. Every
number may be a list 1,2,4 or a range: 1-4, 0-4096+1024, 128-512*2. A test ppN puts a prompt of N
random tokens through the model, tgN generates N tokens one by one; both after a warm-up.
The second table has the time to the first token, the duration of each forward, and the bytes read
and multiplied a second, beside what this machine can do at most: memory, that is, and a model that
stays in the caches is read faster.

Examples:
  fornax bench
  fornax bench -m qwen3-0.6b-q8_0.gguf -p 512 -n 128 -t 1,2
  fornax bench -m synthetic:qwen3-0.6b:q8_0 -p 512 -n 64 -d 0,4096 -o json
  fornax bench -m synthetic:qwen3-0.6b:q8_0 -p 0 -n 64 -d 512 -npl 1-8*2
  fornax bench --profile -p 512 -n 32
  fornax bench --ladder --svg ladder.svg")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
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
    /// Tell where the time of each test goes, by operation and by layer
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    ladder: ladder::Ladder,
}

#[derive(Subcommand)]
enum Command {
    Batch(batch::Arguments),
    Serve(serve::Arguments),
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Some(Command::Batch(arguments)) => batch::run(arguments),
        Some(Command::Serve(arguments)) => serve::run(arguments),
        None if arguments.ladder.ladder => climb(arguments),
        None if arguments.profile => profile(arguments),
        None => measure(arguments),
    }
}

/// Climbs the ladder.
fn climb(arguments: &Arguments) -> Result<()> {
    if arguments.model.len() > 1 {
        misuse!("the ladder is climbed with one model; name one");
    }
    let (tests, settings) = (&arguments.tests, &arguments.settings);
    let only = |option: &str, lists: &[Numbers]| match all(lists)[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => misuse!("the ladder is climbed with one {option}; give one number"),
    };
    let kv_type = match settings.kv_type[..] {
        [one] => one.kv_type(),
        _ => misuse!("the ladder is climbed with one --kv-type; give one"),
    };
    let extent = Extent {
        prompt: only("-p", &tests.n_prompt)?.unwrap_or(0),
        generate: only("-n", &tests.n_gen)?.unwrap_or(0),
        threads: only("--threads", &settings.threads)?,
        isa: settings.isa,
        kv_type,
        limit: Duration::ZERO,
    };
    if extent.prompt < 8 || extent.generate < 2 {
        misuse!("the ladder measures a prompt and tokens: give -p at least 8 and -n at least 2");
    }
    if extent.threads == Some(0) {
        misuse!("0 threads cannot compute; give --threads at least 1");
    }
    let source = arguments.model.first();
    let source = source.map_or_else(builtin::source, ModelName::source);
    arguments.ladder.run(source, extent, arguments.output)
}

/// Measures every test of the grid, and reports or profiles it.
fn measure(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(arguments)?;
    let (settings, format) = (&arguments.settings, arguments.output);
    let mut report = Report::new(format, &settings.unusual());
    bench.progress.print(&report.head())?;
    let outcome = bench.run(|measured| {
        let model = measured.description;
        let setting = Setting {
            backend: without_threads(measured.backend),
            model_filename: measured.file_name.to_owned(),
            model_type: model.name.clone(),
            model_size: model.bytes,
            model_n_params: model.parameters,
            n_batch: measured.case.n_batch,
            n_ubatch: measured.case.n_ubatch,
            n_threads: measured.loading.threads(),
            kv_type: flag_value(measured.loading.kv_type),
            kv: flag_value(measured.kv),
            weights: flag_value(measured.loading.weights),
            ceilings: measured.ceilings,
        };
        let record = Record::new(setting, &measured.case.test, &measured.runs);
        let shown = Shown::new(model.size(), model.parameters());
        Ok(report.push(record, shown))
    });
    // What was measured is told to its end, whatever failed behind it.
    let told = bench.progress.print(&report.tail());
    outcome.and(told)
}

/// Says of every test of the grid where its time goes.
fn profile(arguments: &Arguments) -> Result<()> {
    if let Format::Csv = arguments.output {
        misuse!("a profile is written as md, json or jsonl; choose one with --output");
    }
    let bench = Bench::new(arguments)?;
    let mut told = Vec::new();
    bench.run(|measured| {
        let (model, test) = (&measured.description.name, &measured.case.test);
        let profiled = Profiled::new(
            format!("{model}, {}, {test}", measured.backend),
            measured.runs,
        );
        match arguments.output {
            Format::Md => Ok(profiled.text()),
            Format::Json => {
                told.push(profiled.json());
                Ok(String::new())
            }
            Format::Jsonl => Ok(format!("{}\n", profiled.json())),
            Format::Csv => unreachable!("invariant: refused before anything was measured"),
        }
    })?;
    match arguments.output {
        Format::Json => output::json(&told),
        _ => Ok(()),
    }
}

/// What stays the same from test to test.
struct Bench<'a> {
    arguments: &'a Arguments,
    grid: Vec<Case>,
    progress: Progress,
}

/// The runs of a test, and what they were made with.
struct Measured<'a> {
    file_name: &'a str,
    description: &'a Description,
    loading: &'a Loading<'a>,
    kv: Kv,
    backend: &'a str,
    ceilings: Option<Ceilings>,
    case: &'a Case,
    runs: Vec<Run>,
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self> {
        let (tests, settings) = (&arguments.tests, &arguments.settings);
        let grid = tests.grid(settings)?;
        let runners = settings.loadings().len() * settings.kv.len();
        let models = arguments.model.len().max(1);
        let progress = Progress::new(models * runners * grid.len() * tests.repetitions);
        Ok(Self {
            arguments,
            grid,
            progress,
        })
    }

    /// Runs every test of every model; `tell` makes of each what is printed.
    fn run(&self, mut tell: impl FnMut(Measured<'_>) -> Result<String>) -> Result<()> {
        if self.arguments.model.is_empty() {
            return self.model(builtin::NAME, &builtin::source().open()?, &mut tell);
        }
        for model in &self.arguments.model {
            let name = model.to_string();
            self.progress.at(format_args!("opening {name}"));
            self.model(&name, &model.source().open()?, &mut tell)?;
        }
        Ok(())
    }

    fn model(
        &self,
        file_name: &str,
        file: &Gguf,
        tell: &mut impl FnMut(Measured<'_>) -> Result<String>,
    ) -> Result<()> {
        let config = Config::from_gguf(file)?;
        let description = Description::of(file, &config);
        let settings = &self.arguments.settings;
        for loading in &settings.loadings() {
            let ceilings = self.ceilings(loading)?;
            for &kv in &settings.kv {
                self.progress
                    .at(format_args!("{}: loading", description.name));
                let loaded = self.load(file, loading)?;
                let mut work = Work::of(
                    file,
                    &config,
                    loading.kv_type.kv_type(),
                    loading.weights.storage(),
                );
                work.sketched = loaded.sketched;
                let backend = &loaded.backend;
                let mut driver = Driver::new(loaded.runner, work, kv.policy(), loaded.profile);
                for case in &self.grid {
                    self.progress
                        .at(format_args!("{} {}", description.name, case.test));
                    let measured = Measured {
                        file_name,
                        description: &description,
                        loading,
                        kv,
                        backend,
                        ceilings,
                        case,
                        runs: self.runs(&mut driver, &case.test)?,
                    };
                    self.progress.print(&tell(measured)?)?;
                }
            }
        }
        Ok(())
    }

    fn runs(&self, driver: &mut Driver, test: &Test) -> Result<Vec<Run>> {
        let tests = &self.arguments.tests;
        if !tests.no_warmup {
            driver.warm_up(test)?;
        }
        let run = |_| {
            let run = driver.run(test);
            self.progress.step();
            run
        };
        (0..tests.repetitions).map(run).collect()
    }

    /// A runner with room for every test.
    fn load(&self, file: &Gguf, loading: &Loading<'_>) -> Result<LoadedRunner> {
        let most = |of: fn(&Case) -> usize| self.grid.iter().map(of).max().unwrap_or(1);
        let options = LoadOptions {
            backend: BackendChoice::from_str(loading.backend)?,
            threads: loading.threads,
            isa: self.arguments.settings.isa,
            kv_type: loading.kv_type.kv_type(),
            weights: loading.weights.storage(),
            context: Some(most(|case| case.test.context())),
            sequences: most(|case| case.test.parallel),
            ..LoadOptions::default()
        };
        let sizes = StepSizes {
            tokens: most(|case| case.test.batch.max(case.test.parallel)),
            kv_tokens: None,
        };
        Ok(match self.arguments.profile {
            true => load_profiled_runner(file, &options, sizes)?,
            false => load_runner(file, &options, sizes)?,
        })
    }

    fn ceilings(&self, loading: &Loading<'_>) -> Result<Option<Ceilings>> {
        if self.arguments.settings.no_ceilings || self.arguments.profile {
            return Ok(None);
        }
        self.progress.at("measuring what this machine can do");
        let choice = BackendChoice::from_str(loading.backend)?;
        Ok(choice.ceilings(loading.threads, self.arguments.settings.isa)?)
    }
}

/// A backend's name; its threads have a column of their own.
fn without_threads(backend: &str) -> String {
    match backend.rsplit_once(", ") {
        Some((name, threads)) if threads.contains("thread") => format!("{name})"),
        _ => backend.to_owned(),
    }
}
