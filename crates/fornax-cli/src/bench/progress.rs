//! A bar on a terminal, nothing elsewhere; lines of output go above it.

use std::fmt::Display;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// How far a measurement is.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar for so many runs; hidden where stderr is no terminal.
    pub fn new(runs: usize) -> Self {
        let bar = ProgressBar::new(runs as u64);
        let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}");
        bar.set_style(style.expect("invariant: the template is well formed"));
        Self(bar)
    }

    /// What runs now.
    pub fn at(&self, what: impl Display) {
        self.0.set_message(what.to_string());
        self.0.tick();
    }

    /// A run is over.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Writes text to stdout without tearing the bar.
    pub fn print(&self, text: &str) -> Result<()> {
        self.0.suspend(|| output::exact(text.as_bytes()))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
