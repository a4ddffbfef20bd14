//! What becomes of requests when a step of the model fails, and when one panics.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};

use common::{BUILT_IN, Running, chat, data, get, metric, post, start};
use fornax::engine::{Limits, Runner, RunnerError, StepBatch, StepOutput, Ticket};
use fornax::{LoadOptions, Model};
use fornax_server::Ended;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";
const STORY: &str = "Tell me a story about a fox";

/// What happens instead of a step.
enum Fault {
    Error,
    Panic,
}

/// What goes wrong with the next step that has so many rows.
type Next = Arc<Mutex<Option<(Fault, usize)>>>;

/// The model's own runner, and steps that go wrong where the test wants it.
struct Faulty {
    inner: Box<dyn Runner>,
    next: Next,
}

impl Runner for Faulty {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<Ticket, RunnerError> {
        let mut next = self.next.lock().unwrap();
        let fault = next.take_if(|(_, rows)| batch.rows().len() >= *rows);
        drop(next);
        match fault {
            None => self.inner.submit(batch),
            Some((Fault::Error, _)) => Err(RunnerError("the device is lost".to_owned())),
            Some((Fault::Panic, _)) => panic!("as the test wants it"),
        }
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), RunnerError> {
        self.inner.wait(ticket, output)
    }
}

fn faulty() -> (Running, Next) {
    let next = Next::default();
    let shared = next.clone();
    let options = LoadOptions::default();
    let model = Model::load_through(BUILT_IN, &options, |inner| {
        Box::new(Faulty {
            inner,
            next: shared,
        })
    });
    (start(model.unwrap(), |_| {}), next)
}

/// So many streams at once, each read to its end; answers the message of the error at the end of
/// each, if there is one.
fn streams(address: SocketAddr, count: usize) -> Vec<Option<String>> {
    join(begin_streams(address, count))
}

/// A stream, and the message of the error that it ended with.
type Client = JoinHandle<Option<String>>;

fn begin_streams(address: SocketAddr, count: usize) -> Vec<Client> {
    let clients = (0..count).map(|index| {
        let extra = json!({"stream": true, "max_tokens": 400, "ignore_eos": true, "seed": index});
        spawn(move || {
            let reply = post(address, CHAT, &chat(STORY, extra));
            assert_eq!(reply.status, 200, "{reply:?}");
            let last = data(&reply.body).pop().unwrap();
            last["error"]["message"].as_str().map(str::to_owned)
        })
    });
    clients.collect()
}

fn join(clients: Vec<Client>) -> Vec<Option<String>> {
    clients.into_iter().map(|one| one.join().unwrap()).collect()
}

#[test]
fn a_step_that_fails_takes_its_requests_along_and_no_other() {
    let (server, next) = faulty();
    let address = server.address;
    *next.lock().unwrap() = Some((Fault::Error, 1));
    let reply = post(address, CHAT, &chat(STORY, json!({})));
    assert_eq!(reply.status, 500);
    let (message, ..) = reply.error();
    assert!(message.contains("the device is lost"), "{message}");
    assert_eq!(reply.json()["error"]["type"], "server_error");
    // The same prompt again: nothing of what failed is taken for computed.
    let whole = post(address, CHAT, &chat(STORY, json!({})));
    assert_eq!(whole.status, 200);
    assert_eq!(
        whole.json()["usage"]["prompt_tokens_details"]["cached_tokens"],
        0
    );
    assert_eq!(get(address, "/health").status, 200);

    // In the midst of four streams; the fifth has no place in that step and goes on.
    *next.lock().unwrap() = Some((Fault::Error, 4));
    let ends = streams(address, 5);
    let failed = ends.iter().flatten();
    assert_eq!(failed.clone().count(), 4, "{ends:?}");
    assert!(
        failed
            .clone()
            .all(|told| told.contains("the device is lost"))
    );
    assert_eq!(get(address, "/health").status, 200);
    assert_eq!(metric(address, "vllm:num_requests_running"), 0.0);
    assert_eq!(metric(address, "vllm:kv_cache_usage_perc"), 0.0);
    let errors =
        "fornax:request_failure_total{model_name=\"fornax-mini\",finished_reason=\"error\"}";
    assert_eq!(metric(address, errors), 5.0);
    let again = post(address, CHAT, &chat(STORY, json!({})));
    assert_eq!(again.json()["choices"], whole.json()["choices"]);
    assert_eq!(server.stop(), Ended::Drained);
}

#[test]
fn a_step_that_panics_is_told_to_all_and_ends_the_server() {
    let (server, next) = faulty();
    let address = server.address;
    // Those that run and the one that waits.
    let clients = begin_streams(address, 5);
    while metric(address, "vllm:num_requests_running") < 4.0
        || metric(address, "vllm:num_requests_waiting") < 1.0
    {
        std::thread::yield_now();
    }
    *next.lock().unwrap() = Some((Fault::Panic, 4));
    let ends: BTreeSet<_> = join(clients).into_iter().collect();
    assert!(!ends.contains(&None), "{ends:?}");
    assert!(
        ends.iter().flatten().all(|told| told.contains("panicked")),
        "{ends:?}"
    );
    // Nobody told it to.
    let Ended::EngineFailed(reason) = server.thread.join().unwrap() else {
        panic!("the server ended otherwise");
    };
    assert!(reason.contains("as the test wants it"), "{reason}");
    std::net::TcpStream::connect(address).unwrap_err();
}

#[test]
fn who_is_not_streamed_to_is_answered_500_by_a_panic() {
    let (server, next) = faulty();
    *next.lock().unwrap() = Some((Fault::Panic, 1));
    let reply = post(server.address, CHAT, &chat(STORY, json!({})));
    assert_eq!(reply.status, 500, "{reply:?}");
    let (message, ..) = reply.error();
    assert!(message.contains("panicked"), "{message}");
    assert!(matches!(
        server.thread.join().unwrap(),
        Ended::EngineFailed(_)
    ));
}
