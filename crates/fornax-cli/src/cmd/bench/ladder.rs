//! `fornax bench --ladder`: every optimisation, one by one.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use fornax::{Config, Source};

use crate::bench::description::Description;
use crate::bench::ladder::{Extent, climb, machine_form, rungs, svg, table};
use crate::bench::progress::Progress;
use crate::bench::report::Format;
use crate::misuse::misuse;
use crate::output;
use crate::output_file::OutputFile;

#[derive(Args)]
#[command(next_help_heading = "Ladder")]
pub struct Ladder {
    /// Climb from scalar loops without a cache to all that Fornax has, one optimisation a rung
    #[arg(
        long,
        conflicts_with_all = [
            "profile", "prompt_gen", "n_depth", "parallel", "repetitions", "no_warmup", "batch_size",
            "ubatch_size", "backend", "kv", "weights", "no_ceilings",
        ]
    )]
    pub ladder: bool,
    /// Where the ladder's picture goes: time of each forward by rung and position
    #[arg(
        long,
        value_name = "FILE",
        default_value = "ladder.svg",
        requires = "ladder"
    )]
    svg: PathBuf,
    /// Seconds for the prompt of a rung and again for its tokens; a slow rung does fewer of them
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5.0,
        requires = "ladder"
    )]
    rung_seconds: f64,
}

impl Ladder {
    /// Climbs with a model and reports.
    pub fn run(&self, source: Source, extent: Extent, format: Format) -> Result<()> {
        let limit = Duration::try_from_secs_f64(self.rung_seconds);
        let Some(limit) = limit.ok().filter(|limit| !limit.is_zero()) else {
            misuse!("--rung-seconds must be more than 0, and a time that a clock can measure");
        };
        if let Format::Csv = format {
            misuse!("the ladder is written as md, json or jsonl; choose one with --output");
        }
        let file = &source.open()?;
        // Whether it can be written is known before a climb of minutes, not behind it.
        let picture = OutputFile::new(&self.svg, &[]).with_context(|| self.unwritable())?;
        let mut drawn = picture.create().with_context(|| self.unwritable())?;
        let config = Config::from_gguf(file)?;
        let model = Description::of(file, &config);
        let extent = Extent { limit, ..extent };
        let rungs = rungs();
        let progress = Progress::new(rungs.len());
        let mut climbed = Vec::new();
        for rung in &rungs {
            progress.at(rung.name);
            climbed.extend(climb(file, rung, &extent)?);
            progress.step();
        }
        drop(progress);
        let title = format!("{}: time of each token's forward, rung by rung", model.name);
        let written = drawn.write_all(svg(&title, &climbed).as_bytes());
        written.with_context(|| self.unwritable())?;
        picture.keep()?;
        match format {
            Format::Md => {
                let head = format!(
                    "{}, {}, {}\n\n",
                    model.name,
                    model.size(),
                    model.parameters()
                );
                output::exact((head + &table(&climbed)).as_bytes())
            }
            Format::Jsonl => machine_form(&climbed).iter().try_for_each(output::json),
            Format::Json => output::json(&machine_form(&climbed)),
            Format::Csv => unreachable!("invariant: refused before the climb"),
        }
    }

    fn unwritable(&self) -> String {
        let path = self.svg.display();
        format!("{path}: the picture cannot be written; name another file with --svg")
    }
}
