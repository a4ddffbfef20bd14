//! How answers are drawn, counted and delivered: the fields that chat and completions share.

use std::collections::BTreeMap;

use fornax::{GenerateOptions, Model, RequestError, Token};
use serde_json::Value;

use super::error::ApiError;
use super::fields::{Fields, typed};

/// Most answers of one prompt.
const MOST_CHOICES: usize = 128;

/// The shared fields of a request.
pub struct Sampling {
    /// How each answer is drawn; the first one's seed.
    options: GenerateOptions,
    /// Answers to each prompt.
    pub choices: usize,
    /// What is sent before the answer is complete.
    pub stream: Option<Streaming>,
}

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streaming {
    /// Whether a last chunk tells the usage.
    pub include_usage: bool,
}

impl Sampling {
    /// Takes the shared fields. `max_tokens` and log-probabilities differ between endpoints.
    ///
    /// # Errors
    /// A field of the wrong type; ranges are for [`check`](Self::check).
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let options = GenerateOptions {
            temperature: fields.optional("temperature")?,
            top_k: fields.optional("top_k")?.map(top_k).transpose()?,
            top_p: fields.optional("top_p")?,
            min_p: fields.optional("min_p")?,
            typical_p: fields.optional("typical_p")?,
            repetition_penalty: fields.optional("repetition_penalty")?,
            presence_penalty: fields.optional("presence_penalty")?,
            frequency_penalty: fields.optional("frequency_penalty")?,
            logit_bias: logit_bias(fields)?,
            seed: seed(fields)?,
            max_tokens: None,
            stop: stop(fields)?,
            ignore_end: fields.optional("ignore_eos")?.unwrap_or(false),
            logprobs: None,
            priority: priority(fields)?,
        };
        Ok(Self {
            options,
            choices: choices(fields)?,
            stream: streaming(fields)?,
        })
    }

    /// Sets how many tokens an answer has, whether their probabilities are told, and how many likely
    /// ones are named beside each.
    pub fn bounded(mut self, max_tokens: Option<usize>, logprobs: Option<usize>) -> Self {
        self.options.max_tokens = max_tokens;
        self.options.logprobs = logprobs;
        self
    }

    /// Makes sure that answers can be drawn and ended like this, before anything is computed for them.
    ///
    /// # Errors
    /// A value out of range, or no token at all.
    pub fn check(&self, model: &Model) -> Result<(), ApiError> {
        if self.max_tokens() == Some(0) {
            return Err(fornax::Error::from(RequestError::NoTokens).into());
        }
        self.check_draws(model)
    }

    /// As [`check`](Self::check), for an answer that may have no token.
    ///
    /// # Errors
    /// A value out of range.
    pub fn check_draws(&self, model: &Model) -> Result<(), ApiError> {
        Ok(model.check_options(&self.options)?)
    }

    /// How the answer to a prompt is drawn, whatever its seed.
    pub fn options(&self) -> &GenerateOptions {
        &self.options
    }

    /// Tokens of an answer, if that is bounded.
    pub fn max_tokens(&self) -> Option<usize> {
        self.options.max_tokens
    }

    /// Whether probabilities are told, and how many likely tokens are named beside each one drawn.
    pub fn logprobs(&self) -> Option<usize> {
        self.options.logprobs
    }

    /// How the answers to one prompt are drawn: each with a seed of its own.
    pub fn of_each_choice(&self) -> impl Iterator<Item = GenerateOptions> {
        (0..self.choices).map(|choice| {
            let mut options = self.options.clone();
            options.seed = options.seed.map(|seed| seed.wrapping_add(choice as u64));
            options
        })
    }
}

/// A seed is any 64 bits, and clients write them with a sign.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let Some(given) = fields.optional::<Value>("seed")? else {
        return Ok(None);
    };
    match given.as_i64() {
        Some(seed) => Ok(Some(seed.cast_unsigned())),
        None => {
            let (least, most) = (i64::MIN, i64::MAX);
            let message =
                format!("`seed` is {given}; allowed: whole numbers from {least} to {most}");
            Err(ApiError::field("seed", message))
        }
    }
}

/// As vLLM has it the lower goes first; the library has it the other way round.
fn priority(fields: &mut Fields) -> Result<i8, ApiError> {
    let given: i64 = fields.optional("priority")?.unwrap_or(0);
    let out_of_range = || {
        let message = format!("`priority` is {given}; allowed: -127 to 127, the lower goes first");
        ApiError::field("priority", message)
    };
    let priority = i8::try_from(given).ok().and_then(i8::checked_neg);
    priority.ok_or_else(out_of_range)
}

/// Clients write "all" as -1 or 0.
fn top_k(given: i64) -> Result<usize, ApiError> {
    let out_of_range = |_| {
        let message = format!("`top_k` is {given}; allowed: -1 or 0 for all, or how many are kept");
        ApiError::field("top_k", message)
    };
    match given {
        -1 => Ok(0),
        _ => usize::try_from(given).map_err(out_of_range),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(Token, f32)>, ApiError> {
    let given: Option<BTreeMap<String, f32>> = fields.optional("logit_bias")?;
    let biases = given.unwrap_or_default().into_iter().map(|(token, bias)| {
        let unknown = || {
            let message = format!("`logit_bias` names `{token}`, which is no token id");
            ApiError::field("logit_bias", message)
        };
        // Written in one way only, or a token could be there twice.
        let id = token.parse().ok();
        let id = id.filter(|id: &Token| id.to_string() == token);
        Ok((id.ok_or_else(unknown)?, bias))
    });
    biases.collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    match fields.optional::<Value>("stop")? {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(texts @ Value::Array(_)) => typed("stop", texts),
        Some(_) => {
            let message = "`stop` is neither a text nor a list of texts";
            Err(ApiError::field("stop", message))
        }
    }
}

fn choices(fields: &mut Fields) -> Result<usize, ApiError> {
    let n = fields.optional("n")?.unwrap_or(1);
    if !(1..=MOST_CHOICES).contains(&n) {
        let message = format!("`n` is {n}; allowed: 1 to {MOST_CHOICES}");
        return Err(ApiError::field("n", message));
    }
    match fields.optional::<usize>("best_of")? {
        Some(best_of) if best_of != n => {
            let message = format!(
                "`best_of` is {best_of} and `n` is {n}; no answers are made but those that are sent, so leave `best_of` out"
            );
            Err(ApiError::field("best_of", message))
        }
        _ => Ok(n),
    }
}

fn streaming(fields: &mut Fields) -> Result<Option<Streaming>, ApiError> {
    let stream = fields.optional("stream")?.unwrap_or(false);
    let Some(given) = fields.optional("stream_options")? else {
        return Ok(stream.then_some(Streaming {
            include_usage: false,
        }));
    };
    if !stream {
        let message = "`stream_options` has no meaning without `stream: true`";
        return Err(ApiError::field("stream_options", message));
    }
    let mut options = Fields::new("stream_options", given)?;
    let include_usage = options.optional("include_usage")?.unwrap_or(false);
    // Padding of chunks against eavesdroppers who count bytes: asked for or not, there is none.
    options.optional::<bool>("include_obfuscation")?;
    options.finish()?;
    Ok(Some(Streaming { include_usage }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_lower_priority_is_the_greater_one_of_the_library() {
        let taken = |given: Value| {
            let mut fields = Fields::new("", json!({"priority": given})).unwrap();
            let sampling = Sampling::take(&mut fields);
            sampling.ok().map(|sampling| sampling.options.priority)
        };
        let given = [json!(-3), json!(127), json!(-127), json!(null)];
        assert_eq!(given.map(taken), [Some(3), Some(-127), Some(127), Some(0)]);
        assert_eq!([json!(-128), json!(128)].map(taken), [None, None]);
    }
}
