//! How long each forward took, handed over from the engine's thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fornax_engine::StepStats;

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forward {
    /// Sequences and new tokens in it.
    pub step: StepStats,
    /// From its plan to its answers.
    pub duration: Duration,
}

/// The forwards since they were last taken.
#[derive(Clone, Default)]
pub(crate) struct Forwards(Arc<Mutex<Vec<Forward>>>);

impl Forwards {
    /// Takes what was measured so far.
    pub fn take(&self) -> Vec<Forward> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds one. Nobody may ever take them, so only so many are kept.
    pub fn push(&self, step: StepStats, duration: Duration) {
        let mut forwards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if forwards.len() < 1 << 16 {
            forwards.push(Forward { step, duration });
        }
    }
}
