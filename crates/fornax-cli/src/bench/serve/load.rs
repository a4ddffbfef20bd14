//! When it is asked: by so many users in turn, or at random times whatever the answers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::task::JoinSet;

use super::client::{Answer, Server};
use super::workload::Workload;
use crate::bench::progress::Progress;
use crate::bench::random::Random;

/// When sessions start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// Each of so many users starts the next one when theirs has ended.
    Closed { clients: usize },
    /// Independently of one another, so many a second on average (a Poisson process).
    Open { rate: f64 },
}

/// What came back.
pub struct Answers {
    pub answers: Vec<Answer>,
    /// Why requests failed.
    pub failures: Vec<String>,
    pub total: Duration,
}

/// Runs so many sessions.
pub async fn run(
    server: Server,
    workload: Workload,
    arrival: Arrival,
    sessions: usize,
    progress: Arc<Progress>,
) -> Result<Answers> {
    let user = Arc::new(User {
        server,
        workload,
        progress,
    });
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    match arrival {
        Arrival::Closed { clients } => {
            let next = Arc::new(AtomicUsize::new(0));
            for _ in 0..clients.min(sessions) {
                let (user, next) = (Arc::clone(&user), Arc::clone(&next));
                tasks.spawn(async move {
                    let mut outcomes = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= sessions {
                            return outcomes;
                        }
                        outcomes.extend(user.session(number).await);
                    }
                });
            }
        }
        Arrival::Open { rate } => {
            let mut random = Random::new(user.workload.seed);
            let mut at = Duration::ZERO;
            for number in 0..sessions {
                let user = Arc::clone(&user);
                tasks.spawn(async move {
                    tokio::time::sleep_until((start + at).into()).await;
                    user.session(number).await
                });
                at += Duration::from_secs_f64(random.exponential(rate));
            }
        }
    }
    let (mut answers, mut failures) = (Vec::new(), Vec::new());
    while let Some(outcomes) = tasks.join_next().await {
        for outcome in outcomes? {
            match outcome {
                Ok(answer) => answers.push(answer),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
    }
    if let (true, Some(first)) = (answers.is_empty(), failures.first()) {
        bail!(
            "all {} requests failed, the first with: {first}",
            failures.len()
        );
    }
    Ok(Answers {
        answers,
        failures,
        total: start.elapsed(),
    })
}

struct User {
    server: Server,
    workload: Workload,
    progress: Arc<Progress>,
}

impl User {
    /// All requests of a session, up to the first that fails.
    async fn session(&self, number: usize) -> Vec<Result<Answer>> {
        let mut session = self.workload.session(number);
        let mut outcomes = Vec::new();
        while let Some((path, body)) = session.next(&self.workload) {
            let outcome = self.server.stream(path, &body).await;
            self.progress.step();
            if let Ok(answer) = &outcome {
                session.answered(&answer.text);
            }
            let failed = outcome.is_err();
            outcomes.push(outcome);
            if failed {
                break;
            }
        }
        outcomes
    }
}
