//! An engine on a thread of its own.
//!
//! Owns the thread, the channels and the clock. Knows nothing of sequences, pages or steps beyond
//! [`Engine`]'s public face, and of no async runtime: whoever polls brings a waker.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::{
    Bounds, Engine, EventKind, Failure, Load, Request, RequestError, RequestId, Runner, StepStats,
};

/// Runs an engine until it is dropped; requests then unfinished are cancelled.
pub struct EngineThread {
    bounds: Bounds,
    /// Gone only while dropping: that is how the thread hears of it.
    submissions: Option<Sender<Submission>>,
    thread: Option<JoinHandle<()>>,
    board: Arc<Board>,
}

impl EngineThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn spawn<R: Runner + 'static>(engine: Engine<R>) -> std::io::Result<Self> {
        Self::spawn_observed(engine, |_, _| {})
    }

    /// Starts the thread, which tells `observe` of each step and how long it took, before any
    /// event of that step can be received.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn spawn_observed<R: Runner + 'static>(
        engine: Engine<R>,
        observe: impl FnMut(StepStats, Duration) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let bounds = engine.bounds();
        let board = Arc::<Board>::default();
        let mut worker = Worker {
            engine,
            observe,
            submissions: receiver,
            clients: HashMap::new(),
            accepted: 0,
            board: board.clone(),
        };
        let thread = std::thread::Builder::new().name("fornax-engine".to_owned());
        Ok(Self {
            bounds,
            submissions: Some(sender),
            thread: Some(thread.spawn(move || worker.run())?),
            board,
        })
    }

    /// What a request may ask for.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Takes a request in, without waiting for the step that is running.
    ///
    /// # Errors
    /// A request that this engine could never answer, or an engine that has stopped.
    pub fn submit(&self, request: Request) -> Result<EventStream, SubmitError> {
        request.validate(&self.bounds)?;
        let (sender, receiver) = channel();
        let (cancel, waiting) = (CancelHandle::default(), Waiting::default());
        let submission = Submission {
            request,
            client: Client {
                events: sender,
                wake: WakeAtEnd(waiting.clone()),
                cancel: cancel.clone(),
            },
        };
        self.board.underway.fetch_add(1, Ordering::Relaxed);
        let submissions = self.submissions.as_ref();
        submissions
            .expect("invariant: the sender lives until the drop")
            .send(submission)
            .map_err(|_| SubmitError::Stopped)?;
        Ok(EventStream {
            events: receiver,
            waiting,
            cancel,
            board: Arc::clone(&self.board),
            ended: false,
        })
    }

    /// How things stand: during a step as it was planned, after it before its events are told.
    pub fn load(&self) -> Load {
        if !self.is_running() {
            return Load::default();
        }
        // Read under the lock, so that none is counted twice or not at all.
        let load = self.board.load();
        Load {
            waiting: load.waiting + self.board.underway.load(Ordering::Relaxed),
            ..*load
        }
    }

    /// Whether steps can still run; false once one of them panicked.
    pub fn is_running(&self) -> bool {
        let thread = self.thread.as_ref();
        thread.is_some_and(|thread| !thread.is_finished())
    }

    /// Why no step can run any more, from before its requests are told.
    pub fn failure(&self) -> Option<String> {
        self.board.failure.get().cloned()
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.submissions = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told to its requests already.
            let _ = thread.join();
        }
    }
}

/// Why a request was not taken in.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// It could never be answered.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// An earlier step ended the thread.
    #[error(
        "the engine stopped in an earlier step, whose requests were told why; load the model again"
    )]
    Stopped,
}

/// The events of one request; the last one is `Finished` or `Failed`. Dropping it cancels.
///
/// A thread waits for them as an iterator, a task by [`poll_next`](Self::poll_next).
pub struct EventStream {
    events: Receiver<EventKind>,
    waiting: Waiting,
    cancel: CancelHandle,
    board: Arc<Board>,
    ended: bool,
}

impl EventStream {
    /// A handle that cancels from anywhere, a signal handler for one.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// The next event if it is there; else the task is woken once it is worth another look.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<EventKind>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut received = self.events.try_recv();
        if let Err(TryRecvError::Empty) = received {
            self.waiting.register(context.waker());
            // It may have come before the waker was known.
            received = self.events.try_recv();
        }
        match received {
            Err(TryRecvError::Empty) => Poll::Pending,
            Err(TryRecvError::Disconnected) => Poll::Ready(Some(self.take(None))),
            Ok(event) => Poll::Ready(Some(self.take(Some(event)))),
        }
    }

    /// Waits for the next event without holding a thread.
    pub async fn next_event(&mut self) -> Option<EventKind> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// What came over the channel, or what it means that nothing more will.
    fn take(&mut self, received: Option<EventKind>) -> EventKind {
        let event = received.unwrap_or_else(|| {
            // A request that came while the thread failed was never taken in, and so not told.
            let reason = self.board.failure.get().cloned();
            let reason =
                reason.unwrap_or_else(|| "its thread ended before this request did".into());
            EventKind::Failed(Failure::Stopped(reason))
        });
        self.ended = event.is_last();
        event
    }
}

impl Iterator for EventStream {
    type Item = EventKind;

    /// Waits for the next event.
    fn next(&mut self) -> Option<EventKind> {
        if self.ended {
            return None;
        }
        let received = self.events.recv().ok();
        Some(self.take(received))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Cancels one request.
#[derive(Clone, Debug, Default)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Ends the request before the next step; what it has told stays told.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What the thread lets others read.
#[derive(Default)]
struct Board {
    load: Mutex<Load>,
    /// Requests submitted that are not in `load` yet.
    underway: AtomicUsize,
    /// What ended the thread before its time.
    failure: OnceLock<String>,
}

impl Board {
    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Submission {
    request: Request,
    client: Client,
}

/// Who waits for a request's events.
struct Client {
    events: Sender<EventKind>,
    /// Dropped after `events`, so that who is woken finds the channel closed.
    wake: WakeAtEnd,
    cancel: CancelHandle,
}

impl Client {
    /// Hands an event over. Who no longer listens has cancelled by that.
    fn tell(&self, event: EventKind) {
        let _ = self.events.send(event);
        self.wake.0.wake();
    }
}

/// The task that waits for an event, if one does.
#[derive(Clone, Default)]
struct Waiting(Arc<Mutex<Option<Waker>>>);

impl Waiting {
    fn register(&self, waker: &Waker) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Wakes once more when nothing can come any more.
struct WakeAtEnd(Waiting);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// The thread's side.
struct Worker<R: Runner, F> {
    engine: Engine<R>,
    observe: F,
    submissions: Receiver<Submission>,
    clients: HashMap<RequestId, Client>,
    /// Taken in since the board was written.
    accepted: usize,
    board: Arc<Board>,
}

impl<R: Runner, F: FnMut(StepStats, Duration)> Worker<R, F> {
    fn run(&mut self) {
        while self.take_submissions() {
            self.cancel_unwanted(|client| client.cancel.is_cancelled());
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.step())) {
                return self.fail_all(&panic_message(&*panic));
            }
            self.tell();
        }
        self.cancel_unwanted(|_| true);
        self.tell();
    }

    /// Takes in what was submitted, and waits for it when there is nothing else to do. False once
    /// nothing more can come.
    fn take_submissions(&mut self) -> bool {
        if self.engine.is_idle() {
            match self.submissions.recv() {
                Ok(submission) => self.accept(submission),
                Err(_) => return false,
            }
        }
        loop {
            match self.submissions.try_recv() {
                Ok(submission) => self.accept(submission),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn accept(&mut self, Submission { request, client }: Submission) {
        let id = self.engine.submit(request);
        let id = id.expect("invariant: validated before it was sent");
        self.clients.insert(id, client);
        self.accepted += 1;
    }

    fn cancel_unwanted(&mut self, unwanted: fn(&Client) -> bool) {
        for (&id, client) in &self.clients {
            if unwanted(client) {
                self.engine.cancel(id);
            }
        }
    }

    fn step(&mut self) {
        let start = Instant::now();
        let Some(stats) = self.engine.plan() else {
            return;
        };
        self.tell();
        self.engine.run();
        let duration = start.elapsed();
        self.engine.took(&stats, duration);
        (self.observe)(stats, duration);
    }

    /// Hands events to those who wait, who shall find the board as it is now.
    fn tell(&mut self) {
        let mut load = self.board.load();
        *load = self.engine.load();
        let accepted = std::mem::take(&mut self.accepted);
        self.board.underway.fetch_sub(accepted, Ordering::Relaxed);
        drop(load);
        for event in self.engine.events() {
            let is_last = event.kind.is_last();
            if let Some(client) = self.clients.get(&event.request) {
                client.tell(event.kind);
            }
            if is_last {
                self.clients.remove(&event.request);
            }
        }
    }

    /// After a panic nothing in the engine is sure, so no request goes on.
    fn fail_all(&mut self, reason: &str) {
        let told = self.board.failure.set(reason.to_owned());
        told.expect("invariant: a thread ends once");
        for (_, client) in self.clients.drain() {
            let failure = Failure::Stopped(reason.to_owned());
            client.tell(EventKind::Failed(failure));
        }
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    match text {
        Some(text) => format!("a step panicked: {text}"),
        None => "a step panicked".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeRunner, Transcript, small_limits};
    use crate::{FinishReason, KvPolicy, SamplingParams};

    #[test]
    fn dropping_the_engine_cancels_what_is_unfinished() {
        let (permit, permits) = channel::<()>();
        let engine = Engine::new(FakeRunner::new(small_limits()), KvPolicy::Paged).unwrap();
        // No step ends before the permit is dropped, and that is after the engine.
        let thread = EngineThread::spawn_observed(engine, move |_, _| {
            let _ = permits.recv();
        });
        let mut thread = thread.unwrap();
        let request = Request::generate(vec![1, 2], SamplingParams::greedy());
        let streams = [(); 2].map(|()| thread.submit(request.clone()).unwrap());
        thread.submissions = None;
        drop(permit);
        drop(thread);
        let reasons = streams.map(|stream| Transcript::of(stream).reason());
        assert_eq!(reasons, [Some(FinishReason::Cancelled); 2]);
    }

    #[test]
    fn who_comes_while_the_thread_fails_is_told_why() {
        let (permit, permits) = channel::<()>();
        let engine = Engine::new(FakeRunner::new(small_limits()), KvPolicy::Paged).unwrap();
        let thread = EngineThread::spawn_observed(engine, move |_, _| {
            let _ = permits.recv();
            panic!("as the test wants it");
        });
        let thread = thread.unwrap();
        let request = Request::generate(vec![1, 2], SamplingParams::greedy());
        let mut taken_in = thread.submit(request.clone()).unwrap();
        // It runs: the step that ends in the panic is under way or about to be.
        assert!(matches!(taken_in.next(), Some(EventKind::Started)));
        let late = thread.submit(request).unwrap();
        drop(permit);
        for stream in [taken_in, late] {
            let last = stream.last();
            let Some(EventKind::Failed(Failure::Stopped(reason))) = last else {
                panic!("{last:?}");
            };
            assert!(reason.contains("as the test wants it"), "{reason}");
        }
    }
}
