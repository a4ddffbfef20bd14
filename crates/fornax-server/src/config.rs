//! What a server is told before it starts.

use std::path::PathBuf;
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
    /// Encrypts connections; `None` leaves them as they are.
    pub tls: Option<Tls>,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// A stream that is silent for so long is sent a comment, so that nobody takes it for dead.
    pub ping: Duration,
    /// How long running answers may go on once the server is told to stop.
    pub drain: Duration,
    /// What goes to stderr.
    pub log: LogForm,
    /// Whether the log has the text of every prompt too.
    pub log_prompts: bool,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At an address of the network.
    Tcp {
        /// A name or a number.
        host: String,
        /// 0 lets the system choose.
        port: u16,
    },
    /// At a socket in the file system.
    Unix(PathBuf),
}

/// Files in PEM form that prove who the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Its certificate, and behind it those that vouch for it.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How long a client may take before its connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the head of a request, from its first byte; and for the handshake of an encrypted
    /// connection.
    pub head: Duration,
    /// For the body of a request.
    pub body: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// To take any of what is sent to it.
    pub stall: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(60),
            idle: Duration::from_secs(75),
            stall: Duration::from_secs(30),
        }
    }
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
            tls: None,
            timeouts: Timeouts::default(),
            ping: Duration::from_secs(5),
            drain: Duration::from_secs(30),
            log: LogForm::Text,
            log_prompts: false,
        }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogForm {
    /// Not at all.
    Off,
    /// For people, one line each.
    Text,
    /// For programs, one JSON object a line.
    Json,
}
