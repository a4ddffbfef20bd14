//! Answers as an event stream.
//!
//! Owns the order: what opens it, an event at a time, what closes it, `[DONE]`. What a chunk holds
//! is the endpoint's.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use fornax::Event;
use futures_util::stream::unfold;
use serde_json::Value;

use crate::answers::Answers;
use crate::app::App;
use crate::ending::Ending;

/// Turns events into the chunks of an endpoint.
pub trait Chunks: Send + 'static {
    /// What is sent before the first event.
    fn opening(&mut self) -> Vec<Value>;
    /// What an event becomes; a piece of text may become nothing.
    fn event(&mut self, index: usize, event: Event) -> Vec<Value>;
    /// What is sent behind the last event, before `[DONE]`.
    fn closing(&mut self) -> Vec<Value>;
}

/// Streams the answers, if there are any; whoever stops reading cancels them.
pub fn respond(app: &App, answers: impl Into<Option<Answers>>, chunks: impl Chunks) -> Response {
    let mut stream = Stream {
        ready: VecDeque::new(),
        answers: answers.into(),
        chunks,
        ending: app.ending.clone(),
    };
    let opening = stream.chunks.opening();
    stream.push(opening);
    if stream.answers.is_none() {
        stream.close();
    }
    let lines = unfold(stream, async |mut stream| {
        let line = stream.next().await?;
        let event = axum::response::sse::Event::default().data(line);
        Some((Ok::<_, Infallible>(event), stream))
    });
    let ping = KeepAlive::new().interval(app.config.ping);
    let ping = ping.text("still at work");
    Sse::new(lines).keep_alive(ping).into_response()
}

struct Stream<C> {
    /// To be sent next.
    ready: VecDeque<String>,
    /// `None` once nothing more comes.
    answers: Option<Answers>,
    chunks: C,
    ending: Ending,
}

impl<C: Chunks> Stream<C> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            let next = self.answers.as_mut()?.next();
            match self.ending.or(next).await.flatten() {
                Ok(Some((index, event))) => {
                    let chunks = self.chunks.event(index, event);
                    self.push(chunks);
                }
                Ok(None) => self.close(),
                // The status was sent long ago: the error is an event, and the last one.
                Err(error) => {
                    self.answers = None;
                    self.push(vec![error.body()]);
                }
            }
        }
    }

    fn push(&mut self, chunks: Vec<Value>) {
        self.ready.extend(chunks.iter().map(Value::to_string));
    }

    fn close(&mut self) {
        self.answers = None;
        let closing = self.chunks.closing();
        self.push(closing);
        self.ready.push_back("[DONE]".to_owned());
    }
}
