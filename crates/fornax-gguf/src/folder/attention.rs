//! Attention heads in `config.json`: how many, how long, with which biases and which window.
//!
//! Owns what a setting means where it is absent, which is what the `transformers` class of the
//! architecture makes of it. Must not know tensors.

use super::config::Architecture;
use super::document::Document;
use crate::Error;

/// The window that Mistral's, Qwen's and Gemma's classes have where `config.json` does not name one.
const USUAL_WINDOW: usize = 4096;
/// The layer from which on Qwen's windows begin where `config.json` does not say.
const FIRST_WINDOWED: usize = 28;

/// Query heads, and the key and value heads that they share.
pub(super) struct Heads {
    /// Of queries.
    pub queries: usize,
    /// Of keys and of values.
    pub keys: usize,
    /// Values per head.
    pub dim: usize,
    /// Whether the projections to queries, keys, values and out of attention have biases, where that
    /// is a choice.
    pub biased: bool,
}

impl Heads {
    /// Those of a model of this width.
    pub fn of(config: &Document, architecture: Architecture, width: usize) -> Result<Self, Error> {
        let queries = config.size("num_attention_heads")?;
        let usual = match architecture {
            Architecture::Qwen3 => Some(128),
            Architecture::Gemma3 => Some(256),
            Architecture::GptOss => Some(64),
            _ => None,
        };
        let dim = match config.optional_size("head_dim")?.or(usual) {
            Some(dim) => dim,
            None if queries > 0 && width >= queries && width.is_multiple_of(queries) => {
                width / queries
            }
            None => {
                let problem = format!("is {queries}, which does not divide hidden_size {width}");
                return Err(config.refuse("num_attention_heads", &problem));
            }
        };
        for (key, count) in [("num_attention_heads", queries), ("head_dim", dim)] {
            if count == 0 {
                return Err(config.refuse(key, "is 0"));
            }
        }
        let keys = config.optional_size("num_key_value_heads")?;
        let keys = keys.unwrap_or(queries);
        if keys == 0 || !queries.is_multiple_of(keys) {
            let problem = format!("is {keys}, which does not divide num_attention_heads {queries}");
            return Err(config.refuse("num_key_value_heads", &problem));
        }
        Ok(Self {
            queries,
            keys,
            dim,
            biased: biased(config, architecture)?,
        })
    }
}

/// Whether the projections have biases by choice. A setting that the class does not know is none.
fn biased(config: &Document, architecture: Architecture) -> Result<bool, Error> {
    let refuse = |key: &str, value: bool| {
        let problem = format!("is {value}, which is not supported in this architecture");
        Err(config.refuse(key, &problem))
    };
    let set = |key: &str| config.optional_bool(key);
    match architecture {
        Architecture::Llama => {
            if set("mlp_bias")? == Some(true) {
                return refuse("mlp_bias", true);
            }
            Ok(set("attention_bias")?.unwrap_or(false))
        }
        Architecture::Mistral | Architecture::Qwen2 => Ok(false),
        Architecture::Qwen2Moe if !config.truth("qkv_bias", true)? => refuse("qkv_bias", false),
        Architecture::GptOss if !config.truth("attention_bias", true)? => {
            refuse("attention_bias", false)
        }
        Architecture::Qwen2Moe | Architecture::GptOss => Ok(false),
        Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::Gemma3
        | Architecture::DeepSeek2
        | Architecture::DeepSeek3 => {
            for key in ["attention_bias", "mlp_bias"] {
                if set(key)? == Some(true) {
                    return refuse(key, true);
                }
            }
            Ok(false)
        }
    }
}

/// Positions that a query sees where it does not see all; `None` where no layer has a window, though
/// `sliding_window` may be there: Llama's class does not know it, and Qwen's heeds it only by
/// `use_sliding_window`.
pub(super) fn window(
    config: &Document,
    architecture: Architecture,
    layers: usize,
) -> Result<Option<usize>, Error> {
    const KEY: &str = "sliding_window";
    let window = config.optional_size(KEY)?;
    match architecture {
        Architecture::Llama | Architecture::DeepSeek2 | Architecture::DeepSeek3 => Ok(None),
        Architecture::Mistral => match (window, config.value().get(KEY)) {
            (None, None) => Ok(Some(USUAL_WINDOW)),
            (window, _) => Ok(window),
        },
        Architecture::Gemma3 | Architecture::GptOss => {
            if config.optional_bool("use_bidirectional_attention")? == Some(true) {
                let problem = "is true, which is not supported";
                return Err(config.refuse("use_bidirectional_attention", problem));
            }
            match (window, config.value().get(KEY)) {
                (Some(window), _) => Ok(Some(window)),
                (None, Some(_)) => Err(config.refuse(KEY, "is null")),
                (None, None) => Ok(Some(match architecture {
                    Architecture::GptOss => 128,
                    _ => USUAL_WINDOW,
                })),
            }
        }
        Architecture::Qwen2
        | Architecture::Qwen2Moe
        | Architecture::Qwen3
        | Architecture::Qwen3Moe => match qwen_has_windows(config, architecture, layers)? {
            false => Ok(None),
            true => {
                let problem = "gives layers a window, which is not supported in this architecture";
                Err(config.refuse("use_sliding_window", problem))
            }
        },
    }
}

/// Whether any layer of a Qwen has a window.
fn qwen_has_windows(
    config: &Document,
    architecture: Architecture,
    layers: usize,
) -> Result<bool, Error> {
    let kinds = config.key("layer_types").and_then(|list| list.as_array());
    let mut kinds = kinds.into_iter().flatten();
    let named = kinds.any(|kind| kind.as_str() != Some("full_attention"));
    let null = config
        .value()
        .get("sliding_window")
        .is_some_and(|window| window.is_null());
    if config.optional_bool("use_sliding_window")? != Some(true) || null {
        return Ok(named && architecture != Architecture::Qwen3Moe);
    }
    let first = config.optional_size("max_window_layers")?;
    let first = first.unwrap_or(FIRST_WINDOWED);
    Ok(match architecture {
        Architecture::Qwen3Moe => true,
        _ if config.key("layer_types").is_some() => named,
        Architecture::Qwen2Moe => first > 0,
        _ => first < layers,
    })
}
