//! `POST /v1/completions` and its `/render`: texts, continued.

mod chunks;
mod echo;
mod prompt;

use std::future::ready;
use std::iter;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use fornax::engine::{Bounds, Request};
use fornax::text::Tokenizer;
use fornax::{Model, Pooling, StopReason, Token};
use futures_util::TryFutureExt;
use futures_util::future::Either;
use serde::Serialize;
use serde_json::{Value, json};

use crate::answers::{self, Answers, Collected};
use crate::app::App;
use crate::gate::Place;
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
    request.check(&app.model)?;
    let sampling = request.sampling;
    let logprobs = sampling.logprobs();
    let answers = sampling.choices.saturating_mul(request.prompts.len());
    let place = app.gate.admit(answers)?;
    let (texts, prompts) = tokens_of(&app, request.prompts).await?;
    for prompt in &texts {
        journal::prompt(&app, &id, &prompt.told());
    }
    let usage = Usage::of_prompts(prompts.iter().map(Vec::len).sum());
    let (count, choices, streaming) = (answers, sampling.choices, sampling.stream);
    let tokenizer = app.model.tokenizer().clone();
    let envelope = Envelope::new(&app, &id, "cmpl", "text_completion");
    let begun = if request.echo {
        let checked = Answers::check(&app, &prompts, &sampling);
        checked.map_err(|error| error.or_about("prompt"))?;
        // From here on, whoever goes away is counted.
        let meters = answers::meters(&app, &id, &prompts, choices);
        let echoing = Echoing {
            app: app.clone(),
            texts,
            prompts,
            sampling,
            meters,
            place,
        };
        Either::Left(echoing.begin())
    } else {
        let answers = Answers::begin(&app, &id, &prompts, &sampling, place);
        let answers = answers.map_err(|error| error.or_about("prompt"))?;
        Either::Right(ready(Ok((None, Some(answers)))))
    };
    let Some(streaming) = streaming else {
        let (echoes, answers) = begun.await?;
        let (collected, usage) = match answers {
            Some(answers) => answers.collect(usage, choices).await?,
            None => (nothing(count), usage),
        };
        let answers = collected.into_iter().enumerate().map(|(index, answer)| {
            let echo = echoes.as_ref().map(|echoes| &echoes[index / choices]);
            choice(&tokenizer, index, answer, echo, logprobs.is_some())
        });
        return Ok(Json(envelope.whole(answers.collect(), usage)).into_response());
    };
    let begun = begun.map_ok(move |(echoes, answers)| {
        let chunks = CompletionChunks {
            envelope,
            tokenizer,
            written: vec![0; count],
            logprobs: logprobs.is_some(),
            choices,
            echoes,
            is_echo_all: answers.is_none(),
            usage,
            include_usage: streaming.include_usage,
        };
        (answers, chunks)
    });
    Ok(sse::respond(&app, begun))
}

/// Tells what the model would be given for these prompts.
///
/// # Errors
/// A prompt that is empty or has unknown tokens, a value out of range, another model is named. A
/// prompt may be longer than the context: who asks sees by how much.
pub async fn render(
    State(app): State<Arc<App>>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    app.check_model(request.model.as_deref())?;
    request.check(&app.model)?;
    let (_, prompts) = tokens_of(&app, request.prompts).await?;
    let name = app.config.model_name.clone();
    let written = app.beside(move |model| {
        let prompts = prompts.into_iter().enumerate();
        let data = prompts.map(|(index, token_ids)| {
            let token_ids = checked(model, token_ids)?;
            Ok(RenderedPrompt {
                index,
                count: token_ids.len(),
                token_ids,
            })
        });
        let rendered = Rendered {
            model: name,
            data: data.collect::<Result<_, ApiError>>()?,
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

/// The tokens of a prompt of any length, all of which the model has.
fn checked(model: &Model, tokens: Vec<Token>) -> Result<Vec<Token>, ApiError> {
    let bounds = Bounds {
        context: usize::MAX,
        vocabulary: model.config().vocabulary,
        cache_tokens: usize::MAX,
    };
    let request = Request::embed(tokens, Pooling::Mean);
    match request.validate(&bounds) {
        Ok(()) => Ok(request.prompt),
        Err(error) => Err(ApiError::from(fornax::Error::from(error)).or_about("prompt")),
    }
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

impl CompletionRequest {
    /// Makes sure of all that does not depend on the prompts.
    fn check(&self, model: &Model) -> Result<(), ApiError> {
        match self.echo {
            true => self.sampling.check_draws(model),
            false => self.sampling.check(model),
        }
    }
}

/// Echoes, and the answers behind them. Nothing behind them where answers have no token.
type Continued = (Option<Vec<Echo>>, Option<Answers>);

/// Prompts that are repeated before they are continued.
struct Echoing {
    app: Arc<App>,
    texts: Vec<Prompt>,
    prompts: Vec<Vec<Token>>,
    sampling: Sampling,
    meters: Vec<Meter>,
    place: Place,
}

impl Echoing {
    /// Waits for the echoes, and begins what follows them.
    async fn begin(mut self) -> Result<Continued, ApiError> {
        let logprobs = self.sampling.logprobs();
        let echoes = Echo::of_all(&self.app, &self.texts, &self.prompts, logprobs).await;
        if echoes.is_err() {
            self.meters.iter_mut().for_each(Meter::failed);
        }
        let echoes = Some(echoes?);
        if self.sampling.max_tokens() == Some(0) {
            let finished = |meter: &mut Meter| meter.finished(&StopReason::MaxTokens);
            self.meters.iter_mut().for_each(finished);
            return Ok((echoes, None));
        }
        let answers = Answers::begin_behind_echoes(
            &self.app,
            self.meters,
            &self.prompts,
            &self.sampling,
            self.place,
        );
        let answers = answers.map_err(|error| error.or_about("prompt"))?;
        Ok((echoes, Some(answers)))
    }
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
