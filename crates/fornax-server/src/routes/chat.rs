//! `POST /v1/chat/completions` and its `/render`: a conversation, answered.

use std::future::ready;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use fornax::text::Tokenizer;
use fornax::{Delta, Event, Model, Token};
use serde::Serialize;
use serde_json::{Value, json};

use crate::answers::{Answers, Collected, finish_reason};
use crate::app::App;
use crate::journal::{self, RequestId};
use crate::openai::envelope::Envelope;
use crate::openai::error::ApiError;
use crate::openai::fields::{Body, Fields, FromFields};
use crate::openai::logprobs::{self, Drawn};
use crate::openai::messages::Conversation;
use crate::openai::sampling::Sampling;
use crate::openai::usage::Usage;
use crate::sse::{self, Chunks};

/// Most alternatives that are named beside a token.
const MOST_ALTERNATIVES: usize = 20;

/// A conversation, and how it is to be answered.
pub struct ChatRequest {
    model: Option<String>,
    conversation: Conversation,
    sampling: Sampling,
}

/// What the model would be given.
#[derive(Serialize)]
struct Rendered {
    model: String,
    prompt: String,
    count: usize,
    token_ids: Vec<Token>,
    max_model_len: usize,
}

/// Answers a conversation.
///
/// # Errors
/// A conversation that the template refuses or that does not fit the context, a value out of
/// range, no free place, another model is named.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    app.check_model(request.model.as_deref())?;
    let sampling = request.sampling;
    sampling.check(&app.model)?;
    let place = app.gate.admit(sampling.choices)?;
    let conversation = request.conversation;
    let (text, prompt) = app
        .beside(move |model| rendered(model, &conversation))
        .await?;
    journal::prompt(&app, &id, &text);
    let usage = Usage::of_prompts(prompt.len());
    let answers = Answers::begin(&app, &id, &[prompt], &sampling, place);
    let answers = answers.map_err(|error| error.or_about("messages"))?;
    let tokenizer = app.model.tokenizer().clone();
    let Some(streaming) = sampling.stream else {
        let envelope = Envelope::new(&app, &id, "chatcmpl", "chat.completion");
        let (collected, usage) = answers.collect(usage, sampling.choices).await?;
        let choice = |(index, answer): (usize, Collected)| {
            json!({
                "index": index,
                "message": {"role": "assistant", "content": answer.text, "refusal": null},
                "logprobs": sampling.logprobs().map(|_| logprobs::of_chat(&tokenizer, &answer.drawn)),
                "finish_reason": answer.finish_reason,
            })
        };
        let choices = collected.into_iter().enumerate().map(choice).collect();
        return Ok(Json(envelope.whole(choices, usage)).into_response());
    };
    let chunks = ChatChunks {
        envelope: Envelope::new(&app, &id, "chatcmpl", "chat.completion.chunk"),
        tokenizer,
        choices: sampling.choices,
        usage,
        include_usage: streaming.include_usage,
    };
    Ok(sse::respond(&app, ready(Ok((Some(answers), chunks)))))
}

/// Tells what the model would be given for a conversation.
///
/// # Errors
/// A conversation that the template refuses, a value out of range, another model is named.
pub async fn render(
    State(app): State<Arc<App>>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    app.check_model(request.model.as_deref())?;
    request.sampling.check(&app.model)?;
    let conversation = request.conversation;
    let name = app.config.model_name.clone();
    let written = app.beside(move |model| {
        let (prompt, token_ids) = rendered(model, &conversation)?;
        let rendered = Rendered {
            model: name,
            prompt,
            count: token_ids.len(),
            token_ids,
            max_model_len: model.context(),
        };
        Ok(Json(rendered).into_response())
    });
    written.await
}

/// The prompt of a conversation, and its tokens.
fn rendered(model: &Model, conversation: &Conversation) -> Result<(String, Vec<Token>), ApiError> {
    let prompt = model.render(&conversation.0)?;
    let tokens = model.prompt_tokens(&prompt);
    Ok((prompt, tokens))
}

impl FromFields for ChatRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let max_tokens = max_tokens(fields)?;
        let logprobs = fields.optional("logprobs")?.unwrap_or(false);
        let top = fields.optional("top_logprobs")?.unwrap_or(0);
        if top > MOST_ALTERNATIVES {
            let message = format!("`top_logprobs` is {top}; allowed: 0 to {MOST_ALTERNATIVES}");
            return Err(ApiError::field("top_logprobs", message));
        }
        if top > 0 && !logprobs {
            let message = "`top_logprobs` has no meaning without `logprobs: true`";
            return Err(ApiError::field("top_logprobs", message));
        }
        Ok(Self {
            model: fields.optional("model")?,
            conversation: Conversation::take(fields)?,
            sampling: Sampling::take(fields)?.bounded(max_tokens, logprobs.then_some(top)),
        })
    }
}

/// The newer name and the older one.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let newer: Option<usize> = fields.optional("max_completion_tokens")?;
    let older = fields.optional("max_tokens")?;
    match (newer, older) {
        (Some(newer), Some(older)) if newer != older => Err(ApiError::field(
            "max_tokens",
            "`max_tokens` is the older name of `max_completion_tokens` and has another value; give one",
        )),
        (newer, older) => Ok(newer.or(older)),
    }
}

/// The chunks of a streamed chat.
struct ChatChunks {
    envelope: Envelope,
    tokenizer: Tokenizer,
    choices: usize,
    usage: Usage,
    include_usage: bool,
}

impl ChatChunks {
    fn chunk(&self, index: usize, delta: Value, logprobs: Option<Value>, reason: Value) -> Value {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        });
        self.envelope.chunk(vec![choice], self.include_usage)
    }

    /// A chunk for each token, though its text may be none or not certain yet: who times or counts
    /// them sees each.
    fn delta(&self, index: usize, mut delta: Delta) -> Option<Value> {
        if delta.token.is_none() && delta.text.is_empty() {
            return None;
        }
        let logprobs =
            Drawn::of(&mut delta).map(|drawn| logprobs::of_chat(&self.tokenizer, &[drawn]));
        let content = json!({"content": delta.text});
        Some(self.chunk(index, content, logprobs, Value::Null))
    }
}

impl Chunks for ChatChunks {
    fn opening(&mut self) -> Vec<Value> {
        let role = |index| {
            let delta = json!({"role": "assistant", "content": ""});
            self.chunk(index, delta, None, Value::Null)
        };
        (0..self.choices).map(role).collect()
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        match event {
            Event::Delta(delta) => self.delta(index, delta).into_iter().collect(),
            Event::Finished(finished) => {
                self.usage.add(finished.usage, index == 0);
                let reason = json!(finish_reason(&finished.reason));
                vec![self.chunk(index, json!({}), None, reason)]
            }
        }
    }

    fn closing(&mut self) -> Vec<Value> {
        let usage = self.include_usage.then(|| self.envelope.usage(self.usage));
        usage.into_iter().collect()
    }
}
