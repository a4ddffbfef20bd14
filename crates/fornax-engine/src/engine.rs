//! The loop: plan ▸ step ▸ commit. With a runner that runs ahead, the next step is planned and
//! submitted while one runs; what a stop or a cancel makes needless of it is left aside.
//!
//! Owns the order of things and the events. What goes into a step is the scheduler's, arithmetic
//! is the runner's, and threads, clocks and channels are somebody else's.

use std::collections::VecDeque;
use std::time::Duration;

use crate::scheduler::{Behind, Scheduler};
use crate::sequence::Sequence;
use crate::{
    Bounds, EngineOptions, Event, EventKind, Failure, FinishReason, LimitsError, Load, Request,
    RequestError, RequestId, RowOutput, Runner, RunnerError, StepBatch, StepOutput, StepStats,
    Ticket,
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
    /// The step that is planned, or already under way.
    flight: Option<Flight>,
    /// Steps that ended, kept for their buffers.
    spare: Vec<Flight>,
    output: StepOutput,
}

/// A step between its plan and its end.
#[derive(Default)]
struct Flight {
    batch: StepBatch,
    /// Whose rows they are: some of them may have ended since. `[n_rows]`
    owners: Vec<RequestId>,
    stats: StepStats,
    /// What the runner said to it, once it was submitted.
    ticket: Option<Result<Ticket, RunnerError>>,
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
            flight: None,
            spare: Vec::new(),
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

    /// Decides what the next step does, unless it is under way already, and tells whoever it
    /// starts. [`run`](Self::run) must follow before anything else changes.
    pub(crate) fn plan(&mut self) -> Option<StepStats> {
        if self.flight.is_none() {
            self.flight = self.next_step(Behind::Nothing);
        }
        self.flight.as_ref().map(|flight| flight.stats)
    }

    /// Runs the step that was planned. A runner that runs ahead gets the one behind it meanwhile,
    /// whose tokens it alone knows so far.
    pub(crate) fn run(&mut self) {
        let flight = self.flight.take();
        let mut flight = flight.expect("invariant: a step was planned");
        let ticket = match flight.ticket.take() {
            Some(submitted) => submitted,
            None => self.runner.submit(&flight.batch),
        };
        let result = match ticket {
            Err(error) => Err(error),
            Ok(ticket) => {
                self.scheduler.assume(&flight.batch, &flight.owners);
                if self.runner.runs_ahead() {
                    self.flight = self.next_step(Behind::Step);
                    if let Some(next) = &mut self.flight {
                        next.ticket = Some(self.runner.submit(&next.batch));
                    }
                }
                self.runner.wait(ticket, &mut self.output)
            }
        };
        match result {
            Ok(()) => self.commit(&flight),
            Err(error) => {
                self.fail_rows(&flight, &error);
                self.fail_dependents(&error);
            }
        }
        self.spare.push(flight);
    }

    fn next_step(&mut self, behind: Behind) -> Option<Flight> {
        let mut flight = self.spare.pop().unwrap_or_default();
        let Some(stats) = self.scheduler.plan(&mut flight.batch, behind) else {
            self.spare.push(flight);
            return None;
        };
        flight.stats = stats;
        self.scheduler.owners(&flight.batch, &mut flight.owners);
        for admission in &flight.batch.admissions {
            let started = self.scheduler.starts(admission.slot);
            self.events.extend(started.map(|request| Event {
                request,
                kind: EventKind::Started,
            }));
        }
        Some(flight)
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
        self.scheduler.is_idle() && self.flight.is_none()
    }

    /// Asserts the invariants of queue, slots and pages. For tests, after any call.
    pub fn check(&self) {
        self.scheduler.check();
    }

    /// Takes the answers in of all who did not end while the step was under way.
    fn commit(&mut self, flight: &Flight) {
        let (rows, outputs) = (flight.batch.rows(), self.output.rows.drain(..));
        assert_eq!(
            rows.len(),
            outputs.len(),
            "invariant: the runner answers each row"
        );
        for (index, output) in outputs.enumerate() {
            let (row, request) = (&rows[index], flight.owners[index]);
            let Some(sequence) = self.scheduler.sequence(row.slot, request) else {
                continue;
            };
            let is_finite = output != RowOutput::NotFinite;
            let fed = row.cached..row.cached + flight.batch.new_tokens(index);
            let mut tell = |kind| self.events.push_back(Event { request, kind });
            match (sequence.accept(fed, output, &mut tell), is_finite) {
                (true, true) => drop(self.scheduler.retire(row.slot)),
                (true, false) => drop(self.scheduler.discard(row.slot)),
                (false, _) => {}
            }
        }
    }

    /// A step that failed takes its rows' requests with it and leaves the others alone.
    fn fail_rows(&mut self, flight: &Flight, error: &RunnerError) {
        self.output.rows.clear();
        for (row, &request) in flight.batch.rows().iter().zip(&flight.owners) {
            self.fail_row(row.slot, request, error);
        }
    }

    /// Behind a step that failed, those whom the next one has just admitted go with it if they
    /// begin with anything computed: it may have been that step's to compute.
    fn fail_dependents(&mut self, error: &RunnerError) {
        let Some(next) = self.flight.take() else {
            return;
        };
        for (row, &request) in next.batch.rows().iter().zip(&next.owners) {
            let mut admissions = next.batch.admissions.iter();
            if row.cached > 0 && admissions.any(|admission| admission.slot == row.slot) {
                self.fail_row(row.slot, request, error);
            }
        }
        self.flight = Some(next);
    }

    fn fail_row(&mut self, slot: usize, request: RequestId, error: &RunnerError) {
        if self.scheduler.sequence(slot, request).is_some() {
            self.scheduler.discard(slot);
            let kind = EventKind::Failed(Failure::Runner(error.clone()));
            self.events.push_back(Event { request, kind });
        }
    }
}
