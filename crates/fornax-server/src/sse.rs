//! Answers as an event stream.
//!
//! Owns the order: what opens it, an event at a time, what closes it, `[DONE]`. What a chunk holds
//! is the endpoint's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;

use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use fornax::Event;
use futures_util::stream::unfold;
use serde_json::Value;

use crate::answers::Answers;
use crate::app::App;
use crate::ending::Ending;
use crate::openai::error::ApiError;

/// Turns events into the chunks of an endpoint.
pub trait Chunks: Send + 'static {
    /// What is sent before the first event.
    fn opening(&mut self) -> Vec<Value>;
    /// What an event becomes; a piece of text may become nothing.
    fn event(&mut self, index: usize, event: Event) -> Vec<Value>;
    /// What is sent behind the last event, before `[DONE]`.
    fn closing(&mut self) -> Vec<Value>;
}

/// Streams the answers, if there are any, once they have begun, which may take long: until then the
/// client has the head of the response. Whoever stops reading cancels them.
pub fn respond<C: Chunks>(app: &App, begun: impl Begun<C>) -> Response {
    let stream = Stream {
        ready: VecDeque::new(),
        state: State::Beginning(Box::pin(begun)),
        ending: app.ending.clone(),
    };
    let lines = unfold(stream, async |mut stream| {
        let line = stream.next().await?;
        let event = axum::response::sse::Event::default().data(line);
        Some((Ok::<_, Infallible>(event), stream))
    });
    let ping = KeepAlive::new().interval(app.config.ping);
    let ping = ping.text("still at work");
    Sse::new(lines).keep_alive(ping).into_response()
}

/// Ready once answers have begun, with what they become; there may be nothing to answer.
pub trait Begun<C>:
    Future<Output = Result<(Option<Answers>, C), ApiError>> + Send + 'static
{
}

impl<C, F> Begun<C> for F where
    F: Future<Output = Result<(Option<Answers>, C), ApiError>> + Send + 'static
{
}

struct Stream<C> {
    /// To be sent next.
    ready: VecDeque<String>,
    state: State<C>,
    ending: Ending,
}

enum State<C> {
    Beginning(Pin<Box<dyn Begun<C>>>),
    Answering(Answers, C),
    /// Nothing more comes.
    Over,
}

impl<C: Chunks> Stream<C> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if let State::Over = self.state {
                return None;
            }
            // The status was sent long ago: the error is an event, and the last one.
            if let Err(error) = self.go_on().await {
                self.state = State::Over;
                self.push(vec![error.body()]);
            }
        }
    }

    /// Waits for what happens next.
    async fn go_on(&mut self) -> Result<(), ApiError> {
        match &mut self.state {
            State::Beginning(begun) => {
                let (answers, mut chunks) = self.ending.or(begun).await??;
                let opening = chunks.opening();
                self.push(opening);
                match answers {
                    Some(answers) => self.state = State::Answering(answers, chunks),
                    None => self.close(chunks.closing()),
                }
            }
            State::Answering(answers, chunks) => match self.ending.or(answers.next()).await?? {
                Some((index, event)) => {
                    let told = chunks.event(index, event);
                    self.push(told);
                }
                None => {
                    let closing = chunks.closing();
                    self.close(closing);
                }
            },
            State::Over => {}
        }
        Ok(())
    }

    fn push(&mut self, chunks: Vec<Value>) {
        self.ready.extend(chunks.iter().map(Value::to_string));
    }

    fn close(&mut self, closing: Vec<Value>) {
        self.state = State::Over;
        self.push(closing);
        self.ready.push_back("[DONE]".to_owned());
    }
}
