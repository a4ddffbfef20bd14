//! A runner that keeps what each step was told.

use std::sync::{Arc, Mutex};

use fornax_engine::testing::FakeRunner;
use fornax_engine::{Limits, Runner, RunnerError, StepBatch, StepOutput, Ticket};

/// The batches of all steps so far, oldest first.
pub type Batches = Arc<Mutex<Vec<StepBatch>>>;

/// A fake runner whose batches are kept.
pub struct Spy {
    runner: FakeRunner,
    batches: Batches,
}

impl Spy {
    /// The spy, and where its findings will be.
    pub fn on(runner: FakeRunner) -> (Self, Batches) {
        let batches = Batches::default();
        let spy = Self {
            runner,
            batches: batches.clone(),
        };
        (spy, batches)
    }
}

impl Runner for Spy {
    fn limits(&self) -> &Limits {
        self.runner.limits()
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<Ticket, RunnerError> {
        self.batches
            .lock()
            .unwrap_or_else(|error| error.into_inner())
            .push(batch.clone());
        self.runner.submit(batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), RunnerError> {
        self.runner.wait(ticket, output)
    }
}
