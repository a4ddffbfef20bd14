//! The open address: from binding it to the last answer.

use std::future::{Future, IntoFuture};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use fornax::Model;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::app::{self, App};
use crate::config::Config;

/// How often steps are counted when nobody asks for the metrics.
const COUNT_STEPS: Duration = Duration::from_secs(1);

/// A server whose address is open; connections wait until it runs.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    router: axum::Router,
}

/// Why an address cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system does not give it.
    #[error("cannot listen on {host}:{port}: {source}; choose another --host or --port")]
    Address {
        /// The host asked for.
        host: String,
        /// The port asked for.
        port: u16,
        /// What the system says.
        source: io::Error,
    },
    /// A setting that cannot be met.
    #[error("{0}")]
    Config(String),
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every answer that had begun was finished.
    Drained,
    /// So many answers were still running when the time was over.
    CutOff(usize),
}

impl Server {
    /// Opens an address; port 0 lets the system choose one.
    ///
    /// # Errors
    /// The system does not give the address, or a setting cannot be met.
    pub async fn bind(
        model: Model,
        config: Config,
        host: &str,
        port: u16,
    ) -> Result<Self, BindError> {
        let failed = |source| BindError::Address {
            host: host.to_owned(),
            port,
            source,
        };
        let listener = TcpListener::bind((host, port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let app = Arc::new(App::new(model, config));
        let router = app::router(app.clone()).map_err(BindError::Config)?;
        Ok(Self {
            listener,
            address,
            app,
            router,
        })
    }

    /// The address that is open.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is ready, then takes no more connections and finishes what has begun,
    /// for as long as the configuration allows.
    ///
    /// # Errors
    /// The address fails.
    pub async fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> io::Result<Ended> {
        let (stopped, stopping) = oneshot::channel();
        let until = async move {
            stop.await;
            // Nobody listens any more once serving has failed by itself.
            let _ = stopped.send(());
        };
        // A token is a small packet that must not wait for the next one.
        let listener = self.listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        let serving = axum::serve(listener, self.router).with_graceful_shutdown(until);
        let drain = self.app.config.drain;
        let cut_off = async move {
            match stopping.await {
                Ok(()) => sleep(drain).await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = serving.into_future() => ended.map(|()| Ended::Drained),
            () = cut_off => Ok(Ended::CutOff(self.app.metrics.live())),
            () = count_steps(&self.app) => unreachable!("invariant: counting never ends"),
        }
    }
}

/// Counts steps now and then: only so many are kept until somebody takes them.
async fn count_steps(app: &App) {
    let mut ticks = interval(COUNT_STEPS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        app.metrics.observe(&app.model.take_forwards());
    }
}
