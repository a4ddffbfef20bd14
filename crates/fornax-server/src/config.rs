//! What a server is told before it starts.

use std::time::Duration;

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// What clients call the model.
    pub model_name: String,
    /// Answers that may wait while others run; one more is refused.
    pub queue: usize,
    /// Bytes of the largest body.
    pub body_limit: usize,
    /// Who shows one of these is let in; empty lets everybody in.
    pub api_keys: Vec<String>,
    /// Web pages of these origins may call, `*` for any; empty leaves that to the browser, which
    /// forbids it.
    pub cors_origins: Vec<String>,
    /// A stream that is silent for so long is sent a comment, so that nobody takes it for dead.
    pub ping: Duration,
    /// How long running answers may go on once the server is told to stop.
    pub drain: Duration,
    /// What goes to stderr.
    pub log: LogForm,
}

impl Config {
    /// The defaults, for a model of this name.
    pub fn new(model_name: impl Into<String>) -> Self {
        Self {
            model_name: model_name.into(),
            queue: 256,
            body_limit: 8 << 20,
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            ping: Duration::from_secs(5),
            drain: Duration::from_secs(30),
            log: LogForm::Text,
        }
    }
}

/// How requests are logged; never with a word of a prompt or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// Not at all.
    Off,
    /// For people, one line each.
    Text,
    /// For programs, one JSON object a line.
    Json,
}
