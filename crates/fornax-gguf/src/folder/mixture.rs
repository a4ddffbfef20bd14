//! Experts in `config.json`, as GGUF keys.
//!
//! Owns how a token's experts are chosen and weighed. Must not know tensors.

use super::config::{Architecture, Keys};
use super::document::Document;
use crate::Error;

/// Experts in place of each MLP; 0 for none.
pub(super) fn experts(config: &Document, architecture: Architecture) -> Result<usize, Error> {
    match architecture {
        Architecture::Llama
        | Architecture::Mistral
        | Architecture::Qwen2
        | Architecture::Qwen3
        | Architecture::Gemma3 => Ok(0),
        Architecture::DeepSeek2 | Architecture::DeepSeek3 => config.size("n_routed_experts"),
        Architecture::Qwen2Moe | Architecture::Qwen3Moe | Architecture::GptOss => {
            match config.optional_size("num_experts")? {
                Some(experts) => Ok(experts),
                None => config.size("num_local_experts"),
            }
        }
    }
}

/// Sets the keys.
pub(super) fn describe(
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
    let hidden = match architecture {
        Architecture::GptOss => "intermediate_size",
        _ => "moe_intermediate_size",
    };
    keys.size("expert_feed_forward_length", config.size(hidden)?);
    match architecture {
        Architecture::GptOss => Ok(()),
        Architecture::DeepSeek2 | Architecture::DeepSeek3 => deepseek(config, architecture, keys),
        _ => qwen(config, architecture, keys),
    }
}

fn qwen(config: &Document, architecture: Architecture, keys: &mut Keys<'_>) -> Result<(), Error> {
    if architecture == Architecture::Qwen2Moe {
        keys.size(
            "expert_shared_feed_forward_length",
            config.size("shared_expert_intermediate_size")?,
        );
    }
    let normalised = config.truth("norm_topk_prob", false)?;
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

/// Numbers of GGUF for a router.
const SOFTMAX: u32 = 1;
const SIGMOID: u32 = 2;

fn deepseek(
    config: &Document,
    architecture: Architecture,
    keys: &mut Keys<'_>,
) -> Result<(), Error> {
    let is_third = architecture == Architecture::DeepSeek3;
    let (scoring, router) = match is_third {
        false => ("softmax", SOFTMAX),
        true => ("sigmoid", SIGMOID),
    };
    if config.optional_str("scoring_func")?.unwrap_or(scoring) != scoring {
        return Err(config.refuse("scoring_func", &format!("is not {scoring}")));
    }
    let method = config.optional_str("topk_method")?;
    let in_groups = match (is_third, method) {
        (false, None | Some("greedy")) => false,
        (false, Some("group_limited_greedy")) | (true, None | Some("noaux_tc")) => true,
        _ => return Err(config.refuse("topk_method", "is none that the published models have")),
    };
    if config.optional_size("moe_layer_freq")?.unwrap_or(1) != 1 {
        let problem = "mixes dense layers among those with experts, which is not supported";
        return Err(config.refuse("moe_layer_freq", problem));
    }
    let normalised = config.truth("norm_topk_prob", is_third)?;
    if normalised && !is_third {
        return Err(config.refuse("norm_topk_prob", "is not that of the published models"));
    }
    keys.set("expert_gating_func", router);
    keys.set("expert_weights_norm", normalised);
    let usual = if is_third { 2.5 } else { 1.0 };
    let scale = config.optional_number("routed_scaling_factor")?;
    keys.set("expert_weights_scale", scale.unwrap_or(usual));
    let shared = config.optional_size("n_shared_experts")?;
    keys.size("expert_shared_count", shared.unwrap_or(0));
    let dense = config.optional_size("first_k_dense_replace")?;
    keys.size("leading_dense_block_count", dense.unwrap_or(0));
    if in_groups {
        keys.size("expert_group_count", config.size("n_group")?);
        keys.size("expert_group_used_count", config.size("topk_group")?);
    }
    Ok(())
}
