//! `GET /health`, `/ready`, `/version` and `/metrics`: for those who watch the server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use crate::app::App;

/// Whether the process is worth keeping: false once a step of the engine panicked.
pub async fn health(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    match app.model.is_running() {
        true => (StatusCode::OK, Json(json!({"status": "ok"}))),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({"status": "the engine has stopped; start the server again"})),
        ),
    }
}

/// Whether requests can be sent. The address is open only once the model is loaded.
pub async fn ready(app: State<Arc<App>>) -> (StatusCode, Json<Value>) {
    health(app).await
}

/// What is running.
pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// What was counted.
pub async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    app.metrics.observe(&app.model.take_forwards());
    let form = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (form, app.metrics.text(app.model.engine_load()))
}
