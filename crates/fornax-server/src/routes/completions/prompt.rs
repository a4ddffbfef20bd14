//! The four forms of a prompt: a text, tokens, or a list of either.

use std::borrow::Cow;

use fornax::Token;
use serde_json::Value;

use crate::openai::error::ApiError;
use crate::openai::fields::{Fields, typed};

/// Most prompts of one request, as many as the texts that OpenAI embeds at once: who has more asks
/// again, and others have their turn between.
const MOST_PROMPTS: usize = 2048;

/// One prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Words.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<Token>),
}

impl Prompt {
    /// What it says, as far as it was said in words.
    pub fn told(&self) -> Cow<'_, str> {
        match self {
            Prompt::Text(text) => Cow::Borrowed(text),
            Prompt::Tokens(tokens) => Cow::Owned(format!("{tokens:?}")),
        }
    }

    /// Takes one prompt or several from a field.
    ///
    /// # Errors
    /// None, too many, or one that is neither a text nor a list of tokens.
    pub fn take(fields: &mut Fields, name: &str) -> Result<Vec<Prompt>, ApiError> {
        let given = match fields.required(name)? {
            Value::String(text) => return Ok(vec![Prompt::Text(text)]),
            Value::Array(given) if !given.is_empty() => given,
            _ => {
                let message = format!("`{name}` is neither a text nor a list that holds anything");
                return Err(ApiError::field(name, message));
            }
        };
        if given.iter().all(Value::is_number) {
            return Ok(vec![Prompt::Tokens(typed(name, Value::Array(given))?)]);
        }
        if given.len() > MOST_PROMPTS {
            let count = given.len();
            let message =
                format!("`{name}` has {count} texts; send at most {MOST_PROMPTS} at once");
            return Err(ApiError::field(name, message));
        }
        let prompts = given
            .into_iter()
            .enumerate()
            .map(|(index, prompt)| match prompt {
                Value::String(text) => Ok(Prompt::Text(text)),
                tokens => typed(&format!("{name}[{index}]"), tokens).map(Prompt::Tokens),
            });
        prompts.collect()
    }
}
