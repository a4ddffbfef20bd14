//! The server: from opening its door to the last answer.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fornax::Model;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::app::{self, App};
use crate::config::{Config, Listen};
use crate::connection::Connections;
use crate::listener::{Address, Listener};
use crate::{journal, tls};

/// How often steps are counted when nobody asks for the metrics.
const COUNT_STEPS: Duration = Duration::from_secs(1);
/// How often the engine is looked at.
const LOOK_AT_ENGINE: Duration = Duration::from_millis(250);
/// How long no connection is taken when the system has no room for one.
const NO_ROOM: Duration = Duration::from_millis(100);

/// How long clients have to take the error that ends what was not answered in time.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A server whose door is open; connections wait until it runs.
pub struct Server {
    listener: Listener,
    address: Address,
    app: Arc<App>,
    router: axum::Router,
    tls: Option<tokio_rustls::TlsAcceptor>,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system does not give the address.
    #[error("cannot listen on {host}:{port}: {error}; choose another --host or --port")]
    Address {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// What the system says; part of the message, so not told once more as its source.
        error: io::Error,
    },
    /// The system does not give the socket.
    #[error("cannot listen on {path}: {error}; choose another --socket")]
    Socket {
        /// The file asked for.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// A setting that cannot be met.
    #[error("{0}")]
    Config(String),
}

/// How a server ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every answer that had begun was finished.
    Drained,
    /// So many clients had no whole answer when the time was over, or had not asked to the end.
    /// Whoever had asked to the end was told.
    CutOff(usize),
    /// The engine can answer nothing any more, for this reason. Whoever waited was told.
    EngineFailed(String),
}

impl Server {
    /// Opens the door.
    ///
    /// # Errors
    /// The system does not give the address, or a setting cannot be met.
    pub async fn bind(model: Model, config: Config, listen: &Listen) -> Result<Self, BindError> {
        let tls = config.tls.as_ref().map(tls::acceptor).transpose();
        let tls = tls.map_err(BindError::Config)?;
        let failed = |error| match listen {
            Listen::Tcp { host, port } => BindError::Address {
                host: host.clone(),
                port: *port,
                error,
            },
            Listen::Unix(path) => BindError::Socket {
                path: path.display().to_string(),
                error,
            },
        };
        let listener = Listener::open(listen).await.map_err(failed)?;
        let address = listener.address().map_err(failed)?;
        let app = Arc::new(App::new(model, config));
        let router = app::router(app.clone()).map_err(BindError::Config)?;
        Ok(Self {
            listener,
            address,
            app,
            router,
            tls,
        })
    }

    /// Where it can be reached.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Serves until `stop` is ready or the engine has failed, then takes no more connections and
    /// finishes what has begun, for as long as the configuration allows.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Ended {
        let (told, stopping) = watch::channel(false);
        let (alive, mut ended) = mpsc::channel(1);
        let connections = Connections {
            router: self.router,
            tls: self.tls,
            timeouts: self.app.config.timeouts,
            stopping,
            _alive: alive,
        };
        tokio::select! {
            () = stop => {}
            () = engine_failed(&self.app.model) => {}
            never = take(&self.listener, &connections, &self.app) => match never {},
            never = count_steps(&self.app) => match never {},
        }
        drop((self.listener, connections));
        // Nobody listens where no connection is left.
        let _ = told.send(true);
        let cut_off = tokio::select! {
            _ = ended.recv() => 0,
            // Each of them is in the midst of a request or its answer: who asks for nothing more was let go.
            () = sleep(self.app.config.drain) => ended.sender_strong_count(),
            never = count_steps(&self.app) => match never {},
        };
        if cut_off > 0 {
            self.app.ending.come();
            let _ = timeout(LAST_WORDS, ended.recv()).await;
        }
        match (self.app.model.engine_failure(), cut_off) {
            (Some(reason), _) => Ended::EngineFailed(reason),
            (None, 0) => Ended::Drained,
            (None, requests) => Ended::CutOff(requests),
        }
    }
}

/// Ready once no step can run any more: a server that can only refuse makes way for a new one.
async fn engine_failed(model: &Model) {
    while model.engine_failure().is_none() {
        sleep(LOOK_AT_ENGINE).await;
    }
}

/// Takes connections for ever, each into a task of its own.
async fn take(listener: &Listener, connections: &Connections, app: &App) -> Infallible {
    loop {
        match listener.accept().await {
            Ok(stream) => {
                tokio::spawn(connections.clone().serve(stream));
            }
            Err(error) if is_of_one_client(&error) => {}
            // Too many open files, for one: some will be closed.
            Err(error) => {
                let entry = [("error", json!(error.to_string()))];
                journal::write(app.config.log, "no-connection", entry);
                sleep(NO_ROOM).await;
            }
        }
    }
}

fn is_of_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput};
    // macOS says that an option of a socket is invalid when its client is gone.
    [
        ConnectionAborted,
        ConnectionRefused,
        ConnectionReset,
        InvalidInput,
    ]
    .contains(&error.kind())
}

/// Counts steps now and then, for ever: only so many are kept until somebody takes them.
async fn count_steps(app: &App) -> Infallible {
    let mut ticks = interval(COUNT_STEPS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        app.metrics.observe(&app.model.take_forwards());
    }
}
