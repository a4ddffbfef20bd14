//! Which tensor of a folder becomes which of GGUF.
//!
//! Owns the names of both sides. Must not know data.

use super::config::{Architecture, Model};
use super::packed::{self, Packed};

/// What becomes of a stored tensor.
pub(super) enum Place {
    /// It is not needed.
    Nowhere,
    /// What makes logits.
    Head,
    /// A tensor of its own.
    Own(String),
    /// One of a stack.
    Expert { stack: String, index: usize },
    /// What expands keys and values from their latent vector, of this layer.
    KeysAndValues(usize),
    /// All experts of a layer at once, as gpt-oss has them.
    Packed(Packed),
}

const NO_PLACE: &str = "it has no place in the architecture";

/// Where a tensor of that name belongs, or why it belongs nowhere.
pub(super) fn place(model: &Model, name: &str) -> Result<Place, String> {
    match name {
        "model.embed_tokens.weight" => return Ok(Place::Own("token_embd.weight".to_owned())),
        "model.norm.weight" => return Ok(Place::Own("output_norm.weight".to_owned())),
        "lm_head.weight" => return Ok(Place::Head),
        _ => {}
    }
    let part = name
        .strip_prefix("model.layers.")
        .and_then(|part| part.split_once('.'));
    let part = part.and_then(|(layer, part)| Some((number(layer)?, part)));
    let Some((layer, part)) = part else {
        return Err(NO_PLACE.to_owned());
    };
    // Layers behind the last foretell more than one token, which nobody asks for.
    if part.ends_with("rotary_emb.inv_freq") || model.foretelling.contains(&layer) {
        return Ok(Place::Nowhere);
    }
    if layer >= model.layers {
        return Err(format!(
            "it is of layer {layer}, counted from 0, but num_hidden_layers is {}",
            model.layers
        ));
    }
    if let Some(problem) = denied_bias(model, part) {
        return Err(problem.to_owned());
    }
    if let Some(expert) = expert_beyond(model, part) {
        return Err(format!(
            "it is of expert {expert}, counted from 0, but the configuration has {} of them",
            model.experts
        ));
    }
    of_layer(model, layer, part).ok_or_else(|| NO_PLACE.to_owned())
}

/// A number as names have it: one way of writing each, or two names could be of one tensor.
fn number(text: &str) -> Option<usize> {
    let number = text.parse().ok();
    number.filter(|number: &usize| number.to_string() == text)
}

/// The number of an expert that the configuration does not count.
fn expert_beyond(model: &Model, part: &str) -> Option<usize> {
    let (index, _) = part.strip_prefix("mlp.experts.")?.split_once('.')?;
    let index = number(index)?;
    (index >= model.experts).then_some(index)
}

fn of_layer(model: &Model, layer: usize, part: &str) -> Option<Place> {
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
        SELECTION_BIAS if model.architecture == Architecture::DeepSeek3 => {
            return Some(Place::Own(format!("blk.{layer}.exp_probs_b.bias")));
        }
        _ => {}
    }
    if let Some(expert) = part.strip_prefix("mlp.experts.") {
        let (index, matrix) = expert.split_once('.')?;
        let index = number(index).filter(|&index| index < model.experts)?;
        let (_, name) = EXPERTS.iter().find(|(theirs, _)| *theirs == matrix)?;
        let stack = format!("blk.{layer}.{name}.weight");
        return Some(Place::Expert { stack, index });
    }
    let (module, kind) = part.rsplit_once('.')?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let name = match module {
        AFTER_ATTENTION if is_apart(model.architecture) => "post_attention_norm",
        _ => MODULES.iter().find(|(theirs, _)| *theirs == module)?.1,
    };
    Some(Place::Own(format!("blk.{layer}.{name}.{kind}")))
}

/// Why there must be no such bias: `transformers` would run the model without it.
fn denied_bias(model: &Model, part: &str) -> Option<&'static str> {
    let module = part.strip_suffix(".bias")?;
    let is_input = ["q", "k", "v"]
        .iter()
        .any(|name| module == format!("self_attn.{name}_proj"));
    let is_attention = is_input || module == "self_attn.o_proj";
    let allowed = match model.architecture {
        Architecture::Llama => is_attention && model.heads.biased,
        Architecture::Qwen2 | Architecture::Qwen2Moe => is_input,
        Architecture::GptOss => is_attention || module == "mlp.router",
        _ => false,
    };
    match model.architecture {
        _ if allowed => None,
        Architecture::Llama if is_attention => {
            Some("config.json has no attention_bias of true, by which this model would have it")
        }
        _ => Some("the architecture has no such bias"),
    }
}

/// What the folder of such a model calls a tensor of GGUF; of experts the first.
pub(super) fn stored(architecture: Architecture, name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Some("model.norm.weight".to_owned()),
        "output.weight" => return Some("lm_head.weight".to_owned()),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    let of_layer = |part: &str| Some(format!("model.layers.{layer}.{part}"));
    let (module, kind) = part.rsplit_once('.')?;
    match (module, kind) {
        ("exp_probs_b", _) => return of_layer(SELECTION_BIAS),
        ("attn_sinks", _) => return of_layer("self_attn.sinks"),
        ("attn_k_b" | "attn_v_b", _) => return of_layer("self_attn.kv_b_proj.weight"),
        ("post_attention_norm", _) => return of_layer("post_attention_layernorm.weight"),
        _ => {}
    }
    if let Some((matrix, _)) = EXPERTS.iter().find(|(_, ours)| *ours == module) {
        return match (architecture, kind) {
            (Architecture::GptOss, "bias") if module == "ffn_down_exps" => {
                of_layer("mlp.experts.down_proj_bias")
            }
            (Architecture::GptOss, "bias") => of_layer("mlp.experts.gate_up_proj_bias"),
            (Architecture::GptOss, _) if module == "ffn_down_exps" => {
                of_layer("mlp.experts.down_proj")
            }
            (Architecture::GptOss, _) => of_layer("mlp.experts.gate_up_proj"),
            _ => of_layer(&format!("mlp.experts.0.{matrix}")),
        };
    }
    // Of modules with one name here, the one that the architecture has.
    let shared = match architecture {
        Architecture::Qwen2Moe => "mlp.shared_expert.",
        _ => "mlp.shared_experts.",
    };
    let fits = |theirs: &str| match theirs {
        "mlp.router" => architecture == Architecture::GptOss,
        "mlp.gate" => architecture != Architecture::GptOss,
        "pre_feedforward_layernorm" => architecture == Architecture::Gemma3,
        AFTER_ATTENTION => !is_apart(architecture),
        theirs if theirs.starts_with("mlp.shared_expert") => {
            theirs == "mlp.shared_expert_gate" || theirs.starts_with(shared)
        }
        _ => true,
    };
    let row = MODULES
        .iter()
        .find(|(theirs, ours)| *ours == module && fits(theirs));
    row.and_then(|(theirs, _)| of_layer(&format!("{theirs}.{kind}")))
}

/// The norm that stands before the feed-forward in most architectures.
const AFTER_ATTENTION: &str = "post_attention_layernorm";
/// What DeepSeek-V3 adds to scores for the choice of experts alone.
const SELECTION_BIAS: &str = "mlp.gate.e_score_correction_bias";

/// Whether the norm of that name has a name of its own in GGUF.
fn is_apart(architecture: Architecture) -> bool {
    matches!(architecture, Architecture::Gemma3 | Architecture::GptOss)
}

/// The parts of a layer.
const MODULES: [(&str, &str); 27] = [
    ("input_layernorm", "attn_norm"),
    (AFTER_ATTENTION, "ffn_norm"),
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
