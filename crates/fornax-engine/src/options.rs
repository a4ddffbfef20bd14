//! How an engine spends its pages and its steps.
//!
//! Owns the choices only. What they do is the scheduler's and the cache's.

use crate::{KvPolicy, PromptPace};

/// How an engine works; it changes how fast answers come, never what they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineOptions {
    /// How K and V are kept from step to step.
    pub kv: KvPolicy,
    /// Whether sequences share the K and V of the tokens they begin with, and leave them to later
    /// ones. Needs [`KvPolicy::Paged`].
    pub prefix_cache: bool,
    /// How much of prompts goes into a step in which an answer goes on.
    pub prompt_pace: PromptPace,
}

impl From<KvPolicy> for EngineOptions {
    /// Prefixes are shared where they can be, and prompts take all that a step has room for.
    fn from(kv: KvPolicy) -> Self {
        Self {
            kv,
            prefix_cache: kv == KvPolicy::Paged,
            prompt_pace: PromptPace::Whole,
        }
    }
}
