//! `cargo xtask ci`: every check beyond `cargo test`, each named and timed.
//!
//! Owns the order, what goes on at the same time, the timing and the summary; what a check does is in `steps`.

mod emulator;
mod processors;
mod steps;

use std::{
    fs,
    io::{self, Write},
    panic::resume_unwind,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::{Args, builder::PossibleValuesParser};

use crate::root;
use steps::STEPS;

/// Run every check beyond `cargo test`, and begin no other once one has failed.
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
    lane: Lane,
    /// The folder under `target` of what it alone builds.
    own: Option<&'static str>,
    /// Does it, and says what it saw in a few words.
    run: fn() -> Result<String>,
}

/// Where a check stands. Two go on at the same time in the middle, for most leave one of two cores idle now and then:
/// to link, or for the longest of their tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// What takes a second, or installs what cargo itself reads, before all others.
    First,
    /// What builds where `cargo test` builds, or a part of it there, which cargo lets one do at a time.
    Common,
    /// What builds elsewhere, or computes for long with what was built.
    Apart,
    /// What would be measured wrong beside others, and what is done in seconds, behind all others.
    Last,
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
    let clears = arguments.steps.is_empty();
    let run = Run {
        clears,
        outcomes: Mutex::new(Vec::new()),
    };
    let lane = |lane: Lane| {
        let steps = STEPS.iter().filter(wanted);
        run.all(steps.filter(|step| step.lane == lane))
    };
    let started = Instant::now();
    lane(Lane::First)?;
    thread::scope(|scope| {
        let apart = scope.spawn(|| lane(Lane::Apart));
        let common = lane(Lane::Common);
        apart.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        common
    })?;
    lane(Lane::Last)?;
    let outcomes = run.outcomes.into_inner();
    let outcomes = outcomes.unwrap_or_else(PoisonError::into_inner);
    write!(io::stdout(), "\n{}", summary(&outcomes, started.elapsed()))?;
    let failed = outcomes.iter().filter(|outcome| outcome.result.is_err());
    let failed: Vec<&str> = failed.map(|outcome| outcome.name).collect();
    match failed.join(" ") {
        failed if failed.is_empty() => Ok(()),
        failed => {
            bail!("{failed} failed; once that is mended, `cargo xtask ci {failed}` tries it alone")
        }
    }
}

/// Checks on their way.
struct Run {
    /// Whether what a check alone builds is removed behind it.
    clears: bool,
    outcomes: Mutex<Vec<Outcome>>,
}

impl Run {
    /// Runs checks one after the other, until one fails anywhere.
    ///
    /// # Errors
    /// Nobody reads what is told.
    fn all<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> io::Result<()> {
        for step in steps {
            if self.told().iter().any(|outcome| outcome.result.is_err()) {
                break;
            }
            writeln!(io::stdout(), "── {}: {}", step.name, step.about)?;
            let started = Instant::now();
            let mut result = (step.run)();
            if self.clears && result.is_ok() {
                result = clear(step).and(result);
            }
            let time = started.elapsed();
            let mut told = format!("   {}: {:.1} s\n", step.name, time.as_secs_f64());
            if let Err(error) = &result {
                told += &format!("{error:#}\n\n");
            }
            io::stdout().write_all(told.as_bytes())?;
            self.told().push(Outcome {
                name: step.name,
                time,
                result,
            });
        }
        Ok(())
    }

    /// How those went that have ended.
    fn told(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A line for each check that ran, in the order of their ends, and one for the time that all took together.
fn summary(outcomes: &[Outcome], all: Duration) -> String {
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
    line("together", "", all, "");
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
            summary(&outcomes, Duration::from_secs(21)),
            "format       ok         1.0 s\n\
             tidy         ok        20.0 s  7 files are tidy\n\
             docs         FAILED     3.0 s\n\
             together               21.0 s\n"
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
