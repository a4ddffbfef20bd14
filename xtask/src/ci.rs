//! `cargo xtask ci`: every check beyond `cargo test`, one after the other, each named and timed.
//!
//! Owns the order, the timing and the summary; what a check does is in `steps`.

mod emulator;
mod processors;
mod steps;

use std::{
    fs,
    io::{self, Write},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::PossibleValuesParser};

use crate::root;
use steps::STEPS;

/// Run every check beyond `cargo test`, and stop at the first that fails.
///
/// Installs what a check needs and the machine lacks: cargo-deny, OpenAI's Python client, the
/// standard library of other platforms and, with apt, the emulator of one and a C++ compiler.
#[derive(Args)]
#[command(after_help = "Examples:\n  cargo xtask ci\n  cargo xtask ci format lints tidy")]
pub struct Arguments {
    /// Only these checks [default: all].
    #[arg(value_parser = PossibleValuesParser::new(STEPS.iter().map(|step| step.name)))]
    steps: Vec<String>,
}

/// One check.
struct Step {
    /// As the command line calls it.
    name: &'static str,
    /// What it makes sure of.
    about: &'static str,
    /// The folder under `target` of what it alone builds.
    own: Option<&'static str>,
    /// Does it, and says what it saw in a few words.
    run: fn() -> Result<String>,
}

/// How a check went.
struct Outcome {
    name: &'static str,
    time: Duration,
    result: Result<String>,
}

/// Runs the checks and prints a summary.
///
/// # Errors
/// A check failed; what it printed comes before the summary.
pub fn run(arguments: &Arguments) -> Result<()> {
    let wanted = |step: &&Step| {
        arguments.steps.is_empty() || arguments.steps.iter().any(|name| name == step.name)
    };
    // Whoever tries one check will try it again.
    let all = arguments.steps.is_empty();
    let mut stdout = io::stdout();
    let mut outcomes: Vec<Outcome> = Vec::new();
    for step in STEPS.iter().filter(wanted) {
        writeln!(stdout, "── {}: {}", step.name, step.about)?;
        let started = Instant::now();
        let mut result = (step.run)();
        if all && result.is_ok() {
            result = clear(step).and(result);
        }
        let failed = result.as_ref().err().map(|error| format!("{error:#}"));
        let time = started.elapsed();
        writeln!(stdout, "   {:.1} s", time.as_secs_f64())?;
        outcomes.push(Outcome {
            name: step.name,
            time,
            result,
        });
        if let Some(error) = failed {
            writeln!(stdout, "{error}\n")?;
            break;
        }
    }
    write!(stdout, "\n{}", summary(&outcomes))?;
    match outcomes.iter().find(|outcome| outcome.result.is_err()) {
        None => Ok(()),
        Some(failed) => bail!(
            "{} failed; once it is mended, `cargo xtask ci {}` tries it alone",
            failed.name,
            failed.name
        ),
    }
}

/// Removes what no other check needs: gigabytes, which a small machine has not got for each of them.
fn clear(step: &Step) -> Result<()> {
    let Some(own) = step.own else { return Ok(()) };
    let folder = root().join("target").join(own);
    match folder.is_dir() {
        true => fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display())),
        false => Ok(()),
    }
}

/// A line for each check that ran, and their sum.
fn summary(outcomes: &[Outcome]) -> String {
    let mut table = String::new();
    let mut line = |name: &str, result: &str, time: Duration, note: &str| {
        let seconds = time.as_secs_f64();
        let line = format!("{name:<12} {result:<6} {seconds:>7.1} s  {note}");
        table.push_str(line.trim_end());
        table.push('\n');
    };
    for outcome in outcomes {
        match &outcome.result {
            Ok(note) => line(outcome.name, "ok", outcome.time, note),
            Err(_) => line(outcome.name, "FAILED", outcome.time, ""),
        }
    }
    let total = outcomes.iter().map(|outcome| outcome.time).sum();
    line("together", "", total, "");
    table
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn the_summary_has_a_line_for_each_check() {
        let outcome = |name, seconds, result| Outcome {
            name,
            time: Duration::from_secs(seconds),
            result,
        };
        let outcomes = [
            outcome("format", 1, Ok(String::new())),
            outcome("tidy", 20, Ok("7 files are tidy".to_owned())),
            outcome("docs", 3, Err(anyhow!("a long story"))),
        ];
        assert_eq!(
            summary(&outcomes),
            "format       ok         1.0 s\n\
             tidy         ok        20.0 s  7 files are tidy\n\
             docs         FAILED     3.0 s\n\
             together               24.0 s\n"
        );
    }

    #[test]
    fn names_of_checks_are_distinct() {
        for (index, step) in STEPS.iter().enumerate() {
            assert!(
                STEPS[..index].iter().all(|other| other.name != step.name),
                "{}",
                step.name
            );
        }
    }
}
