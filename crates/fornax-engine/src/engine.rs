//! The loop: plan ▸ step ▸ commit.
//!
//! Owns the order of things and the events. What goes into a step is the scheduler's, arithmetic
//! is the runner's, and threads, clocks and channels are somebody else's.

use std::collections::VecDeque;
use std::time::Duration;

use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::{
    Bounds, EngineOptions, Event, EventKind, Failure, FinishReason, LimitsError, Load, Request,
    RequestError, RequestId, RowOutput, Runner, RunnerError, StepBatch, StepOutput, StepStats,
};

/// Runs many requests at once on one runner.
///
/// ```
/// use fornax_engine::testing::{FakeRunner, small_limits};
/// use fornax_engine::{Engine, KvPolicy, Request, SamplingParams};
///
/// let mut engine = Engine::new(FakeRunner::new(small_limits()), KvPolicy::Paged)?;
/// engine.submit(Request::generate(vec![1, 2, 3], SamplingParams::greedy()))?;
/// while let Some(_stats) = engine.step() {
///     for event in engine.events() {
///         println!("{event:?}");
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<R: Runner> {
    runner: R,
    scheduler: Scheduler,
    bounds: Bounds,
    next: RequestId,
    /// Not yet taken by [`events`](Self::events).
    events: VecDeque<Event>,
    /// The step's buffers, kept from step to step.
    batch: StepBatch,
    output: StepOutput,
}

impl<R: Runner> Engine<R> {
    /// An engine without requests. A [`KvPolicy`](crate::KvPolicy) stands for its usual options.
    ///
    /// # Errors
    /// Limits that leave no room for any request, or options that contradict each other.
    pub fn new(runner: R, options: impl Into<EngineOptions>) -> Result<Self, LimitsError> {
        let limits = runner.limits();
        let scheduler = Scheduler::new(limits, options.into())?;
        let bounds = Bounds {
            context: limits.context,
            vocabulary: limits.vocabulary,
            cache_tokens: scheduler.cache_tokens(),
        };
        Ok(Self {
            runner,
            scheduler,
            bounds,
            next: RequestId(0),
            events: VecDeque::new(),
            batch: StepBatch::default(),
            output: StepOutput::default(),
        })
    }

    /// What a request may ask for.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Takes a request in. It starts with the next step that has room for it, after all that
    /// were submitted before with the same priority.
    ///
    /// # Errors
    /// A request that this engine could never answer.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        request.validate(&self.bounds)?;
        let id = self.next;
        self.next = RequestId(id.0 + 1);
        let due = self.scheduler.due(request.priority);
        self.scheduler
            .enqueue(Sequence::new(id, request, self.bounds.context, due));
        Ok(id)
    }

    /// Ends a request now; its slot and pages are free at once. False when it had ended already.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let sequence = self.scheduler.remove(id);
        let ended = sequence.map(|sequence| sequence.finished(FinishReason::Cancelled));
        let known = ended.is_some();
        self.events
            .extend(ended.map(|kind| Event { request: id, kind }));
        known
    }

    /// Runs one step and says what it did; `None` when no request is left.
    pub fn step(&mut self) -> Option<StepStats> {
        let stats = self.plan()?;
        self.run();
        Some(stats)
    }

    /// Decides what the next step does, and tells whoever it starts. [`run`](Self::run) must
    /// follow before anything else changes.
    pub(crate) fn plan(&mut self) -> Option<StepStats> {
        let stats = self.scheduler.plan(&mut self.batch)?;
        for admission in &self.batch.admissions {
            let started = self.scheduler.starts(admission.slot);
            self.events.extend(started.map(|request| Event {
                request,
                kind: EventKind::Started,
            }));
        }
        Some(stats)
    }

    /// Runs the step that was planned.
    pub(crate) fn run(&mut self) {
        let result = self.runner.step(&self.batch, &mut self.output);
        self.commit(result);
    }

    /// Tells how long a step took, so that prompts do not hold answers up:
    /// [`PromptPace::Slowdown`](crate::PromptPace::Slowdown).
    pub fn took(&mut self, step: &StepStats, duration: Duration) {
        self.scheduler.took(step, duration);
    }

    /// What happened since the last call, in order.
    pub fn events(&mut self) -> impl Iterator<Item = Event> {
        self.events.drain(..)
    }

    /// How things stand now.
    pub fn load(&self) -> Load {
        self.scheduler.load()
    }

    /// Whether no request is left.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Asserts the invariants of queue, slots and pages. For tests, after any call.
    pub fn check(&self) {
        self.scheduler.check();
    }

    fn commit(&mut self, result: Result<(), RunnerError>) {
        match result {
            Ok(()) => self.commit_answers(),
            Err(error) => self.fail_rows(&error),
        }
    }

    fn commit_answers(&mut self) {
        let (rows, outputs) = (self.batch.rows(), self.output.rows.drain(..));
        assert_eq!(
            rows.len(),
            outputs.len(),
            "invariant: the runner answers each row"
        );
        for (index, output) in outputs.enumerate() {
            let (slot, new) = (rows[index].slot, self.batch.new_tokens(index));
            let is_finite = output != RowOutput::NotFinite;
            let (sequence, fed) = self.scheduler.advance(slot, new);
            let request = sequence.id;
            let mut tell = |kind| self.events.push_back(Event { request, kind });
            match (sequence.accept(fed.clone(), output, &mut tell), is_finite) {
                (true, true) => drop(self.scheduler.retire(slot)),
                (true, false) => drop(self.scheduler.discard(slot)),
                (false, _) => self.scheduler.publish(slot, fed),
            }
        }
    }

    /// A step that failed takes its rows' requests with it and leaves the others alone.
    fn fail_rows(&mut self, error: &RunnerError) {
        self.output.rows.clear();
        for row in self.batch.rows() {
            let request = self.scheduler.discard(row.slot).id;
            let kind = EventKind::Failed(Failure::Runner(error.clone()));
            self.events.push_back(Event { request, kind });
        }
    }
}
