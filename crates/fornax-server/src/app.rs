//! What every request can reach, and which address leads where.

use std::any;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use fornax::Model;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use crate::config::Config;
use crate::ending::{self, Ending};
use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::openai::error::ApiError;
use crate::{auth, journal, routes};

/// The server's parts, shared by all requests.
pub struct App {
    /// What answers.
    pub model: Model,
    /// How the server behaves.
    pub config: Config,
    /// Who may run or wait.
    pub gate: Gate,
    /// Whether answers that run have time left.
    pub ending: Ending,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// When the model was ready, in seconds of Unix time.
    pub created: u64,
}

impl App {
    /// The parts around a model.
    pub fn new(model: Model, config: Config) -> Self {
        Self {
            gate: Gate::new(model.sequences().saturating_add(config.queue)),
            ending: Ending::new(),
            metrics: Arc::new(Metrics::new(&config.model_name, &model)),
            created: unix_seconds(),
            model,
            config,
        }
    }

    /// Makes sure that the model a request names, if it names one, is the one that is here.
    ///
    /// # Errors
    /// It names another.
    pub fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            Some(asked) if asked != self.config.model_name => {
                Err(ApiError::unknown_model(asked, &self.config.model_name))
            }
            _ => Ok(()),
        }
    }

    /// Runs what may take long beside the connections: a template, a tokenizer on a long text, the
    /// writing of a long answer.
    ///
    /// # Errors
    /// It failed, or panicked.
    pub async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Model) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let model = self.model.clone();
        let done = tokio::task::spawn_blocking(move || work(&model)).await;
        done.unwrap_or_else(|_| Err(ApiError::internal("the server failed on this request")))
    }
}

/// Now, in seconds of Unix time.
pub fn unix_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Every address, behind what stands in front of all of them.
///
/// # Errors
/// An origin that no header can hold.
pub fn router(app: Arc<App>) -> Result<Router, String> {
    let cors = cors(&app.config.cors_origins)?;
    let (mut open, mut closed) = (Router::new(), Router::new());
    for endpoint in routes::endpoints() {
        let side = if endpoint.open {
            &mut open
        } else {
            &mut closed
        };
        *side = std::mem::take(side).route(endpoint.path, endpoint.handler);
    }
    let keys = middleware::from_fn_with_state(app.clone(), auth::check);
    let mut router = open
        .merge(closed.route_layer(keys))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(app.config.body_limit))
        .layer(middleware::from_fn_with_state(app.clone(), ending::in_time));
    if let Some(cors) = cors {
        router = router.layer(cors);
    }
    Ok(router
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(app.clone(), journal::record))
        .with_state(app))
}

/// What a request is told whose handler panicked; the panic itself is on stderr.
fn panicked(_: Box<dyn any::Any + Send>) -> Response {
    ApiError::internal("the server failed on this request").into_response()
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::unknown_path(request.method().as_str(), request.uri().path())
}

async fn wrong_method(request: Request) -> ApiError {
    ApiError::wrong_method(request.method().as_str(), request.uri().path())
}

/// Leave for web pages of these origins; `None` where none is given.
fn cors(origins: &[String]) -> Result<Option<CorsLayer>, String> {
    if origins.is_empty() {
        return Ok(None);
    }
    let allowed = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::from(Any),
        false => {
            let value = |origin: &String| {
                HeaderValue::from_str(origin).map_err(|_| format!("`{origin}` is no origin"))
            };
            AllowOrigin::list(origins.iter().map(value).collect::<Result<Vec<_>, _>>()?)
        }
    };
    let told: [HeaderName; 2] = [header::RETRY_AFTER, journal::REQUEST_ID];
    Ok(Some(
        CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            // By name: browsers do not take `*` for `Authorization`.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(told),
    ))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer_of_500_and_the_next_request_is_answered() {
        let broken = async || -> StatusCode { panic!("as the test wants it") };
        let router = Router::new()
            .route("/broken", get(broken))
            .route("/whole", get(async || "whole"))
            .layer(CatchPanicLayer::custom(panicked));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        for (path, status) in [("broken", "500"), ("whole", "200")] {
            let told = tokio::task::spawn_blocking(move || ask(address, path)).await;
            let told = told.unwrap();
            assert!(told.starts_with(&format!("HTTP/1.1 {status}")), "{told}");
        }
    }

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        let request = format!("GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        told
    }
}
