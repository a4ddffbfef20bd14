//! What a folder calls what GGUF calls otherwise, for errors that its owner can follow.
//!
//! Must not know data.

use std::{borrow::Cow, collections::HashMap};

use super::config::Architecture;
use super::names;

/// Names of the folder's own.
pub(crate) struct Origins {
    architecture: Architecture,
    /// GGUF's name to the folder's, of tensors that are there, and to the file that has it.
    tensors: HashMap<String, (String, String)>,
}

impl Origins {
    /// Those of a folder with no tensors yet.
    pub(super) fn new(architecture: Architecture) -> Self {
        Self {
            architecture,
            tensors: HashMap::new(),
        }
    }

    /// Notes what the folder calls a tensor, and in which of its files it is.
    pub(super) fn add(&mut self, name: &str, theirs: &str, file: &str) {
        let origin = (theirs.to_owned(), file.to_owned());
        self.tensors.insert(name.to_owned(), origin);
    }

    /// The file that has a tensor, where one has.
    pub fn file(&self, name: &str) -> Option<&str> {
        self.tensors.get(name).map(|(_, file)| file.as_str())
    }

    /// What the folder calls a tensor, or would if it had it.
    pub fn tensor<'a>(&'a self, name: &'a str) -> Cow<'a, str> {
        match self.tensors.get(name) {
            Some((theirs, _)) => Cow::Borrowed(theirs),
            None => match names::stored(self.architecture, name) {
                Some(theirs) => Cow::Owned(theirs),
                None => Cow::Borrowed(name),
            },
        }
    }

    /// The setting of `config.json` that a key, with its architecture's name or without, comes from.
    pub fn setting(&self, key: &str) -> Option<&'static str> {
        let ends = |ours: &str| {
            key.strip_suffix(ours)
                .is_some_and(|before| before.is_empty() || before.ends_with('.'))
        };
        let is_gpt_oss = self.architecture == Architecture::GptOss;
        let is_latent = matches!(
            self.architecture,
            Architecture::DeepSeek2 | Architecture::DeepSeek3
        );
        match () {
            () if is_gpt_oss && ends("expert_count") => Some("num_local_experts"),
            () if is_gpt_oss && ends("expert_feed_forward_length") => Some("intermediate_size"),
            () if is_latent && ends("expert_count") => Some("n_routed_experts"),
            () if is_latent && ends("rope.dimension_count") => Some("qk_rope_head_dim"),
            () => {
                let row = SETTINGS.iter().find(|(ours, _)| ends(ours));
                row.map(|(_, theirs)| *theirs)
            }
        }
    }
}

/// Keys that come from one setting each, the longer of two that end alike first.
const SETTINGS: [(&str, &str); 35] = [
    ("block_count", "num_hidden_layers"),
    (
        "rope.scaling.original_context_length",
        "original_max_position_embeddings",
    ),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    (
        "expert_shared_feed_forward_length",
        "shared_expert_intermediate_size",
    ),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.head_count", "num_attention_heads"),
    (
        "attention.key_length_mla",
        "(qk_nope_head_dim + qk_rope_head_dim)",
    ),
    ("attention.value_length_mla", "v_head_dim"),
    ("attention.key_length", "head_dim"),
    ("attention.value_length", "head_dim"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("vocab_size", "vocab_size"),
    ("rope.dimension_count", "head_dim"),
    ("rope.freq_base", "rope_theta"),
    ("rope.scaling.factor", "factor"),
    ("rope.scaling.yarn_beta_fast", "beta_fast"),
    ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ("rope.scaling.yarn_log_multiplier", "mscale_all_dim"),
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_gating_func", "scoring_func"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("tokenizer.ggml.tokens", "the vocabulary of tokenizer.json"),
    ("rope.scaling.type", "rope_type"),
];
