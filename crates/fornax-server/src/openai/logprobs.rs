//! Log-probabilities in the two forms of the protocol.

use fornax::text::Tokenizer;
use fornax::{Delta, TokenLogprob};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A token with its alternatives.
pub struct Drawn {
    /// The token that stands in the text.
    pub token: TokenLogprob,
    /// The most likely ones in its place, most likely first.
    pub top: Vec<TokenLogprob>,
}

impl Drawn {
    /// The token of a delta that has one and tells its probability.
    pub fn of(delta: &mut Delta) -> Option<Self> {
        let (token, logprob) = (delta.token?, delta.logprob?);
        Some(Self {
            token: TokenLogprob { token, logprob },
            top: std::mem::take(&mut delta.top),
        })
    }
}

/// A token in the form of chat.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
    top_logprobs: Vec<Alternative>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Alternative {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

/// The form of chat: `{"content": […], "refusal": null}`.
pub fn of_chat(tokenizer: &Tokenizer, drawn: &[Drawn]) -> Value {
    let content: Vec<ChatToken> = drawn
        .iter()
        .map(|drawn| chat_token(tokenizer, drawn))
        .collect();
    json!({"content": content, "refusal": null})
}

fn chat_token(tokenizer: &Tokenizer, drawn: &Drawn) -> ChatToken {
    let alternative = |told: &TokenLogprob| Alternative {
        token: text(tokenizer, told),
        logprob: finite(told.logprob),
        bytes: bytes(tokenizer, told).to_vec(),
    };
    let Alternative {
        token,
        logprob,
        bytes,
    } = alternative(&drawn.token);
    ChatToken {
        token,
        logprob,
        bytes,
        top_logprobs: drawn.top.iter().map(alternative).collect(),
    }
}

/// The form of completions: four lists of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Lists {
    /// `[n_tokens]`
    tokens: Vec<String>,
    /// `[n_tokens]`; null for a prompt's first token, which nothing stands before.
    token_logprobs: Vec<Option<f32>>,
    /// `[n_tokens]`
    top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Characters in front of each token. `[n_tokens]`
    text_offset: Vec<usize>,
}

impl Lists {
    /// Adds a token that begins behind `offset` characters and is the first of a prompt.
    pub fn push_first(&mut self, tokenizer: &Tokenizer, token: u32, offset: usize) {
        let told = TokenLogprob {
            token,
            logprob: 0.0,
        };
        self.tokens.push(text(tokenizer, &told));
        self.token_logprobs.push(None);
        self.top_logprobs.push(None);
        self.text_offset.push(offset);
    }

    /// Adds a token that begins behind `offset` characters.
    pub fn push(&mut self, tokenizer: &Tokenizer, drawn: &Drawn, offset: usize) {
        let mut top = Map::new();
        for told in &drawn.top {
            top.entry(text(tokenizer, told))
                .or_insert_with(|| json!(finite(told.logprob)));
        }
        self.tokens.push(text(tokenizer, &drawn.token));
        self.token_logprobs.push(Some(finite(drawn.token.logprob)));
        self.top_logprobs.push(Some(top));
        self.text_offset.push(offset);
    }

    /// Adds what comes behind.
    pub fn append(&mut self, mut later: Lists) {
        self.tokens.append(&mut later.tokens);
        self.token_logprobs.append(&mut later.token_logprobs);
        self.top_logprobs.append(&mut later.top_logprobs);
        self.text_offset.append(&mut later.text_offset);
    }
}

/// Characters that a token adds to a text, taken by itself.
pub fn length(tokenizer: &Tokenizer, token: u32) -> usize {
    let bytes = tokenizer.token_bytes(token).unwrap_or_default();
    // A character is counted where it begins.
    bytes.iter().filter(|&&byte| byte & 0xC0 != 0x80).count()
}

fn bytes<'a>(tokenizer: &'a Tokenizer, told: &TokenLogprob) -> &'a [u8] {
    tokenizer.token_bytes(told.token).unwrap_or_default()
}

fn text(tokenizer: &Tokenizer, told: &TokenLogprob) -> String {
    String::from_utf8_lossy(bytes(tokenizer, told)).into_owned()
}

/// JSON has no infinity; OpenAI writes a token without any probability as -9999.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
