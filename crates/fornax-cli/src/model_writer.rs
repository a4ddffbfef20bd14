//! Writing a model file, with a progress bar.
//!
//! Owns the bar; what is written is `fornax::gguf::quantize`.

use std::io::{BufWriter, IsTerminal, Write, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fornax::Config;
use fornax::gguf::quantize::{From, Progress, quantize};
use fornax::gguf::{Gguf, Scheme};
use fornax::text::Tokenizer;

use crate::output;
use crate::output_file::OutputFile;

/// The scheme of that name.
pub fn scheme(name: &str) -> Result<Scheme, String> {
    Scheme::from_name(name).ok_or_else(|| format!("known types are {}", Scheme::list()))
}

/// What GGUF has no key for, of the tokenizer.
const OURS: [&str; 5] = [
    "ignore_merges",
    "prepend_scheme",
    "piece_merges",
    "normalized_tokens",
    "eog_token_ids",
];

/// Refuses a folder of what could not be run, which is not worth writing, and tells what other
/// programs will not understand.
pub fn check(model: &Gguf) -> Result<()> {
    Config::checked(model)?;
    Tokenizer::from_gguf(model)?;
    let there = OURS.map(|key| format!("tokenizer.ggml.{key}"));
    let there: Vec<String> = there
        .into_iter()
        .filter(|key| model.metadata().value(key).is_some())
        .collect();
    if !there.is_empty() {
        output::say(format_args!(
            "note: only Fornax knows {}, made of tokenizer.json; other programs may make other \
             tokens of some texts, or end answers elsewhere",
            there.join(", ")
        ));
    }
    Ok(())
}

/// Writes `model`, which was opened from `input`, to `output`.
pub fn write(model: &Gguf, input: &Path, output: &Path, scheme: Scheme, from: From) -> Result<()> {
    let file = OutputFile::new(output, &[input])?;
    let mut bar = Bar::new();
    let started = Instant::now();
    let size = write_to(&file, model, scheme, from, &mut bar);
    bar.clear();
    let size = size
        .and_then(|size| file.keep().map(|()| size))
        .with_context(|| format!("{} was not written", output.display()))?;
    output::say(format_args!(
        "{}: {:.1} MB from {:.1} MB in {:.1} s",
        output.display(),
        size as f64 / 1e6,
        model.len_bytes() as f64 / 1e6,
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Writes and checks it; returns its size.
fn write_to(
    file: &OutputFile,
    model: &Gguf,
    scheme: Scheme,
    from: From,
    bar: &mut Bar,
) -> Result<u64> {
    let out = BufWriter::new(file.create()?);
    let out = quantize(model, scheme, from, out, |progress| bar.show(progress))?;
    let written = out
        .into_inner()
        .context("the last bytes were not written")?;
    written
        .sync_all()
        .context("the disk did not take the file")?;
    // Opening it checks it whole.
    Ok(Gguf::open(file.path())?.len_bytes())
}

/// A line on the terminal that says how far the work is.
struct Bar {
    shown: Option<Instant>,
    started: Instant,
    terminal: bool,
}

impl Bar {
    fn new() -> Self {
        Self {
            shown: None,
            started: Instant::now(),
            terminal: stderr().is_terminal(),
        }
    }

    fn show(&mut self, progress: Progress<'_>) {
        const EVERY: Duration = Duration::from_millis(100);
        const WIDTH: u64 = 30;
        if !self.terminal || self.shown.is_some_and(|shown| shown.elapsed() < EVERY) {
            return;
        }
        self.shown = Some(Instant::now());
        let Progress {
            tensor,
            done,
            total,
        } = progress;
        let filled = (WIDTH * done / total.max(1)) as usize;
        let bar = "█".repeat(filled) + &"░".repeat(WIDTH as usize - filled);
        let rate = done as f64 / 1e6 / self.started.elapsed().as_secs_f64().max(1e-3);
        let percent = 100 * done / total.max(1);
        let line = format!(
            "\r{bar} {percent:3} %  {rate:6.1} M weights/s  {}\x1b[K",
            output::harmless(tensor)
        );
        // A bar that cannot be shown is no reason to stop.
        let _ = stderr().write_all(line.as_bytes());
    }

    fn clear(&mut self) {
        if self.shown.is_some() {
            let _ = stderr().write_all(b"\r\x1b[K");
        }
    }
}
