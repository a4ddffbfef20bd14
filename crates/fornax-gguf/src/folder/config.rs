//! What `config.json` says, as GGUF metadata keys.
//!
//! Owns the table of architectures and which setting of one becomes which key of the other. A
//! setting that the GGUF architecture has no key for is refused unless it has the one value that
//! the architecture implies. Must not know tensors.

use std::ops::Range;

use super::attention::{self, Heads};
use super::document::Document;
use super::latent::Latent;
use super::mixture;
use super::refuse;
use super::rope::{self, Rope};
use crate::{Error, Metadata, Value};

/// What of a model its tensors depend on.
pub(super) struct Model {
    pub architecture: Architecture,
    /// Values of the stream between layers.
    pub width: usize,
    pub heads: Heads,
    pub layers: usize,
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// Experts in place of each MLP; 0 for none.
    pub experts: usize,
    /// Whether the head is the embedding, unless the folder has another.
    pub tied: bool,
    pub rope: Rope,
    /// Where keys and values come from a latent vector.
    pub latent: Option<Latent>,
    /// Layers behind the last, which foretell further tokens.
    pub foretelling: Range<usize>,
}

/// Architectures that a folder may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    Llama,
    Mistral,
    Qwen2,
    Qwen2Moe,
    Qwen3,
    Qwen3Moe,
    Gemma3,
    GptOss,
    DeepSeek2,
    DeepSeek3,
}

impl Architecture {
    /// Whether GGUF has its heads turned by neighbours.
    pub fn is_permuted(self) -> bool {
        matches!(self, Architecture::Llama | Architecture::Mistral)
    }
}

/// Their names in `config.json` and in GGUF.
const ARCHITECTURES: [(&str, &str, Architecture); 10] = [
    ("LlamaForCausalLM", "llama", Architecture::Llama),
    ("MistralForCausalLM", "llama", Architecture::Mistral),
    ("Qwen2ForCausalLM", "qwen2", Architecture::Qwen2),
    ("Qwen2MoeForCausalLM", "qwen2moe", Architecture::Qwen2Moe),
    ("Qwen3ForCausalLM", "qwen3", Architecture::Qwen3),
    ("Qwen3MoeForCausalLM", "qwen3moe", Architecture::Qwen3Moe),
    ("Gemma3ForCausalLM", "gemma3", Architecture::Gemma3),
    ("GptOssForCausalLM", "gpt-oss", Architecture::GptOss),
    (
        "DeepseekV2ForCausalLM",
        "deepseek2",
        Architecture::DeepSeek2,
    ),
    (
        "DeepseekV3ForCausalLM",
        "deepseek2",
        Architecture::DeepSeek3,
    ),
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
    let width = config.size("hidden_size")?;
    let rope = Rope::of(config, architecture)?;
    let layers = config.size("num_hidden_layers")?;
    let foretelling = config.optional_size("num_nextn_predict_layers")?;
    let model = Model {
        architecture,
        width,
        heads: Heads::of(config, architecture, width)?,
        layers,
        vocabulary: config.size("vocab_size")?,
        experts: mixture::experts(config, architecture)?,
        tied: config.truth("tie_word_embeddings", architecture == Architecture::Gemma3)?,
        rope,
        latent: Latent::of(config, architecture)?,
        foretelling: layers..layers.saturating_add(foretelling.unwrap_or(0)),
    };
    keys.size("block_count", model.layers);
    keys.size("context_length", positions(config, architecture)?);
    keys.size("embedding_length", width);
    keys.size("feed_forward_length", config.size("intermediate_size")?);
    keys.size("attention.head_count", model.heads.queries);
    match &model.latent {
        Some(latent) => latent.describe(&mut keys),
        None => {
            keys.size("attention.head_count_kv", model.heads.keys);
            keys.size("attention.key_length", model.heads.dim);
            keys.size("attention.value_length", model.heads.dim);
        }
    }
    keys.size("vocab_size", model.vocabulary);
    if architecture.is_permuted() {
        keys.size("rope.dimension_count", model.heads.dim);
    }
    let usual = match architecture {
        Architecture::GptOss => 1e-5,
        _ => 1e-6,
    };
    let epsilon = config.optional_number("rms_norm_eps")?;
    keys.set("attention.layer_norm_rms_epsilon", epsilon.unwrap_or(usual));
    rope::describe(&model.rope, architecture, config, &mut keys)?;
    if let Some(window) = attention::window(config, architecture, model.layers)? {
        keys.size("attention.sliding_window", window);
    }
    mixture::describe(config, architecture, model.experts, &mut keys)?;
    check(config, &model)?;
    Ok(model)
}

/// The longest context: what is said, or else what the `transformers` class has.
pub(super) fn positions(config: &Document, architecture: Architecture) -> Result<usize, Error> {
    let said = config.optional_size("max_position_embeddings")?;
    Ok(said.unwrap_or(match architecture {
        Architecture::Llama | Architecture::DeepSeek2 => 2048,
        Architecture::DeepSeek3 => 4096,
        Architecture::Mistral | Architecture::Gemma3 | Architecture::GptOss => 131_072,
        Architecture::Qwen2
        | Architecture::Qwen2Moe
        | Architecture::Qwen3
        | Architecture::Qwen3Moe => 32_768,
    }))
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

/// Settings that GGUF has no key for.
fn check(config: &Document, model: &Model) -> Result<(), Error> {
    // Each kind by all of its names.
    let (key, kinds): (_, &[&str]) = match model.architecture {
        Architecture::Gemma3 => ("hidden_activation", &["gelu_pytorch_tanh"]),
        _ => ("hidden_act", &["silu", "swish"]),
    };
    if let Some(kind) = config.optional_str(key)?
        && !kinds.contains(&kind)
    {
        return Err(config.refuse(key, &format!("is not {}", kinds[0])));
    }
    match model.architecture {
        Architecture::Gemma3 => {
            check_gemma(config, model)?;
            let pattern = config.optional_size("sliding_window_pattern")?;
            if pattern.is_some_and(|pattern| pattern != GEMMA_PERIOD)
                && config.key("layer_types").is_none()
            {
                let problem = format!("is not {GEMMA_PERIOD}");
                return Err(config.refuse("sliding_window_pattern", &problem));
            }
            every_so_many_layers(config, model, GEMMA_PERIOD)
        }
        Architecture::GptOss => {
            for (key, usual) in [
                ("swiglu_limit", SWIGLU_LIMIT),
                ("swiglu_alpha", SWIGLU_ALPHA),
            ] {
                if config
                    .optional_number(key)?
                    .is_some_and(|value| value != usual)
                {
                    return Err(config.refuse(key, &format!("is not {usual}")));
                }
            }
            every_so_many_layers(config, model, 2)
        }
        _ => Ok(()),
    }
}

/// Of so many layers of Gemma 3 the last has no window.
const GEMMA_PERIOD: usize = 6;
/// Where the published gpt-oss clamps its experts.
const SWIGLU_LIMIT: f32 = 7.0;
/// And how steep their sigmoid is.
const SWIGLU_ALPHA: f32 = 1.702;
/// What Gemma 3's class scales queries by where nothing is said.
const QUERY_SCALAR: usize = 256;

fn check_gemma(config: &Document, model: &Model) -> Result<(), Error> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if config.key(key).is_some() {
            return Err(config.refuse(key, "is set, which is not supported"));
        }
    }
    // The largest of the published models divides by another width than its heads have.
    let scalar = config.optional_size("query_pre_attn_scalar")?;
    let usual = if model.layers == 62 {
        model.width / model.heads.queries
    } else {
        model.heads.dim
    };
    let scalar = scalar.unwrap_or(QUERY_SCALAR);
    if scalar != usual {
        let problem = format!("is {scalar}, not {usual}");
        return Err(config.refuse("query_pre_attn_scalar", &problem));
    }
    Ok(())
}

/// That of so many layers the last has no window, as readers of GGUF take for granted.
fn every_so_many_layers(config: &Document, model: &Model, period: usize) -> Result<(), Error> {
    let kinds = config.key("layer_types").and_then(|list| list.as_array());
    if let Some(kinds) = kinds.filter(|kinds| kinds.len() != model.layers) {
        let problem = format!(
            "has {} entries for num_hidden_layers {}",
            kinds.len(),
            model.layers
        );
        return Err(config.refuse("layer_types", &problem));
    }
    for (layer, kind) in kinds.into_iter().flatten().enumerate() {
        let global = layer % period == period - 1;
        if (kind.as_str() == Some("full_attention")) != global {
            let problem = format!(
                "does not have a layer in every {period}, the last, and only those, without a window"
            );
            return Err(config.refuse("layer_types", &problem));
        }
    }
    Ok(())
}
