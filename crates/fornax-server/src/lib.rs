//! The OpenAI protocol over HTTP, on the library `fornax`.
//!
//! Owns routes, the protocol's types, streaming, limits, keys and metrics. Knows no tensor, no
//! kernel and no command line.
//!
//! ```text
//! Listener ─▶ Connections: TLS, Pace
//!                │ HTTP
//!                ▼
//!    journal ─ panics ─ CORS ─ Ending ─ keys ─▶ routes ─ Gate: a place or 429
//!                                            │
//!                                            ▼ Model::generate_tokens
//!                             Answers: events of n answers, each with its Meter
//!                                            │
//!                          one JSON object ◀─┴─▶ event stream
//! ```
//!
//! A request's answers live in the task that serves its connection. A client that goes away takes
//! that task along, and dropping a `fornax::Generation` cancels it: nothing else has to notice.

mod answers;
mod app;
mod auth;
mod config;
mod connection;
mod ending;
mod gate;
mod journal;
mod listener;
mod metrics;
mod openai;
mod pace;
mod routes;
mod server;
mod sse;
mod tls;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

pub use config::{Config, Listen, LogForm, Timeouts, Tls};
pub use listener::Address;
pub use server::{BindError, Ended, Server};
