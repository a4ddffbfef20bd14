//! `POST /v1/completions` and its `/render`: texts, continued.

mod chunks;
mod echo;
mod prompt;

use std::iter;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use fornax::text::Tokenizer;
use fornax::{StopReason, Token};
use serde::Serialize;
use serde_json::{Value, json};

use crate::answers::{Answers, Collected};
use crate::app::App;
use crate::journal::{self, RequestId};
use crate::metrics::Meter;
use crate::openai::envelope::Envelope;
use crate::openai::error::ApiError;
use crate::openai::fields::{Body, Fields, FromFields};
use crate::openai::logprobs::{Lists, length};
use crate::openai::sampling::Sampling;
use crate::openai::usage::Usage;
use crate::sse;
use chunks::CompletionChunks;
use echo::Echo;
pub use prompt::Prompt;

/// Tokens of an answer where nothing is said, as OpenAI has it.
const DEFAULT_MAX_TOKENS: usize = 16;
/// Most alternatives that are named beside a token.
const MOST_ALTERNATIVES: usize = 20;

/// Texts, and how they are to be continued.
pub struct CompletionRequest {
    model: Option<String>,
    prompts: Vec<Prompt>,
    sampling: Sampling,
    /// Whether the prompt stands in front of its continuation.
    echo: bool,
}

/// What the model would be given.
#[derive(Serialize)]
struct Rendered {
    model: String,
    data: Vec<RenderedPrompt>,
    max_model_len: usize,
}

#[derive(Serialize)]
struct RenderedPrompt {
    index: usize,
    count: usize,
    token_ids: Vec<Token>,
}

/// Continues texts.
///
/// # Errors
/// A prompt that is empty or does not fit the context, a value out of range, no free place,
/// another model is named.
pub async fn create(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    app.check_model(request.model.as_deref())?;
    let sampling = request.sampling;
    let logprobs = sampling.logprobs();
    let answers = sampling.choices.saturating_mul(request.prompts.len());
    let place = app.gate.admit(answers)?;
    let (texts, prompts) = tokens_of(&app, request.prompts).await?;
    for prompt in &texts {
        journal::prompt(&app, &id, &prompt.told());
    }
    let is_echo_all = request.echo && sampling.max_tokens() == Some(0);
    let echo_meters = match is_echo_all {
        true => echo_meters(&app, &id, &prompts, sampling.choices)?,
        false => Vec::new(),
    };
    let echoes = match request.echo {
        true => Some(Echo::of_all(&app, &texts, &prompts, logprobs).await?),
        false => None,
    };
    for mut meter in echo_meters {
        meter.finished(&StopReason::MaxTokens);
    }
    let usage = Usage::of_prompts(prompts.iter().map(Vec::len).sum());
    let answers = match is_echo_all {
        true => None,
        false => {
            let begun = Answers::begin(&app, &id, &prompts, &sampling, place);
            Some(begun.map_err(|error| error.or_about("prompt"))?)
        }
    };
    let tokenizer = app.model.tokenizer().clone();
    let Some(streaming) = sampling.stream else {
        let envelope = Envelope::new(&app, &id, "cmpl", "text_completion");
        let (collected, usage) = match answers {
            Some(answers) => answers.collect(usage, sampling.choices).await?,
            None => (nothing(prompts.len() * sampling.choices), usage),
        };
        let choices = collected.into_iter().enumerate().map(|(index, answer)| {
            let echo = echoes
                .as_ref()
                .map(|echoes| &echoes[index / sampling.choices]);
            choice(&tokenizer, index, answer, echo, logprobs.is_some())
        });
        return Ok(Json(envelope.whole(choices.collect(), usage)).into_response());
    };
    let chunks = CompletionChunks {
        envelope: Envelope::new(&app, &id, "cmpl", "text_completion"),
        tokenizer,
        written: vec![0; prompts.len() * sampling.choices],
        logprobs: logprobs.is_some(),
        choices: sampling.choices,
        echoes,
        is_echo_all: answers.is_none(),
        usage,
        include_usage: streaming.include_usage,
    };
    Ok(sse::respond(&app, answers, chunks))
}

/// Tells what the model would be given for these prompts.
///
/// # Errors
/// Another model is named.
pub async fn render(
    State(app): State<Arc<App>>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    app.check_model(request.model.as_deref())?;
    let (_, prompts) = tokens_of(&app, request.prompts).await?;
    let name = app.config.model_name.clone();
    let written = app.beside(move |model| {
        let prompts = prompts.into_iter().enumerate();
        let data = prompts.map(|(index, token_ids)| RenderedPrompt {
            index,
            count: token_ids.len(),
            token_ids,
        });
        let rendered = Rendered {
            model: name,
            data: data.collect(),
            max_model_len: model.context(),
        };
        Ok(Json(rendered).into_response())
    });
    written.await
}

/// The prompts, and the tokens of each.
async fn tokens_of(
    app: &App,
    prompts: Vec<Prompt>,
) -> Result<(Vec<Prompt>, Vec<Vec<Token>>), ApiError> {
    let tokens = app.beside(move |model| {
        let tokens = prompts.iter().map(|prompt| match prompt {
            Prompt::Text(text) => model.prompt_tokens(text),
            Prompt::Tokens(tokens) => tokens.clone(),
        });
        let tokens = tokens.collect();
        Ok((prompts, tokens))
    });
    tokens.await
}

/// The clocks of answers that are an echo with no token behind it.
///
/// # Errors
/// A prompt that is empty, does not fit the context or has unknown tokens.
fn echo_meters(
    app: &App,
    id: &RequestId,
    prompts: &[Vec<Token>],
    choices: usize,
) -> Result<Vec<Meter>, ApiError> {
    for tokens in prompts {
        let checked = app.model.check_tokens(tokens);
        checked.map_err(|error| ApiError::from(error).or_about("prompt"))?;
    }
    let answers = prompts
        .iter()
        .flat_map(|prompt| iter::repeat_n(prompt, choices));
    Ok(answers
        .map(|prompt| Meter::start(app, id, prompt.len()))
        .collect())
}

/// Answers without a token.
fn nothing(count: usize) -> Vec<Collected> {
    let nothing = || Collected {
        finish_reason: "length",
        ..Collected::default()
    };
    iter::repeat_with(nothing).take(count).collect()
}

/// A complete answer, behind its prompt where that is wanted.
fn choice(
    tokenizer: &Tokenizer,
    index: usize,
    answer: Collected,
    echo: Option<&Echo>,
    logprobs: bool,
) -> Value {
    let (mut text, mut lists, mut offset) = (String::new(), Lists::default(), 0);
    if let Some(echo) = echo {
        text.push_str(&echo.text);
        lists.append(echo.lists.clone());
        offset = echo.text.chars().count();
    }
    for drawn in &answer.drawn {
        lists.push(tokenizer, drawn, offset);
        offset += length(tokenizer, drawn.token.token);
    }
    text.push_str(&answer.text);
    json!({
        "index": index,
        "text": text,
        "logprobs": logprobs.then_some(lists),
        "finish_reason": answer.finish_reason,
    })
}

impl FromFields for CompletionRequest {
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError> {
        let max_tokens = fields.optional("max_tokens")?.unwrap_or(DEFAULT_MAX_TOKENS);
        let logprobs: Option<usize> = fields.optional("logprobs")?;
        if let Some(top) = logprobs.filter(|top| *top > MOST_ALTERNATIVES) {
            let message = format!("`logprobs` is {top}; allowed: 0 to {MOST_ALTERNATIVES}");
            return Err(ApiError::field("logprobs", message));
        }
        Ok(Self {
            model: fields.optional("model")?,
            prompts: Prompt::take(fields, "prompt")?,
            sampling: Sampling::take(fields)?.bounded(Some(max_tokens), logprobs),
            echo: fields.optional("echo")?.unwrap_or(false),
        })
    }
}
