//! What is written down of each request: no word of a prompt unless that is asked for, and never
//! one of an answer.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::app::{App, unix_seconds};
use crate::config::LogForm;

/// Names a request, to the client and in the log.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The name of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestId(pub String);

/// Names a request, and writes down how it was answered.
pub async fn record(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let start = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let entry = [
        ("request", json!(id)),
        ("method", json!(method.as_str())),
        ("path", json!(path)),
        ("status", json!(response.status().as_u16())),
        ("ms", milliseconds(start)),
    ];
    write(app.config.log, "response", entry);
    response
}

/// Writes down what the model is given, if that is asked for.
pub fn prompt(app: &App, id: &RequestId, text: &str) {
    if app.config.log_prompts {
        let entry = [("request", json!(id.0)), ("text", json!(text))];
        write(app.config.log, "prompt", entry);
    }
}

/// Since then, in milliseconds with three decimals.
pub fn milliseconds(start: Instant) -> Value {
    json!((start.elapsed().as_secs_f64() * 1e6).round() / 1e3)
}

impl LogForm {
    /// Writes down something that the server itself does not know of, such as a signal.
    pub fn write(self, event: &str, message: &str) {
        write(self, event, [("message", json!(message))]);
    }
}

/// Writes one entry to stderr.
pub fn write<const N: usize>(form: LogForm, event: &str, fields: [(&str, Value); N]) {
    let time = Timestamp::now();
    let line = match form {
        LogForm::Off => return,
        LogForm::Json => {
            let mut entry = Map::new();
            entry.insert("time".to_owned(), json!(time.to_string()));
            entry.insert("event".to_owned(), json!(event));
            entry.extend(fields.map(|(name, value)| (name.to_owned(), value)));
            Value::Object(entry).to_string()
        }
        LogForm::Text => {
            let fields = fields.map(|(name, value)| match value {
                Value::String(text) => format!("{name}={}", text.escape_default()),
                value => format!("{name}={value}"),
            });
            format!("{time:.3} {event} {}", fields.join(" "))
        }
    };
    // Whoever closed our stderr does not want to know.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// The client's name for the request, where it is fit for a log, else one of ours.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    let fit = |id: &&str| {
        (1..=128).contains(&id.len())
            && id
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte))
    };
    given.filter(fit).map_or_else(new_id, str::to_owned)
}

/// Unlike any other of this server, and of one that ran before it.
fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{}-{count}", unix_seconds(), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(given: &'static str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_static(given));
        request_id(&headers)
    }

    #[test]
    fn a_name_that_is_fit_for_a_log_is_kept() {
        assert_eq!(id_for("client-7_a.b:c"), "client-7_a.b:c");
        for unfit in ["", "two words", "quote\""] {
            assert_ne!(id_for(unfit), unfit);
        }
        assert_ne!(new_id(), new_id());
    }
}
