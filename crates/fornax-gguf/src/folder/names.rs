//! Which tensor of a folder becomes which of GGUF.
//!
//! Owns the names of both sides. Must not know data.

use super::config::{Architecture, Model};
use super::packed::{self, Packed};

/// What becomes of a stored tensor.
pub(super) enum Place {
    /// It is not needed.
    Nowhere,
    /// A tensor of its own.
    Own(String),
    /// One of a stack.
    Expert { stack: String, index: usize },
    /// What expands keys and values from their latent vector, of this layer.
    KeysAndValues(usize),
    /// All experts of a layer at once, as gpt-oss has them.
    Packed(Packed),
}

/// Where a tensor of that name belongs; `None` where it is unknown.
pub(super) fn place(model: &Model, name: &str) -> Option<Place> {
    let own = |name: &str| Some(Place::Own(name.to_owned()));
    match name {
        "model.embed_tokens.weight" => return own("token_embd.weight"),
        "model.norm.weight" => return own("output_norm.weight"),
        "lm_head.weight" if model.tied => return Some(Place::Nowhere),
        "lm_head.weight" => return own("output.weight"),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    // Layers behind the last foretell more than one token, which nobody asks for.
    if part.ends_with("rotary_emb.inv_freq") || model.foretelling.contains(&layer) {
        return Some(Place::Nowhere);
    }
    if layer >= model.layers {
        return None;
    }
    if model.architecture == Architecture::GptOss {
        if part == "self_attn.sinks" {
            return Some(Place::Own(format!("blk.{layer}.attn_sinks.weight")));
        }
        if let Some(part) = part.strip_prefix("mlp.experts.") {
            return packed::place(layer, part).map(Place::Packed);
        }
    }
    match part {
        "self_attn.kv_b_proj.weight" => return Some(Place::KeysAndValues(layer)),
        "mlp.gate.e_score_correction_bias" => {
            return Some(Place::Own(format!("blk.{layer}.exp_probs_b.bias")));
        }
        _ => {}
    }
    if let Some(expert) = part.strip_prefix("mlp.experts.") {
        let (index, matrix) = expert.split_once('.')?;
        let index = index.parse().ok().filter(|&index| index < model.experts)?;
        let (_, name) = EXPERTS.iter().find(|(theirs, _)| *theirs == matrix)?;
        let stack = format!("blk.{layer}.{name}.weight");
        return Some(Place::Expert { stack, index });
    }
    let (module, kind) = part.rsplit_once('.')?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let is_apart = matches!(
        model.architecture,
        Architecture::Gemma3 | Architecture::GptOss
    );
    let name = match module {
        "post_attention_layernorm" if is_apart => "post_attention_norm",
        _ => MODULES.iter().find(|(theirs, _)| *theirs == module)?.1,
    };
    Some(Place::Own(format!("blk.{layer}.{name}.{kind}")))
}

/// The parts of a layer.
const MODULES: [(&str, &str); 27] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_experts.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_experts.up_proj", "ffn_up_shexp"),
    ("mlp.shared_experts.down_proj", "ffn_down_shexp"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
];

/// The matrices of an expert.
const EXPERTS: [(&str, &str); 3] = [
    ("gate_proj.weight", "ffn_gate_exps"),
    ("up_proj.weight", "ffn_up_exps"),
    ("down_proj.weight", "ffn_down_exps"),
];
