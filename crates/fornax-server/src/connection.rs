//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::config::Timeouts;
use crate::listener::Stream;
use crate::pace::{Answering, Pace, Paced};

/// What all connections have in common.
#[derive(Clone)]
pub struct Connections {
    pub router: Router,
    pub tls: Option<TlsAcceptor>,
    pub timeouts: Timeouts,
    /// Becomes true when the server is to end.
    pub stopping: watch::Receiver<bool>,
    /// Dropped with the last connection.
    pub _alive: mpsc::Sender<Infallible>,
}

impl Connections {
    /// Serves a client until it leaves, is too slow, or the server ends and it has its answer.
    pub async fn serve(mut self, stream: Box<dyn Stream>) {
        match self.tls.clone() {
            None => self.speak(stream).await,
            Some(tls) => {
                let handshake = timeout(self.timeouts.head, tls.accept(stream));
                let handshake = tokio::select! {
                    handshake = handshake => handshake,
                    // Nothing was asked yet.
                    _ = self.stopping.wait_for(|stopping| *stopping) => return,
                };
                // Who does not speak TLS, or not in time, is not answered in the clear.
                if let Ok(Ok(stream)) = handshake {
                    self.speak(stream).await;
                }
            }
        }
    }

    async fn speak(mut self, stream: impl Stream) {
        let pace = Pace::new(self.timeouts);
        let router = TowerToHyperService::new(self.router);
        let watched = pace.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answering = watched.clone().answer();
            let response = router.call(request);
            async move {
                let response: Response<Body> = response.await?;
                Ok::<_, Infallible>(response.map(|body| Watched {
                    body,
                    _answering: answering,
                }))
            }
        });
        let stream = TokioIo::new(Paced::new(stream, pace));
        let mut connection = pin!(http1::Builder::new().serve_connection(stream, service));
        // How a connection broke is the client's affair: its requests know by themselves.
        let stop = async { self.stopping.wait_for(|stopping| *stopping).await.is_ok() };
        tokio::select! {
            _ = connection.as_mut() => {}
            _ = stop => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }
}

/// A body whose end is the end of the answer.
struct Watched {
    body: Body,
    _answering: Answering,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
