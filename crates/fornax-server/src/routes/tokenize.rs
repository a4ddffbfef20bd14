//! `POST /tokenize` and `/detokenize`: text to tokens and back, as completions see them.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fornax::Token;
use fornax::text::{ControlTokens, Special};
use serde::Serialize;

use crate::app::App;
use crate::openai::error::ApiError;
use crate::openai::fields::{Body, Fields, FromFields};

/// A text to turn into tokens.
pub struct TokenizeRequest {
    model: Option<String>,
    prompt: String,
    /// Whether BOS and EOS are added as the model asks.
    add_special_tokens: bool,
}

/// Its tokens.
#[derive(Serialize)]
struct Tokens {
    tokens: Vec<Token>,
    count: usize,
    max_model_len: usize,
}

/// Tokens to turn into a text.
pub struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<Token>,
    control_tokens: ControlTokens,
}

/// Their text.
#[derive(Serialize)]
struct Text {
    prompt: String,
}

/// Turns a text into tokens.
///
/// # Errors
/// Another model is named.
pub async fn tokenize(
    State(app): State<Arc<App>>,
    Body(request): Body<TokenizeRequest>,
) -> Result<Response, ApiError> {
    app.check_model(request.model.as_deref())?;
    let written = app.beside(move |model| {
        let tokens = match request.add_special_tokens {
            true => model.prompt_tokens(&request.prompt),
            false => model.tokenizer().encode(&request.prompt, Special::Parse),
        };
        let tokens = Tokens {
            count: tokens.len(),
            tokens,
            max_model_len: model.context(),
        };
        Ok(Json(tokens).into_response())
    });
    written.await
}

/// Turns tokens into a text.
///
/// # Errors
/// A token that the model does not have, or another model is named.
pub async fn detokenize(
    State(app): State<Arc<App>>,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Response, ApiError> {
    app.check_model(request.model.as_deref())?;
    let written = app.beside(move |model| {
        let bytes = model
            .tokenizer()
            .decode(&request.tokens, request.control_tokens);
        let bytes = bytes.map_err(fornax::Error::from)?;
        let prompt = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Json(Text { prompt }).into_response())
    });
    written.await
}

impl FromFields for TokenizeRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            model: fields.optional("model")?,
            prompt: fields.required("prompt")?,
            add_special_tokens: fields.optional("add_special_tokens")?.unwrap_or(true),
        })
    }
}

impl FromFields for DetokenizeRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            model: fields.optional("model")?,
            tokens: fields.required("tokens")?,
            control_tokens: match fields.optional("skip_special_tokens")? {
                Some(true) => ControlTokens::Hide,
                Some(false) | None => ControlTokens::Show,
            },
        })
    }
}
