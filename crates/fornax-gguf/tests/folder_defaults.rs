//! Settings that a `config.json` leaves out: what the `transformers` class of the architecture (5.23)
//! has in their place, or a refusal where GGUF cannot say it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod small_folder;

use fornax_gguf::{Error, Gguf};
use serde_json::{Value, json};
use small_folder::configured;

/// The small folder as one of another architecture; whether it has all tensors is not asked here.
fn read(architecture: &str, settings: &[(&str, Value)]) -> Result<Gguf, String> {
    let mut all = vec![("architectures", json!([architecture]))];
    all.extend_from_slice(settings);
    let model: Result<Gguf, Error> = Gguf::from_folder("folder", configured(&all));
    model.map_err(|error| error.to_string())
}

fn refused(architecture: &str, settings: &[(&str, Value)], parts: &[&str]) {
    let error = read(architecture, settings).expect_err("a refusal");
    for part in parts {
        assert!(error.contains(part), "{error:?} does not name {part:?}");
    }
}

const LLAMA: &str = "LlamaForCausalLM";
const MISTRAL: &str = "MistralForCausalLM";

#[test]
fn the_longest_context_is_that_of_the_class() {
    for (architecture, positions) in [(LLAMA, 2048), (MISTRAL, 131_072)] {
        let model = read(architecture, &[("max_position_embeddings", Value::Null)]).unwrap();
        assert_eq!(
            model.metadata().u32("llama.context_length").unwrap(),
            positions
        );
    }
}

#[test]
fn an_activation_has_two_names() {
    for name in ["silu", "swish"] {
        assert!(read(LLAMA, &[("hidden_act", json!(name))]).is_ok());
    }
    refused(
        LLAMA,
        &[("hidden_act", json!("gelu"))],
        &["hidden_act", "silu"],
    );
}

#[test]
fn all_ends_of_an_answer_are_kept() {
    let model = read(LLAMA, &[("eos_token_id", json!([1, 2, 3, 4, 5]))]).unwrap();
    let metadata = model.metadata();
    // The folder names 1 as the first, and its generation settings 7 beside it.
    assert_eq!(metadata.u32("tokenizer.ggml.eos_token_id").unwrap(), 1);
    assert_eq!(metadata.u32("tokenizer.ggml.eot_token_id").unwrap(), 7);
    assert_eq!(metadata.u32("tokenizer.ggml.eom_token_id").unwrap(), 2);
    let further = metadata.u32s("tokenizer.ggml.eog_token_ids").unwrap();
    assert_eq!(further, [3, 4, 5]);
}

#[test]
fn null_is_false_where_python_asks_for_truth() {
    let tied = |value: Value| read(LLAMA, &[("tie_word_embeddings", value)]).map(|_| ());
    assert_eq!(tied(Value::Null), Ok(()), "its head is its own");
    refused(
        "Qwen2MoeForCausalLM",
        &[("num_experts", json!(2)), ("qkv_bias", Value::Null)],
        &["qkv_bias", "false"],
    );
    let latent = [
        ("n_routed_experts", json!(4)),
        ("kv_lora_rank", json!(3)),
        ("qk_nope_head_dim", json!(2)),
        ("qk_rope_head_dim", json!(4)),
        ("v_head_dim", json!(1)),
        ("rope_interleave", Value::Null),
    ];
    refused("DeepseekV3ForCausalLM", &latent, &["rope_interleave"]);
}

#[test]
fn gemma_scales_queries_by_256_where_nothing_is_said() {
    let gemma = |settings: &[(&str, Value)], parts: &[&str]| {
        let mut all = vec![("head_dim", json!(4))];
        all.extend_from_slice(settings);
        refused("Gemma3ForCausalLM", &all, parts);
    };
    gemma(&[], &["query_pre_attn_scalar", "is 256, not 4"]);
    let scalar = ("query_pre_attn_scalar", json!(4));
    let said = [("head_dim", json!(4)), scalar.clone()];
    let model = read("Gemma3ForCausalLM", &said).unwrap();
    let window = model.metadata().u32("gemma3.attention.sliding_window");
    assert_eq!(window.unwrap(), 4096);
    gemma(
        &[scalar.clone(), ("sliding_window", Value::Null)],
        &["sliding_window", "null"],
    );
    let flat = json!({ "rope_type": "linear", "factor": 8.0 });
    gemma(
        &[scalar.clone(), ("rope_parameters", flat)],
        &["rope_type", "full_attention"],
    );
    let old = json!({ "type": "linear", "factor": 8.0 });
    gemma(
        &[scalar, ("rope_scaling", old)],
        &["rope_scaling", "rope_type"],
    );
}
