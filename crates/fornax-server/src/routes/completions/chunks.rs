//! The chunks of streamed completions.

use fornax::text::Tokenizer;
use fornax::{Delta, Event};
use serde_json::{Value, json};

use super::Echo;
use crate::answers::finish_reason;
use crate::openai::envelope::Envelope;
use crate::openai::logprobs::{Drawn, Lists, length};
use crate::openai::usage::Usage;
use crate::sse::Chunks;

/// What the chunks of one request have in common.
pub struct CompletionChunks {
    pub envelope: Envelope,
    pub tokenizer: Tokenizer,
    /// Characters of each answer so far, its echo among them. `[n_answers]`
    pub written: Vec<usize>,
    pub logprobs: bool,
    /// Answers to each prompt.
    pub choices: usize,
    /// `[n_prompts]`, where the prompts are repeated.
    pub echoes: Option<Vec<Echo>>,
    /// Whether nothing comes behind the echoes.
    pub is_echo_all: bool,
    pub usage: Usage,
    pub include_usage: bool,
}

impl CompletionChunks {
    fn chunk(&self, index: usize, text: &str, lists: Option<Lists>, reason: Value) -> Value {
        let choice = json!({
            "index": index,
            "text": text,
            "logprobs": lists,
            "finish_reason": reason,
        });
        self.envelope.chunk(vec![choice], self.include_usage)
    }

    /// A chunk for each token, though its text may be none or not certain yet: who times or counts
    /// them sees each.
    fn delta(&mut self, index: usize, mut delta: Delta) -> Option<Value> {
        if delta.token.is_none() && delta.text.is_empty() {
            return None;
        }
        let lists = Drawn::of(&mut delta).map(|drawn| {
            let mut lists = Lists::default();
            lists.push(&self.tokenizer, &drawn, self.written[index]);
            self.written[index] += length(&self.tokenizer, drawn.token.token);
            lists
        });
        Some(self.chunk(index, &delta.text, lists, Value::Null))
    }
}

impl Chunks for CompletionChunks {
    fn opening(&mut self) -> Vec<Value> {
        let Some(echoes) = self.echoes.take() else {
            return Vec::new();
        };
        let mut opening = Vec::with_capacity(self.written.len());
        for index in 0..self.written.len() {
            let echo = &echoes[index / self.choices];
            self.written[index] = echo.text.chars().count();
            let lists = self.logprobs.then(|| echo.lists.clone());
            let reason = if self.is_echo_all {
                json!("length")
            } else {
                Value::Null
            };
            opening.push(self.chunk(index, &echo.text, lists, reason));
        }
        opening
    }

    fn event(&mut self, index: usize, event: Event) -> Vec<Value> {
        match event {
            Event::Delta(delta) => self.delta(index, delta).into_iter().collect(),
            Event::Finished(finished) => {
                self.usage
                    .add(finished.usage, index.is_multiple_of(self.choices));
                let reason = json!(finish_reason(&finished.reason));
                vec![self.chunk(index, "", None, reason)]
            }
        }
    }

    fn closing(&mut self) -> Vec<Value> {
        let usage = self.include_usage.then(|| self.envelope.usage(self.usage));
        usage.into_iter().collect()
    }
}
