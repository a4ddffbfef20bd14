//! Writing a model file that is there whole or not at all, with a progress bar.
//!
//! Owns the temporary name and the bar; what is written is `fornax::gguf::quantize`.

use std::fs::{self, File};
use std::io::{BufWriter, IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fornax::gguf::quantize::{From, Progress, quantize};
use fornax::gguf::{Gguf, Scheme};

/// The scheme of that name.
pub fn scheme(name: &str) -> Result<Scheme, String> {
    Scheme::from_name(name).ok_or_else(|| format!("known types are {}", Scheme::list()))
}

/// Writes `model`, which was opened from `input`, to `output`.
pub fn write(model: &Gguf, input: &Path, output: &Path, scheme: Scheme, from: From) -> Result<()> {
    refuse_overwriting(input, output)?;
    let temporary = temporary(output)?;
    let file = File::create(&temporary).with_context(|| shown("cannot write", &temporary))?;
    let mut bar = Bar::new();
    let started = Instant::now();
    let written = quantize(model, scheme, from, BufWriter::new(file), |progress| {
        bar.show(progress);
    });
    bar.clear();
    let written = written.map_err(anyhow::Error::from).and_then(|out| {
        let file = out
            .into_inner()
            .context("the last bytes were not written")?;
        file.sync_all().context("the disk did not take the file")?;
        // Opening it checks it whole.
        let size = Gguf::open(&temporary)?.len_bytes();
        fs::rename(&temporary, output).with_context(|| shown("cannot write", output))?;
        Ok(size)
    });
    match written {
        Ok(size) => {
            eprintln!(
                "{}: {:.1} MB from {:.1} MB in {:.1} s",
                output.display(),
                size as f64 / 1e6,
                model.len_bytes() as f64 / 1e6,
                started.elapsed().as_secs_f64()
            );
            Ok(())
        }
        Err(error) => {
            // Half a model is of no use to anyone; that it cannot be removed matters less than why.
            let _ = fs::remove_file(&temporary);
            Err(error.context(shown("was not written:", output)))
        }
    }
}

/// The model that is read is mapped: writing into it would destroy both.
fn refuse_overwriting(input: &Path, output: &Path) -> Result<()> {
    let Ok(target) = output.canonicalize() else {
        return Ok(());
    };
    if target.is_dir() {
        bail!("{} is a folder; name a file in it", output.display());
    }
    let source = input
        .canonicalize()
        .with_context(|| shown("cannot open", input))?;
    let inside = source.is_dir()
        && target.starts_with(&source)
        && target.extension() != Some("gguf".as_ref());
    // Parts of a split file differ in their numbers only.
    let stem = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        let (stem, parts) = name.rsplit_once("-of-")?;
        let (stem, _) = stem.rsplit_once('-')?;
        Some((path.parent()?.to_owned(), stem.to_owned(), parts.to_owned()))
    };
    let is_part = stem(&source).is_some() && stem(&source) == stem(&target);
    if source == target || inside || is_part {
        bail!(
            "{} belongs to the model that is read; choose another name",
            output.display()
        );
    }
    Ok(())
}

/// A name beside the output, so that renaming stays on one disk.
fn temporary(output: &Path) -> Result<PathBuf> {
    let name = output
        .file_name()
        .with_context(|| shown("is no file name:", output))?;
    let mut name = name.to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    Ok(output.with_file_name(name))
}

fn shown(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
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
        let line = format!("\r{bar} {percent:3} %  {rate:6.1} M weights/s  {tensor}\x1b[K");
        // A bar that cannot be shown is no reason to stop.
        let _ = stderr().write_all(line.as_bytes());
    }

    fn clear(&mut self) {
        if self.shown.is_some() {
            let _ = stderr().write_all(b"\r\x1b[K");
        }
    }
}
