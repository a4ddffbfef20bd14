//! How many tokens a request took, as the protocol tells it.

use serde::Serialize;

/// Tokens of prompts and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of all prompts, each counted once however many answers it has.
    pub prompt_tokens: usize,
    /// Tokens of all answers.
    pub completion_tokens: usize,
    /// Their sum.
    pub total_tokens: usize,
    /// What is known of the prompts.
    pub prompt_tokens_details: PromptTokens,
}

/// What is known of the prompts' tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokens {
    /// Tokens that did not have to be computed.
    pub cached_tokens: usize,
}

impl Usage {
    /// Before any answer.
    pub fn of_prompts(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            total_tokens: prompt_tokens,
            ..Self::default()
        }
    }

    /// Adds an answer that has ended. `first` tells the first answer to a prompt from the others,
    /// which share its prompt.
    pub fn add(&mut self, answer: fornax::Usage, first: bool) {
        self.completion_tokens += answer.generated;
        self.total_tokens += answer.generated;
        if first {
            self.prompt_tokens_details.cached_tokens += answer.cached;
        }
    }
}
