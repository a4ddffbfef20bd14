//! `POST /v1/embeddings`: a vector for each text.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fornax::text::Special;
use fornax::{Model, Pooling, StopReason, Token};
use futures_util::stream::{StreamExt, TryStreamExt, iter};
use serde::Serialize;

use crate::app::App;
use crate::journal::{self, RequestId};
use crate::metrics::Meter;
use crate::openai::error::ApiError;
use crate::openai::fields::{Body, Fields, FromFields};
use crate::routes::completions::Prompt;

/// Texts, and the form of their vectors.
pub struct EmbeddingsRequest {
    model: Option<String>,
    inputs: Vec<Prompt>,
    pooling: Pooling,
    base64: bool,
}

/// The vectors, in the order of the texts.
#[derive(Serialize)]
pub struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingsUsage,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// Of length 1 in the Euclidean sense. `[width]`
#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    /// The bytes of little-endian 32-bit floats.
    Base64(String),
}

#[derive(Serialize)]
struct EmbeddingsUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Embeds texts.
///
/// # Errors
/// A text that is empty or longer than the context, which is named before any is computed; no free
/// place; another model is named.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Body(request): Body<EmbeddingsRequest>,
) -> Result<Json<Embeddings>, ApiError> {
    app.check_model(request.model.as_deref())?;
    let at_once = request.inputs.len().min(app.model.sequences());
    let _place = app.gate.admit(at_once)?;
    let inputs = request.inputs;
    for input in &inputs {
        journal::prompt(&app, &id, &input.told());
    }
    let inputs = app
        .beside(move |model| Ok(tokens_of(model, inputs)))
        .await?;
    for (index, tokens) in inputs.iter().enumerate() {
        let about = |error| ApiError::from(error).about(format!("input[{index}]"));
        app.model.check_tokens(tokens).map_err(about)?;
    }
    let prompt_tokens = inputs.iter().map(Vec::len).sum();
    let vectors = inputs
        .into_iter()
        .map(|tokens| embed(&app, &id, tokens, request.pooling));
    let vectors: Vec<Vec<f32>> = iter(vectors).buffered(at_once).try_collect().await?;
    let data = vectors
        .into_iter()
        .enumerate()
        .map(|(index, vector)| Embedding {
            object: "embedding",
            index,
            embedding: match request.base64 {
                true => Vector::Base64(encoded(&vector)),
                false => Vector::Floats(vector),
            },
        });
    Ok(Json(Embeddings {
        object: "list",
        data: data.collect(),
        model: app.config.model_name.clone(),
        usage: EmbeddingsUsage {
            prompt_tokens,
            total_tokens: prompt_tokens,
        },
    }))
}

/// One vector, counted as an answer that has no token.
async fn embed(
    app: &App,
    id: &RequestId,
    tokens: Vec<Token>,
    pooling: Pooling,
) -> Result<Vec<f32>, ApiError> {
    let mut meter = Meter::start(app, id, tokens.len());
    let vector = app
        .model
        .embed_tokens(tokens, pooling, || meter.started())
        .await;
    match vector {
        Ok(vector) => {
            meter.finished(&StopReason::EndOfTurn);
            Ok(vector)
        }
        Err(error) => {
            meter.failed();
            Err(error.into())
        }
    }
}

/// Words of people: nothing in them is a control token.
fn tokens_of(model: &Model, inputs: Vec<Prompt>) -> Vec<Vec<Token>> {
    let tokenizer = model.tokenizer();
    let tokens = inputs.into_iter().map(|input| match input {
        Prompt::Text(text) => tokenizer.with_markers(tokenizer.encode(&text, Special::Plain)),
        Prompt::Tokens(tokens) => tokens,
    });
    tokens.collect()
}

fn encoded(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

impl FromFields for EmbeddingsRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            model: fields.optional("model")?,
            inputs: Prompt::take(fields, "input")?,
            pooling: one_of(
                fields,
                "pooling",
                &[("mean", Pooling::Mean), ("last", Pooling::Last)],
            )?,
            base64: one_of(
                fields,
                "encoding_format",
                &[("float", false), ("base64", true)],
            )?,
        })
    }
}

/// A word that stands for a choice; the first is the default.
fn one_of<T: Copy>(fields: &mut Fields, name: &str, words: &[(&str, T)]) -> Result<T, ApiError> {
    let Some(given) = fields.optional::<String>(name)? else {
        return Ok(words[0].1);
    };
    let known = words.iter().find(|(word, _)| *word == given);
    known.map(|&(_, choice)| choice).ok_or_else(|| {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let message = format!(
            "`{name}` is `{given}`; it must be one of {}",
            words.join(", ")
        );
        ApiError::field(name, message)
    })
}
