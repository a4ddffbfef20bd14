//! `cargo xtask soak`: many clients, most of them bad, against one server, for as long as is asked.
//!
//! Owns the run and what must hold at its end. What clients do is in `client`, how they speak in
//! `http`, the server's process in `server`. Everything stays on the loopback address.

mod client;
mod http;
mod server;

use std::{
    collections::BTreeMap,
    io::{self, Write},
    path::PathBuf,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use clap::Args;

use client::Client;
use server::{Limits, Server};

/// Let many bad clients loose on a server and see whether anything is lost.
#[derive(Args)]
pub struct Arguments {
    /// The program that serves.
    #[arg(long, value_name = "FILE", default_value = "target/release/fornax")]
    program: PathBuf,
    /// Seconds of load, before the server is told to stop in the middle of more.
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Clients at once.
    #[arg(long, default_value_t = 200)]
    clients: usize,
    /// What the clients' choices come from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Load before the memory is measured for the first time, of the whole.
const WARM_UP: f64 = 0.25;
/// Memory that may come on top of the first measure: buffers of whoever is connected just then.
const GROWTH: f64 = 1.10;
const GROWTH_BYTES: u64 = 24 << 20;
/// How long the server may take to have nothing to do once nobody asks any more.
const REST: Duration = Duration::from_secs(30);
/// Load before the server is told to stop.
const LAST_LOAD: Duration = Duration::from_secs(5);
/// How often it is told how far all is.
const TELL: Duration = Duration::from_secs(30);
/// What must have happened, or the soak was none.
const PREEMPTIONS: &str = "vllm:num_preemptions_total";
const EVICTIONS: &str = "fornax:evicted_pages_total";
/// How long the server may finish what it has begun. Answers here are short.
const DRAIN: Duration = Duration::from_secs(30);

/// What clients count, and what went wrong.
#[derive(Default)]
pub struct Tally {
    counts: Mutex<BTreeMap<&'static str, usize>>,
    wrong: Mutex<Vec<String>>,
    /// Clients stop before their next request.
    is_over: AtomicBool,
    /// When the server was told to stop: doors close from then on.
    stopping: OnceLock<Instant>,
}

impl Tally {
    fn count(&self, what: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what).or_default() += 1;
    }

    fn sum(&self) -> usize {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.values().sum()
    }

    fn wrong(&self, what: String) {
        self.wrong
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(what);
    }
}

/// Runs the command.
///
/// # Errors
/// Something was lost: a page, a request, memory, the server itself.
pub fn run(arguments: &Arguments) -> Result<()> {
    let limits = Limits {
        head: Duration::from_secs(2),
        body: Duration::from_secs(3),
        idle: Duration::from_secs(20),
        stall: Duration::from_secs(3),
        drain: DRAIN,
    };
    let server = Server::start(&arguments.program, &limits)?;
    let address = server.address();
    let whole = Duration::from_secs(arguments.seconds);
    let (clients, seconds) = (arguments.clients, arguments.seconds);
    say(&format!("{clients} clients for {seconds} s at {address}"));

    let tally = Tally::default();
    let early = load(arguments, &server, &limits, &tally, whole)?;
    let requests = tally.sum();
    say(&format!(
        "{requests} requests; waiting until the server rests"
    ));
    server.wait_for_rest(REST)?;
    let late = server.resident_bytes()?;
    let metrics = server.metrics()?;
    check(&tally)?;
    // Pages that never ran out would have tested less than half of what pages do.
    for name in [PREEMPTIONS, EVICTIONS] {
        let count = server::value(&metrics, name)?;
        ensure!(count > 0.0, "{name} is 0: the load was too small");
    }
    let most = (early as f64 * GROWTH) as u64 + GROWTH_BYTES;
    ensure!(
        late <= most,
        "memory grew from {early} to {late} bytes; {most} at most"
    );

    say("once more, with the end of the server in the middle of it");
    let last = Tally::default();
    let code = thread::scope(|scope| {
        for index in 0..arguments.clients {
            let mut client = Client::new(arguments.seed + 1, index, address, &limits, &last);
            scope.spawn(move || client.run());
        }
        thread::sleep(LAST_LOAD);
        let now = last.stopping.set(Instant::now());
        now.expect("invariant: told once");
        let code = server.stop(DRAIN + REST);
        last.is_over.store(true, Ordering::SeqCst);
        code
    });
    check(&last)?;
    let code = code?;
    ensure!(code == 0, "the server ended with {code}");
    report(&tally, &metrics, early, late)
}

/// All clients at once for so long; answers the server's memory after the warm-up.
fn load(
    arguments: &Arguments,
    server: &Server,
    limits: &Limits,
    tally: &Tally,
    whole: Duration,
) -> Result<u64> {
    let start = Instant::now();
    thread::scope(|scope| {
        for index in 0..arguments.clients {
            let mut client = Client::new(arguments.seed, index, server.address(), limits, tally);
            scope.spawn(move || client.run());
        }
        thread::sleep(whole.mul_f64(WARM_UP));
        let early = server.resident_bytes();
        while let Some(left) = whole.checked_sub(start.elapsed()) {
            thread::sleep(left.min(TELL));
            if check(tally).is_err() {
                break;
            }
            say(&format!(
                "{:4} s: {} requests",
                start.elapsed().as_secs(),
                tally.sum()
            ));
        }
        tally.is_over.store(true, Ordering::SeqCst);
        early
    })
}

/// Says how far all is.
fn say(line: &str) {
    // Whoever closed stderr does not want to know.
    let _ = writeln!(io::stderr(), "{line}");
}

fn check(tally: &Tally) -> Result<()> {
    let wrong = tally.wrong.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(first) = wrong.first() {
        bail!(
            "{} clients were served wrongly, the first: {first}",
            wrong.len()
        );
    }
    Ok(())
}

fn report(tally: &Tally, metrics: &str, early: u64, late: u64) -> Result<()> {
    let counts = tally.counts.lock().unwrap_or_else(PoisonError::into_inner);
    let mut out = io::stdout().lock();
    for (what, count) in &*counts {
        writeln!(out, "{what:28} {count}")?;
    }
    for name in [
        "vllm:generation_tokens_total",
        "vllm:prefix_cache_hits_total",
        PREEMPTIONS,
        EVICTIONS,
    ] {
        writeln!(out, "{name:28} {}", server::value(metrics, name)?)?;
    }
    let answers: usize = counts.values().sum();
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    writeln!(
        out,
        "{answers} requests, nothing lost; memory {:.1} MiB, then {:.1} MiB",
        mebibytes(early),
        mebibytes(late)
    )?;
    Ok(())
}
