//! A prompt that stands in front of its continuation, with how likely its tokens were.

use fornax::text::ControlTokens;
use fornax::{PromptLogprobs, Token};

use super::Prompt;
use crate::app::App;
use crate::openai::error::ApiError;
use crate::openai::logprobs::{Drawn, Lists, length};

/// A prompt, repeated.
pub struct Echo {
    /// As it was given; for tokens, what they spell.
    pub text: String,
    /// Its tokens; empty where nobody asked.
    pub lists: Lists,
}

impl Echo {
    /// The echoes of these prompts, of which the tokens are known.
    ///
    /// # Errors
    /// A prompt that is empty, does not fit the context or has unknown tokens.
    pub async fn of_all(
        app: &App,
        prompts: &[Prompt],
        tokens: &[Vec<Token>],
        logprobs: Option<usize>,
    ) -> Result<Vec<Echo>, ApiError> {
        let mut echoes = Vec::with_capacity(prompts.len());
        for (prompt, tokens) in prompts.iter().zip(tokens) {
            let text = text(app, prompt)?;
            let lists = match logprobs {
                Some(top) => {
                    let scored = app.model.prompt_logprobs(tokens.clone(), top).await?;
                    lists(app, &text, tokens, scored)
                }
                None => Lists::default(),
            };
            echoes.push(Echo { text, lists });
        }
        Ok(echoes)
    }
}

fn text(app: &App, prompt: &Prompt) -> Result<String, ApiError> {
    let bytes = match prompt {
        Prompt::Text(text) => return Ok(text.clone()),
        Prompt::Tokens(tokens) => app.model.tokenizer().decode(tokens, ControlTokens::Show),
    };
    let bytes =
        bytes.map_err(|error| ApiError::from(fornax::Error::from(error)).about("prompt"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn lists(app: &App, text: &str, tokens: &[Token], scored: Vec<PromptLogprobs>) -> Lists {
    let tokenizer = app.model.tokenizer();
    let mut lists = Lists::default();
    let Some(&first) = tokens.first() else {
        return lists;
    };
    lists.push_first(tokenizer, first, 0);
    // A BOS that the model asks for is a token of the prompt, but nobody wrote it into the text.
    let written = tokenizer.token_bytes(first).unwrap_or_default();
    let mut offset = match text.as_bytes().starts_with(written) {
        true => length(tokenizer, first),
        false => 0,
    };
    for PromptLogprobs { token, top } in scored {
        lists.push(tokenizer, &Drawn { token, top }, offset);
        offset += length(tokenizer, token.token);
    }
    lists
}
