//! What `config.json` says, as GGUF metadata keys.
//!
//! Owns the table of architectures and which setting of one becomes which key of the other. A
//! setting that the GGUF architecture has no key for is refused unless it has the one value that
//! the architecture implies. Must not know tensors.

use super::document::Document;
use super::refuse;
use super::rope::{self, Rope};
use crate::{Error, Metadata, Value};

/// What of a model its tensors depend on.
pub(super) struct Model {
    pub architecture: Architecture,
    pub heads: usize,
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    pub layers: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Experts in place of each MLP; 0 for none.
    pub experts: usize,
    /// Whether the head is the embedding.
    pub tied: bool,
    pub rope: Rope,
}

/// Architectures that a folder may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Qwen2,
    Qwen2Moe,
    Qwen3,
    Qwen3Moe,
    Gemma3,
}

/// Their names in `config.json` and in GGUF.
const ARCHITECTURES: [(&str, &str, Architecture); 7] = [
    ("LlamaForCausalLM", "llama", Architecture::Llama),
    ("MistralForCausalLM", "llama", Architecture::Llama),
    ("Qwen2ForCausalLM", "qwen2", Architecture::Qwen2),
    ("Qwen2MoeForCausalLM", "qwen2moe", Architecture::Qwen2Moe),
    ("Qwen3ForCausalLM", "qwen3", Architecture::Qwen3),
    ("Qwen3MoeForCausalLM", "qwen3moe", Architecture::Qwen3Moe),
    ("Gemma3ForCausalLM", "gemma3", Architecture::Gemma3),
];

/// Sets the keys of the architecture, and gives what the tensors need.
pub(super) fn describe(
    folder: &str,
    config: &Document,
    metadata: &mut Metadata,
) -> Result<Model, Error> {
    let (name, architecture) = architecture(folder, config)?;
    let mut keys = Keys { name, metadata };
    keys.whole("general.architecture", name);
    let title = config.optional_str("_name_or_path")?;
    let title = title.filter(|title| !title.is_empty()).unwrap_or(folder);
    let title = title.trim_end_matches('/').rsplit('/').next();
    keys.whole("general.name", title.unwrap_or(folder));
    let heads = config.size("num_attention_heads")?;
    let width = config.size("hidden_size")?;
    if heads == 0 || width < heads {
        return Err(config.refuse("num_attention_heads", "does not divide hidden_size"));
    }
    let rope = Rope::of(config)?;
    let model = Model {
        architecture,
        heads,
        kv_heads: config
            .optional_size("num_key_value_heads")?
            .unwrap_or(heads),
        head_dim: config.optional_size("head_dim")?.unwrap_or(width / heads),
        layers: config.size("num_hidden_layers")?,
        vocabulary: config.size("vocab_size")?,
        experts: experts(config, architecture)?,
        tied: config
            .optional_bool("tie_word_embeddings")?
            .unwrap_or(architecture == Architecture::Gemma3),
        rope,
    };
    keys.size("block_count", model.layers);
    keys.size("context_length", config.size("max_position_embeddings")?);
    keys.size("embedding_length", width);
    keys.size("feed_forward_length", config.size("intermediate_size")?);
    keys.size("attention.head_count", model.heads);
    keys.size("attention.head_count_kv", model.kv_heads);
    keys.size("attention.key_length", model.head_dim);
    keys.size("attention.value_length", model.head_dim);
    keys.size("vocab_size", model.vocabulary);
    if architecture == Architecture::Llama {
        keys.size("rope.dimension_count", model.head_dim);
    }
    let epsilon = config.optional_number("rms_norm_eps")?;
    keys.set("attention.layer_norm_rms_epsilon", epsilon.unwrap_or(1e-6));
    rope::describe(&model.rope, architecture, config, &mut keys)?;
    window(config, architecture, &mut keys)?;
    mixture(config, architecture, model.experts, &mut keys)?;
    check(config, &model, width)?;
    Ok(model)
}

fn architecture(folder: &str, config: &Document) -> Result<(&'static str, Architecture), Error> {
    let named = config.key("architectures").and_then(|names| names.get(0));
    let named = named.and_then(|name| name.as_str()).unwrap_or("");
    let row = ARCHITECTURES.iter().find(|(theirs, ..)| *theirs == named);
    row.map(|&(_, name, architecture)| (name, architecture))
        .ok_or_else(|| {
            let known: Vec<&str> = ARCHITECTURES.iter().map(|(theirs, ..)| *theirs).collect();
            refuse(
                folder,
                "config.json",
                format!("the architecture {named:?} is not read from folders"),
                &format!(
                    "those that are: {}; or convert it to GGUF with llama.cpp's converter",
                    known.join(", ")
                ),
            )
        })
}

/// The metadata in the making.
pub(super) struct Keys<'a> {
    name: &'static str,
    metadata: &'a mut Metadata,
}

impl Keys<'_> {
    /// Sets a key of the architecture.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) {
        let key = format!("{}.{key}", self.name);
        self.whole(&key, value);
    }

    /// Sets a count of the architecture.
    pub fn size(&mut self, key: &str, value: usize) {
        let value = u32::try_from(value).expect("invariant: sizes are read as 32 bits");
        self.set(key, value);
    }

    fn whole(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.insert(key, value.into());
    }
}

fn experts(config: &Document, architecture: Architecture) -> Result<usize, Error> {
    if !matches!(
        architecture,
        Architecture::Qwen2Moe | Architecture::Qwen3Moe
    ) {
        return Ok(0);
    }
    match config.optional_size("num_experts")? {
        Some(experts) => Ok(experts),
        None => config.size("num_local_experts"),
    }
}

fn mixture(
    config: &Document,
    architecture: Architecture,
    experts: usize,
    keys: &mut Keys<'_>,
) -> Result<(), Error> {
    if experts == 0 {
        return Ok(());
    }
    keys.size("expert_count", experts);
    keys.size("expert_used_count", config.size("num_experts_per_tok")?);
    keys.size(
        "expert_feed_forward_length",
        config.size("moe_intermediate_size")?,
    );
    if architecture == Architecture::Qwen2Moe {
        keys.size(
            "expert_shared_feed_forward_length",
            config.size("shared_expert_intermediate_size")?,
        );
    }
    let normalised = config.optional_bool("norm_topk_prob")?.unwrap_or(false);
    if normalised != (architecture == Architecture::Qwen3Moe) {
        return Err(config.refuse("norm_topk_prob", "is not that of the published models"));
    }
    let dense = config
        .key("mlp_only_layers")
        .and_then(|list| list.as_array());
    if config.optional_size("decoder_sparse_step")?.unwrap_or(1) != 1
        || dense.is_some_and(|layers| !layers.is_empty())
    {
        let problem = "mixes dense layers among those with experts, which is not supported";
        return Err(config.refuse("decoder_sparse_step or mlp_only_layers", problem));
    }
    Ok(())
}

fn window(config: &Document, architecture: Architecture, keys: &mut Keys<'_>) -> Result<(), Error> {
    let uses = config.optional_bool("use_sliding_window")?;
    let always = matches!(architecture, Architecture::Llama | Architecture::Gemma3);
    match config.optional_size("sliding_window")? {
        Some(window) if uses.unwrap_or(always) => {
            keys.size("attention.sliding_window", window);
            Ok(())
        }
        None if architecture == Architecture::Gemma3 => {
            Err(config.refuse("sliding_window", "is missing"))
        }
        _ => Ok(()),
    }
}

/// Settings that GGUF has no key for.
fn check(config: &Document, model: &Model, width: usize) -> Result<(), Error> {
    let is_gemma = model.architecture == Architecture::Gemma3;
    let (key, expected) = match is_gemma {
        true => ("hidden_activation", "gelu_pytorch_tanh"),
        false => ("hidden_act", "silu"),
    };
    if config.optional_str(key)?.unwrap_or(expected) != expected {
        return Err(config.refuse(key, &format!("is not {expected}")));
    }
    if !is_gemma {
        return Ok(());
    }
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.key(key).is_some() {
            return Err(config.refuse(key, "is set, which is not supported"));
        }
    }
    // The largest of the published models divides by another width than its heads have.
    let scalar = config.optional_size("query_pre_attn_scalar")?;
    let usual = if model.layers == 62 {
        width / model.heads
    } else {
        model.head_dim
    };
    if scalar.is_some_and(|scalar| scalar != usual) {
        return Err(config.refuse("query_pre_attn_scalar", &format!("is not {usual}")));
    }
    let kinds = config.key("layer_types").and_then(|list| list.as_array());
    for (layer, kind) in kinds.into_iter().flatten().enumerate() {
        let global = layer % 6 == 5;
        if (kind.as_str() == Some("full_attention")) != global {
            let problem = "does not have every sixth layer, and only those, without a window";
            return Err(config.refuse("layer_types", problem));
        }
    }
    Ok(())
}
