//! What may be asked of the engine, and whether it can be answered.
//!
//! Owns the request and its validation. Knows nothing of sequences, pages or steps: what an
//! engine can hold comes in as [`Bounds`].

use std::ops::Range;

use crate::{Pooling, SamplingError, SamplingParams, Token};

/// Names a request in its engine; a later request has a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

/// A prompt and what to do with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The prompt, BOS and all. `[n_prompt]`
    pub prompt: Vec<Token>,
    /// What to do with it.
    pub task: Task,
    /// Among requests that wait the greater goes first; 0 for most. Waiting makes up for it: each
    /// level counts as much as having come [`Request::STEPS_OF_A_PRIORITY`] steps earlier, so a
    /// low one waits but never starves.
    pub priority: i8,
}

/// What is done with a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Continue it, token by token.
    Generate(Generation),
    /// Answer the logits after these of its tokens: perplexity, the log-probabilities of an echo.
    /// What follows the last of them is not computed.
    Score {
        /// Positions in the prompt; the logits after position `p` predict token `p + 1`.
        positions: Range<usize>,
    },
    /// Answer one vector for all of it.
    Embed(Pooling),
}

/// How a prompt is continued and where that ends.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Ends the answer after so many tokens; `None` lets it fill the context.
    pub max_tokens: Option<usize>,
    /// Tokens that end the answer and are no part of it; empty ignores every end.
    pub stop_tokens: Vec<Token>,
    /// Whether probabilities are told: that of each token drawn, and beside it so many of the most likely
    /// ones. Without, what can not be drawn need not be computed.
    pub logprobs: Option<usize>,
}

/// What an engine can answer at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Tokens of the longest sequence, prompt and answer together.
    pub context: usize,
    /// Tokens of the vocabulary; every token is below it.
    pub vocabulary: usize,
    /// Tokens of the longest sequence whose K and V fit in the pages, if it has them all.
    pub cache_tokens: usize,
}

impl Request {
    /// Steps of waiting that make up for one level of [`priority`](Self::priority).
    pub const STEPS_OF_A_PRIORITY: u32 = 256;

    /// Continues `prompt` until the context is full. Narrow it by the fields of [`Generation`].
    pub fn generate(prompt: Vec<Token>, sampling: SamplingParams) -> Self {
        let generation = Generation {
            sampling,
            max_tokens: None,
            stop_tokens: Vec::new(),
            logprobs: None,
        };
        Self {
            prompt,
            task: Task::Generate(generation),
            priority: 0,
        }
    }

    /// Answers the logits after these positions of `prompt`.
    pub fn score(prompt: Vec<Token>, positions: Range<usize>) -> Self {
        Self {
            prompt,
            task: Task::Score { positions },
            priority: 0,
        }
    }

    /// Answers one vector for `prompt`.
    pub fn embed(prompt: Vec<Token>, pooling: Pooling) -> Self {
        Self {
            prompt,
            task: Task::Embed(pooling),
            priority: 0,
        }
    }

    /// Checks that an engine with these bounds can answer, if need be alone.
    ///
    /// # Errors
    /// The first thing that is wrong, and what to do about it.
    pub fn validate(&self, bounds: &Bounds) -> Result<(), RequestError> {
        self.validate_prompt(bounds)?;
        match &self.task {
            Task::Generate(generation) => generation.validate(bounds)?,
            Task::Score { positions } => self.validate_positions(positions)?,
            Task::Embed(_) => {}
        }
        let (tokens, cache) = (self.most_fed(bounds.context), bounds.cache_tokens);
        match tokens <= cache {
            true => Ok(()),
            false => Err(RequestError::BeyondCache { tokens, cache }),
        }
    }

    /// Prompt and answer together end at this many tokens.
    pub(crate) fn most_tokens(&self, context: usize) -> usize {
        match &self.task {
            Task::Generate(generation) => {
                let answer = generation.max_tokens.unwrap_or(context);
                self.prompt.len().saturating_add(answer).min(context)
            }
            Task::Score { positions } => positions.end,
            Task::Embed(_) => self.prompt.len(),
        }
    }

    /// So many tokens may go through the model: the last one drawn ends the answer and never does.
    fn most_fed(&self, context: usize) -> usize {
        match &self.task {
            Task::Generate(_) => self.most_tokens(context) - 1,
            Task::Score { .. } | Task::Embed(_) => self.most_tokens(context),
        }
    }

    fn validate_prompt(&self, bounds: &Bounds) -> Result<(), RequestError> {
        let (prompt, context) = (self.prompt.len(), bounds.context);
        if prompt == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        if prompt > context {
            return Err(RequestError::PromptTooLong { prompt, context });
        }
        if prompt == context && matches!(self.task, Task::Generate(_)) {
            return Err(RequestError::NoRoomForAnswer { context });
        }
        let vocabulary = bounds.vocabulary;
        let unknown = |&token: &Token| token as usize >= vocabulary;
        match self.prompt.iter().position(unknown) {
            None => Ok(()),
            Some(position) => Err(RequestError::UnknownToken {
                token: self.prompt[position],
                position,
                vocabulary,
            }),
        }
    }

    fn validate_positions(&self, positions: &Range<usize>) -> Result<(), RequestError> {
        match !positions.is_empty() && positions.end <= self.prompt.len() {
            true => Ok(()),
            false => Err(RequestError::Positions {
                start: positions.start,
                end: positions.end,
                prompt: self.prompt.len(),
            }),
        }
    }
}

impl Generation {
    fn validate(&self, bounds: &Bounds) -> Result<(), RequestError> {
        let vocabulary = bounds.vocabulary;
        if self.max_tokens == Some(0) {
            return Err(RequestError::NoTokens);
        }
        let most = MAX_LOGPROBS.min(vocabulary);
        if let Some(asked) = self.logprobs.filter(|asked| *asked > most) {
            return Err(RequestError::TopLogprobs { asked, most });
        }
        let unknown = |token: &&Token| **token as usize >= vocabulary;
        if let Some(&token) = self.stop_tokens.iter().find(unknown) {
            return Err(RequestError::UnknownStopToken { token, vocabulary });
        }
        Ok(self.sampling.validate(vocabulary)?)
    }
}

/// Alternatives of a token that a runner tells at most: as many as the OpenAI protocol has.
pub const MAX_LOGPROBS: usize = 20;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// There is nothing to run the model on.
    #[error("the prompt has no tokens; give at least one")]
    EmptyPrompt,
    /// It is never cut silently.
    #[error(
        "the prompt has {prompt} tokens and the context holds {context}; \
         shorten the prompt or enlarge the context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// The prompt fits exactly.
    #[error(
        "the prompt fills the context of {context} tokens and leaves none for the answer; \
         shorten the prompt or enlarge the context"
    )]
    NoRoomForAnswer {
        /// Tokens of the context, and of the prompt.
        context: usize,
    },
    /// A token of the prompt that the model does not have.
    #[error(
        "token {token} at position {position} of the prompt is unknown; \
         the vocabulary has {vocabulary} tokens, from 0: was it made with another tokenizer?"
    )]
    UnknownToken {
        /// The token.
        token: Token,
        /// Where it stands in the prompt.
        position: usize,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// A stop token that the model does not have.
    #[error(
        "stop token {token} is unknown; \
         the vocabulary has {vocabulary} tokens, from 0: was it made with another tokenizer?"
    )]
    UnknownStopToken {
        /// The token.
        token: Token,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// `max_tokens` is 0.
    #[error("`max_tokens` is 0, so there is nothing to generate; ask for at least 1")]
    NoTokens,
    /// More alternatives than there are tokens, or than [`MAX_LOGPROBS`].
    #[error("`top_logprobs` is {asked}; up to {most} can be told, ask for fewer")]
    TopLogprobs {
        /// Alternatives asked for.
        asked: usize,
        /// Alternatives at most.
        most: usize,
    },
    /// Positions to score that the prompt does not have, or none.
    #[error(
        "positions {start}..{end} cannot be scored in a prompt of {prompt} tokens; \
         give a range within it that is not empty"
    )]
    Positions {
        /// First position.
        start: usize,
        /// One past the last.
        end: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// A sampling parameter out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// It could not be finished even with every page to itself.
    #[error(
        "the request may grow to {tokens} tokens and the KV cache holds {cache}; \
         lower `max_tokens`, shorten the prompt or enlarge the KV cache"
    )]
    BeyondCache {
        /// Tokens that may need K and V.
        tokens: usize,
        /// Tokens that the pages hold.
        cache: usize,
    },
}
