//! What is told while a model is made ready: lines on stderr, and a bar where that is a terminal.
//!
//! Must not know what takes the time.

use std::io::{Write, stderr};
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use fornax::{Error, Model, Progress};
use indicatif::{ProgressBar, ProgressStyle};

/// There while weights come.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Shows what takes long, where it is no part of an answer.
pub fn progress(progress: Progress<'_>) {
    let mut bar = BAR.lock().unwrap_or_else(PoisonError::into_inner);
    match progress {
        Progress::Line(line) => match &*bar {
            Some(bar) => bar.suspend(|| say(line)),
            None => say(line),
        },
        Progress::Weights { done, all } => {
            let bar = bar.get_or_insert_with(|| new_bar(all));
            bar.set_position(done.min(all));
        }
    }
}

/// Takes the bar away: the model is ready, or it will not be.
pub fn finished(model: Result<Model, Error>) -> Result<Model> {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(model?)
}

/// Hidden where stderr is no terminal.
fn new_bar(all: u64) -> ProgressBar {
    let bar = ProgressBar::new(all);
    let style = "{bar:24} {bytes}/{total_bytes} of weights  {binary_bytes_per_sec}  {eta} left";
    let style = ProgressStyle::with_template(style);
    bar.with_style(style.expect("invariant: the template is well formed"))
}

fn say(line: &str) {
    // Whoever closed stderr does not want to know.
    let _ = writeln!(stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_goes_where_the_weights_are_and_away_in_the_end() {
        let shown = || {
            let bar = BAR.lock().unwrap();
            bar.as_ref().map(|bar| (bar.position(), bar.length()))
        };
        assert_eq!(shown(), None);
        progress(Progress::Weights { done: 3, all: 10 });
        assert_eq!(shown(), Some((3, Some(10))));
        progress(Progress::Line("a line goes above it"));
        // What is joined or made on the host may count to a little more.
        progress(Progress::Weights { done: 11, all: 10 });
        assert_eq!(shown(), Some((10, Some(10))));
        let refused = finished(Err(Error::Options("no room".to_owned())));
        assert!(refused.is_err());
        assert_eq!(shown(), None);
    }
}
