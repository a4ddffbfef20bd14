//! The end of the time that answers have once the server is to end.
//!
//! Everything that an answer waits for is waited for through an [`Ending`], so that each is told of
//! the end, as a status or, behind the first byte of a stream, as an event.

use std::pin::pin;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::watch;

use crate::app::App;
use crate::openai::error::ApiError;

/// Whether the time is over.
#[derive(Clone)]
pub struct Ending(watch::Sender<bool>);

impl Ending {
    /// There is time.
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// The time is over: whoever waits is told so.
    pub fn come(&self) {
        self.0.send_replace(true);
    }

    /// Waits for something, if there is time.
    ///
    /// # Errors
    /// The time is over; what was waited for is dropped.
    pub async fn or<T>(&self, wanted: impl Future<Output = T>) -> Result<T, ApiError> {
        let mut over = self.0.subscribe();
        let over = pin!(over.wait_for(|is_over| *is_over));
        tokio::select! {
            // First: a stream may have something to tell for long.
            biased;
            _ = over => Err(ApiError::ending()),
            wanted = wanted => Ok(wanted),
        }
    }
}

/// Answers a request in time, or with an error.
///
/// # Errors
/// The time is over.
pub async fn in_time(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    app.ending.or(next.run(request)).await
}
