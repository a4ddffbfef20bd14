//! Multi-head latent attention in `config.json`, as GGUF keys.
//!
//! Owns the lengths of DeepSeek's heads. Must not know tensors.

use super::config::{Architecture, Keys};
use super::document::Document;
use crate::Error;

/// Lengths of what keys and values are made of.
pub(super) struct Latent {
    /// Of the vector that queries come from; `None` where they come from the input.
    query_rank: Option<usize>,
    /// Of the vector that keys and values come from.
    pub rank: usize,
    /// The part of a key that is turned.
    rotary: usize,
    /// The part of a key that is not.
    pub plain: usize,
    /// A value.
    pub value: usize,
}

impl Latent {
    /// What the architecture has of it.
    pub fn of(config: &Document, architecture: Architecture) -> Result<Option<Self>, Error> {
        if !matches!(
            architecture,
            Architecture::DeepSeek2 | Architecture::DeepSeek3
        ) {
            return Ok(None);
        }
        if architecture == Architecture::DeepSeek3 && !config.truth("rope_interleave", true)? {
            return Err(config.refuse("rope_interleave", "is false, which GGUF has no key for"));
        }
        Ok(Some(Self {
            query_rank: config.optional_size("q_lora_rank")?,
            rank: config.size("kv_lora_rank")?,
            rotary: config.size("qk_rope_head_dim")?,
            plain: config.size("qk_nope_head_dim")?,
            value: config.size("v_head_dim")?,
        }))
    }

    /// Sets the keys: of the cache's one head, and of the heads that it stands for.
    pub fn describe(&self, keys: &mut Keys<'_>) {
        let whole = |rotary: usize, rest: usize| rotary.saturating_add(rest).min(u32::MAX as usize);
        keys.size("attention.head_count_kv", 1);
        if let Some(rank) = self.query_rank {
            keys.size("attention.q_lora_rank", rank);
        }
        keys.size("attention.kv_lora_rank", self.rank);
        keys.size("attention.key_length", whole(self.rotary, self.rank));
        keys.size("attention.value_length", self.rank);
        keys.size("attention.key_length_mla", whole(self.rotary, self.plain));
        keys.size("attention.value_length_mla", self.value);
        keys.size("rope.dimension_count", self.rotary);
    }
}
