//! `GET /v1/models` and `/v1/models/ID`: the one model that is served.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use serde::Serialize;

use crate::app::App;
use crate::openai::error::ApiError;

/// A model in the form of the protocol.
#[derive(Serialize)]
pub struct Card {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens of the longest prompt and answer together.
    max_model_len: usize,
}

/// Several of them.
#[derive(Serialize)]
pub struct List {
    object: &'static str,
    data: [Card; 1],
}

/// Lists the models.
pub async fn list(State(app): State<Arc<App>>) -> Json<List> {
    Json(List {
        object: "list",
        data: [card(&app)],
    })
}

/// Tells of one model.
///
/// # Errors
/// It is not served here.
pub async fn one(
    State(app): State<Arc<App>>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Card>, ApiError> {
    // What is no text is no name of a model either, and is told as it was sent.
    let id = id.map_or_else(|_| uri.path().replacen("/v1/models/", "", 1), |Path(id)| id);
    app.check_model(Some(&id))?;
    Ok(Json(card(&app)))
}

fn card(app: &App) -> Card {
    Card {
        id: app.config.model_name.clone(),
        object: "model",
        created: app.created,
        owned_by: "fornax",
        max_model_len: app.model.context(),
    }
}
