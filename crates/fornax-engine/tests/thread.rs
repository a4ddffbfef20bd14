//! The engine's thread: streams, cancelling, and what a panic leaves behind.

use std::pin::pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use fornax_engine::testing::{FakeRunner, Faults, Transcript, expected_token, small_limits};
use fornax_engine::{
    Engine, EngineThread, EventKind, Failure, FinishReason, KvPolicy, Limits, Load, Request,
    RequestError, Runner, SamplingParams, StepStats, SubmitError, Task, Token,
};

fn generate(prompt: &[Token], max_tokens: usize) -> Request {
    let mut request = Request::generate(prompt.to_vec(), SamplingParams::greedy());
    if let Task::Generate(generation) = &mut request.task {
        generation.max_tokens = Some(max_tokens);
    }
    request
}

fn expected(prompt: &[Token], tokens: usize) -> Vec<Token> {
    let mut all = prompt.to_vec();
    for _ in 0..tokens {
        all.push(expected_token(&all, prompt.len(), 0, 100));
    }
    all.split_off(prompt.len())
}

fn spawn(runner: impl Runner + 'static) -> EngineThread {
    let engine = Engine::new(runner, KvPolicy::Paged).expect("limits with room");
    EngineThread::spawn(engine).expect("a thread")
}

/// An engine whose steps end only when they are let, and what lets them; dropping that lets all.
fn gated(limits: Limits) -> (EngineThread, Sender<()>, Arc<Mutex<Vec<StepStats>>>) {
    let (permit, permits) = channel();
    let steps = Arc::new(Mutex::new(Vec::new()));
    let observer = steps.clone();
    let engine = Engine::new(FakeRunner::new(limits), KvPolicy::Paged).expect("limits with room");
    let thread = EngineThread::spawn_observed(engine, move |stats, _| {
        observer
            .lock()
            .expect("no panic under the lock")
            .push(stats);
        let _ = permits.recv();
    });
    (thread.expect("a thread"), permit, steps)
}

/// Runs a future on this thread, which sleeps until it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// All that a task is told.
async fn told(thread: &EngineThread, request: Request) -> Transcript {
    let mut stream = thread.submit(request).expect("a request within bounds");
    let mut told = Transcript::default();
    while let Some(event) = stream.next_event().await {
        told.record(event);
    }
    told
}

#[test]
fn a_task_is_told_what_a_thread_is_told() {
    let thread = spawn(FakeRunner::new(small_limits()));
    for length in 1..20 {
        let prompt = vec![7; length];
        let told = block_on(told(&thread, generate(&prompt, 20)));
        assert_eq!(told.tokens, expected(&prompt, 20));
        assert_eq!(told.reason(), Some(FinishReason::Length));
    }
}

#[test]
fn a_task_is_woken_when_the_thread_ends() {
    let faults = Faults {
        panic: Some(0),
        ..Faults::default()
    };
    let thread = spawn(FakeRunner::with_faults(small_limits(), faults));
    assert_eq!(thread.failure(), None);
    let told = block_on(told(&thread, generate(&[1], 2)));
    assert!(matches!(told.failure(), Some(Failure::Stopped(_))));
    let why = thread.failure().unwrap();
    assert!(why.contains("step 0 was to panic"), "{why}");
    while thread.is_running() {
        std::thread::yield_now();
    }
    assert_eq!(
        thread.submit(generate(&[1], 2)).err(),
        Some(SubmitError::Stopped)
    );
}

#[test]
fn a_poll_without_news_answers_at_once() {
    let (thread, permit, _) = gated(small_limits());
    let mut stream = thread.submit(generate(&[1], 1)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert_eq!(stream.next(), Some(EventKind::Started));
    assert_eq!(stream.poll_next(&mut context), Poll::Pending);
    drop(permit);
    assert_eq!(Transcript::of(stream).tokens, expected(&[1], 1));
}

#[test]
fn many_clients_at_once_each_get_their_own_answer() {
    let thread = spawn(FakeRunner::new(small_limits()));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let thread = &thread;
            scope.spawn(move || {
                for length in 1..20 {
                    let prompt = vec![client; length];
                    let told = Transcript::of(thread.submit(generate(&prompt, 20)).unwrap());
                    assert_eq!(told.tokens, expected(&prompt, 20));
                    assert_eq!(told.reason(), Some(FinishReason::Length));
                }
            });
        }
    });
}

#[test]
fn a_boxed_runner_will_do() {
    let runner: Box<dyn Runner> = Box::new(FakeRunner::new(small_limits()));
    let told = Transcript::of(spawn(runner).submit(generate(&[1], 2)).unwrap());
    assert_eq!(told.tokens, expected(&[1], 2));
}

#[test]
fn a_bad_request_is_refused_while_a_step_runs() {
    let (thread, permit, _) = gated(small_limits());
    let stream = thread.submit(generate(&[1], 1)).unwrap();
    let refused = thread.submit(generate(&[], 1)).err();
    assert_eq!(
        refused,
        Some(SubmitError::Request(RequestError::EmptyPrompt))
    );
    drop(permit);
    assert_eq!(Transcript::of(stream).tokens.len(), 1);
}

#[test]
fn a_handle_cancels_before_the_next_step() {
    let (thread, permit, _) = gated(small_limits());
    let mut stream = thread.submit(generate(&[1], 50)).unwrap();
    permit.send(()).unwrap();
    assert_eq!(stream.next(), Some(EventKind::Started));
    assert!(matches!(stream.next(), Some(EventKind::Token { .. })));
    let handle = stream.cancel_handle();
    std::thread::spawn(move || handle.cancel()).join().unwrap();
    drop(permit);
    let told = Transcript::of(stream);
    assert_eq!(told.reason(), Some(FinishReason::Cancelled));
    // The step that may have been under way already.
    assert!(told.tokens.len() <= 1, "{told:?}");
}

#[test]
fn who_drops_the_stream_makes_room_for_the_next() {
    let mut limits = small_limits();
    limits.max_rows = 1;
    let (thread, permit, steps) = gated(limits);
    let mut dropped = thread.submit(generate(&[1], 60)).unwrap();
    let next = thread.submit(generate(&[2], 2)).unwrap();
    permit.send(()).unwrap();
    assert_eq!(dropped.next(), Some(EventKind::Started));
    assert!(matches!(dropped.next(), Some(EventKind::Token { .. })));
    drop(dropped);
    drop(permit);
    assert_eq!(Transcript::of(next).tokens, expected(&[2], 2));
    // One before the drop, one that may have been under way, two for the next.
    let steps = steps.lock().unwrap();
    assert!(steps.len() <= 4, "{steps:?}");
}

#[test]
fn a_panic_is_told_to_every_request_and_to_all_who_come_later() {
    let faults = Faults {
        panic: Some(2),
        ..Faults::default()
    };
    let mut limits = small_limits();
    limits.max_rows = 1;
    let thread = spawn(FakeRunner::with_faults(limits, faults));
    let streams = [1, 2].map(|token| thread.submit(generate(&[token], 9)).unwrap());
    for stream in streams {
        let told = Transcript::of(stream);
        let failure = told.failure().unwrap();
        assert!(matches!(failure, Failure::Stopped(_)), "{failure}");
        // A request that came in while the thread ended hears only that it did.
        assert!(
            failure.to_string().contains("panicked: ") || told.tokens.is_empty(),
            "{failure}"
        );
    }
    loop {
        match thread.submit(generate(&[3], 1)) {
            Err(error) => return assert_eq!(error, SubmitError::Stopped),
            Ok(stream) => assert!(Transcript::of(stream).failure().is_some()),
        }
    }
}

#[test]
fn a_failed_step_does_not_stop_the_thread() {
    let faults = Faults {
        wait: vec![0],
        ..Faults::default()
    };
    let thread = spawn(FakeRunner::with_faults(small_limits(), faults));
    let failed = Transcript::of(thread.submit(generate(&[1], 2)).unwrap());
    assert!(
        matches!(failed.failure(), Some(Failure::Runner(_))),
        "{failed:?}"
    );
    let told = Transcript::of(thread.submit(generate(&[1], 2)).unwrap());
    assert_eq!(told.tokens, expected(&[1], 2));
}

#[test]
fn the_load_is_told_while_a_step_runs_and_when_all_is_over() {
    let mut limits = small_limits();
    limits.max_rows = 1;
    let (thread, permit, _) = gated(limits);
    assert_eq!(thread.load(), Load::default());
    let mut first = thread.submit(generate(&[1; 3], 1)).unwrap();
    // Its step has begun and is not let end.
    assert_eq!(first.next(), Some(EventKind::Started));
    let second = thread.submit(generate(&[2; 3], 1)).unwrap();
    let load = thread.load();
    assert_eq!((load.running, load.waiting, load.live_pages), (1, 1, 1));
    drop(permit);
    assert_eq!(Transcript::of(first).tokens, expected(&[1; 3], 1));
    assert_eq!(Transcript::of(second).tokens, expected(&[2; 3], 1));
    let load = thread.load();
    assert_eq!((load.running, load.waiting, load.live_pages), (0, 0, 0));
    assert_eq!(load.cached_pages, 2, "one page for each prompt");
}

#[test]
fn each_step_is_observed_before_its_events_are_told() {
    let (thread, permit, observed) = gated(small_limits());
    drop(permit);
    let mut drawn = 0;
    for event in thread.submit(generate(&[1; 20], 3)).unwrap() {
        if matches!(event, EventKind::Token { .. }) {
            drawn += 1;
            let wanted: usize = observed
                .lock()
                .unwrap()
                .iter()
                .map(|stats| stats.wanted)
                .sum();
            assert!(wanted >= drawn);
        }
    }
    let tokens: Vec<_> = observed
        .lock()
        .unwrap()
        .iter()
        .map(|stats| stats.tokens)
        .collect();
    assert_eq!(tokens, [16, 4, 1, 1]);
}
