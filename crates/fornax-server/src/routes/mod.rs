//! One file per endpoint: its fields, its answer, its handler. Here is which address leads where.

pub mod chat;
pub mod completions;
pub mod description;
pub mod embeddings;
pub mod models;
pub mod status;
pub mod tokenize;

use std::sync::Arc;

use axum::handler::Handler;
#[cfg(test)]
use axum::http::Method;
use axum::routing::{MethodRouter, get, post};

use crate::app::App;

/// An address and what answers there.
pub struct Endpoint {
    /// For the test that compares.
    #[cfg(test)]
    pub method: Method,
    /// As axum writes it: `{*id}` is the rest of the path.
    pub path: &'static str,
    /// Whether no key is asked for.
    pub open: bool,
    pub handler: MethodRouter<Arc<App>>,
}

impl Endpoint {
    /// No key is asked for.
    fn open(self) -> Self {
        Self { open: true, ..self }
    }
}

/// Every address. `openapi.json` describes them, and a test compares the two.
pub fn endpoints() -> Vec<Endpoint> {
    vec![
        asked("/health", status::health).open(),
        asked("/ready", status::ready).open(),
        asked("/openapi.json", description::openapi).open(),
        asked("/docs", description::page).open(),
        asked("/version", status::version),
        asked("/metrics", status::metrics),
        posted("/tokenize", tokenize::tokenize),
        posted("/detokenize", tokenize::detokenize),
        asked("/v1/models", models::list),
        asked("/v1/models/{*id}", models::one),
        posted("/v1/chat/completions", chat::create),
        posted("/v1/chat/completions/render", chat::render),
        posted("/v1/completions", completions::create),
        posted("/v1/completions/render", completions::render),
        posted("/v1/embeddings", embeddings::create),
    ]
}

fn asked<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Endpoint {
    Endpoint {
        #[cfg(test)]
        method: Method::GET,
        path,
        open: false,
        handler: get(handler),
    }
}

fn posted<T: 'static>(path: &'static str, handler: impl Handler<T, Arc<App>>) -> Endpoint {
    Endpoint {
        #[cfg(test)]
        method: Method::POST,
        path,
        open: false,
        handler: post(handler),
    }
}
