//! Folders whose configuration and weights contradict each other, or that say the same thing twice:
//! read as `transformers` reads them, or refused by name.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod small_folder;

use fornax_gguf::{Error, Gguf};
use serde_json::{Value, json};
use small_folder::{TENSORS, configured, files, replaced, safetensors, values, with};

type Files = Vec<(String, Vec<u8>)>;

fn open(files: Files) -> Result<Gguf, Error> {
    Gguf::from_folder("folder", files)
}

fn refused(files: Files, parts: &[&str]) {
    let message = open(files).expect_err("the folder is broken").to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}

/// The folder with these tensors beside its own, or without one.
fn weights(more: &[(&str, &[usize])], without: &str) -> Vec<u8> {
    let own = TENSORS.iter().filter(|(name, _)| *name != without);
    let tensors: Vec<(&str, &[usize])> = own.chain(more).copied().collect();
    safetensors(&tensors)
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    refused(
        configured(&[("num_key_value_heads", json!(3))]),
        &["num_key_value_heads", "is 3", "num_attention_heads 2"],
    );
    refused(
        configured(&[("num_attention_heads", json!(3))]),
        &["num_attention_heads", "is 3", "hidden_size 8"],
    );
    refused(
        configured(&[("num_attention_heads", json!(0))]),
        &["num_attention_heads"],
    );
    // 2 heads of 6 rows are not the 8 rows of the weights.
    refused(
        configured(&[("head_dim", json!(6))]),
        &[
            "folder/model.safetensors",
            "\"model.layers.0.self_attn.k_proj.weight\"",
            "[4, 8]",
            "1 (num_key_value_heads)",
            "6 (head_dim)",
            "correct config.json",
        ],
    );
}

#[test]
fn what_is_counted_beyond_the_weights_is_refused_before_anything_is_made_of_it() {
    for key in ["vocab_size", "head_dim"] {
        let scaled = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0
        });
        let settings = [(key, json!(u32::MAX)), ("rope_scaling", scaled)];
        refused(
            configured(&settings),
            &[key, "4294967295", "more than the weights"],
        );
    }
    // In a file of nothing but rows the weights have that many bytes.
    let rows = ("more", &[(1 << 22) + 1][..]);
    let large = configured(&[("vocab_size", json!((1 << 24) + 1))]);
    refused(
        replaced(large, "model.safetensors", weights(&[rows], "")),
        &["vocab_size", "16777217", "no model has so many"],
    );
    let many = ["DeepseekV3ForCausalLM", "LlamaForCausalLM"].map(|architecture| {
        open(configured(&[
            ("architectures", json!([architecture])),
            ("num_hidden_layers", json!(u32::MAX)),
            ("attention_bias", json!(architecture == "LlamaForCausalLM")),
            ("n_routed_experts", json!(u32::MAX)),
            ("num_experts_per_tok", json!(1)),
            ("moe_intermediate_size", json!(4)),
            ("kv_lora_rank", json!(3)),
            ("qk_nope_head_dim", json!(2)),
            ("qk_rope_head_dim", json!(4)),
            ("v_head_dim", json!(1)),
            ("n_group", json!(1)),
            ("topk_group", json!(1)),
        ]))
    });
    let [deepseek, llama] = many;
    assert!(
        deepseek.is_ok(),
        "what is missing is for the loader to say: {deepseek:?}"
    );
    assert!(llama.is_err());
}

#[test]
fn layers_beyond_those_of_the_configuration_are_refused() {
    let more = weights(&[("model.layers.1.input_layernorm.weight", &[8])], "");
    refused(
        with("model.safetensors", more),
        &[
            "folder/model.safetensors",
            "\"model.layers.1.input_layernorm.weight\"",
            "num_hidden_layers is 1",
        ],
    );
}

/// They have different names here, and one in GGUF.
#[test]
fn two_tensors_in_one_place_are_refused() {
    let norm = "model.layers.0.pre_feedforward_layernorm.weight";
    refused(
        with("model.safetensors", weights(&[(norm, &[8])], "")),
        &["folder", "two of its tensors", "\"blk.0.ffn_norm.weight\""],
    );
}

#[test]
fn a_number_is_written_in_one_way() {
    for layer in ["00", "+0", "01"] {
        let name = format!("model.layers.{layer}.input_layernorm.weight");
        let more = weights(&[(&name, &[8])], "");
        refused(with("model.safetensors", more), &[&name, "no place"]);
    }
}

#[test]
fn a_head_of_one_number_has_no_factors() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8});
    let weights = safetensors(&[("model.embed_tokens.weight", &[8, 8])]);
    let settings = [
        ("head_dim", json!(1)),
        ("num_hidden_layers", json!(0)),
        ("tie_word_embeddings", json!(true)),
        ("rope_scaling", scaling),
    ];
    let mut files = configured(&settings);
    for (name, content) in &mut files {
        if name == "model.safetensors" {
            content.clone_from(&weights);
        }
    }
    let model = open(files).unwrap();
    let tensors: Vec<_> = model
        .tensors()
        .map(|tensor| (tensor.name, tensor.len_bytes() > 0))
        .collect();
    assert_eq!(tensors, [("token_embd.weight", true)]);
}

#[test]
fn a_head_beside_a_tied_embedding_counts_where_it_differs() {
    let head = "output.weight";
    // As `transformers` reads such a folder: `compare_folders.py` of the golden models.
    let model = open(configured(&[("tie_word_embeddings", json!(true))])).unwrap();
    assert_eq!(
        model.tensor(head).expect("the head").decode(),
        values("lm_head.weight", 64)
    );
    // The same values twice are one matrix.
    let tied = configured(&[("tie_word_embeddings", json!(true))]);
    let same = small_folder::stored_safetensors(TENSORS.iter().map(|&(name, shape)| {
        let of = match name {
            "lm_head.weight" => "model.embed_tokens.weight",
            other => other,
        };
        let values = values(of, shape.iter().product());
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        (name, "F32", shape.to_vec(), bytes.collect())
    }));
    let model = open(replaced(tied.clone(), "model.safetensors", same)).unwrap();
    assert!(model.tensor(head).is_none());
    // The head alone is the embedding, and the embedding alone is the head.
    for missing in ["model.embed_tokens.weight", "lm_head.weight"] {
        let weights = weights(&[], missing);
        let model = open(replaced(tied.clone(), "model.safetensors", weights)).unwrap();
        assert!(model.tensor(head).is_none());
        assert!(model.tensor("token_embd.weight").is_some());
    }
    // Without a word of tying there must be one.
    let headless = weights(&[], "lm_head.weight");
    refused(
        with("model.safetensors", headless),
        &["\"lm_head.weight\"", "missing", "tie_word_embeddings"],
    );
}

#[test]
fn biases_are_there_where_the_configuration_says_so_and_nowhere_else() {
    const BIASES: [(&str, &[usize]); 4] = [
        ("model.layers.0.self_attn.q_proj.bias", &[8]),
        ("model.layers.0.self_attn.k_proj.bias", &[4]),
        ("model.layers.0.self_attn.v_proj.bias", &[4]),
        ("model.layers.0.self_attn.o_proj.bias", &[8]),
    ];
    let biased = configured(&[("attention_bias", json!(true))]);
    let model = open(replaced(
        biased.clone(),
        "model.safetensors",
        weights(&BIASES, ""),
    ))
    .unwrap();
    assert_eq!(model.tensor("blk.0.attn_q.bias").unwrap().shape, [8]);
    refused(
        biased.clone(),
        &[
            "\"model.layers.0.self_attn.q_proj.bias\"",
            "attention_bias is true",
        ],
    );
    refused(
        replaced(biased, "model.safetensors", weights(&BIASES[..3], "")),
        &["\"model.layers.0.self_attn.o_proj.bias\"", "missing"],
    );
    for denied in BIASES {
        refused(
            with("model.safetensors", weights(&[denied], "")),
            &[denied.0, "attention_bias"],
        );
    }
    refused(
        with(
            "model.safetensors",
            weights(&[("model.layers.0.mlp.up_proj.bias", &[4])], ""),
        ),
        &["mlp.up_proj.bias", "no such bias"],
    );
    refused(configured(&[("mlp_bias", json!(true))]), &["mlp_bias"]);
    for architecture in ["Qwen3ForCausalLM", "Gemma3ForCausalLM"] {
        let settings = [
            ("architectures", json!([architecture])),
            ("head_dim", json!(4)),
            ("attention_bias", json!(true)),
        ];
        refused(configured(&settings), &["attention_bias", "not supported"]);
    }
}

#[test]
fn a_window_is_there_where_the_class_of_the_model_heeds_it() {
    let window = |settings: &[(&str, Value)]| {
        let metadata = open(configured(settings)).map(|model| {
            let of = |name: &str| {
                let key = format!("{name}.attention.sliding_window");
                model.metadata().optional_u32(&key).unwrap()
            };
            of("llama").or(of("qwen2"))
        });
        metadata.map_err(|error| error.to_string())
    };
    let llama = ("architectures", json!(["LlamaForCausalLM"]));
    let mistral = ("architectures", json!(["MistralForCausalLM"]));
    let of_16 = ("sliding_window", json!(16));
    assert_eq!(window(&[llama, of_16.clone()]), Ok(None));
    assert_eq!(window(&[mistral.clone(), of_16.clone()]), Ok(Some(16)));
    assert_eq!(window(std::slice::from_ref(&mistral)), Ok(Some(4096)));
    assert_eq!(
        window(&[mistral, ("sliding_window", Value::Null)]),
        Ok(None)
    );

    let qwen = |settings: &[(&str, Value)]| {
        let mut all = vec![
            ("architectures", json!(["Qwen2ForCausalLM"])),
            of_16.clone(),
        ];
        all.extend_from_slice(settings);
        window(&all)
    };
    let used = ("use_sliding_window", json!(true));
    assert_eq!(qwen(&[]), Ok(None));
    assert_eq!(
        qwen(&[used.clone(), ("max_window_layers", json!(1))]),
        Ok(None)
    );
    assert_eq!(
        qwen(std::slice::from_ref(&used)),
        Ok(None),
        "28 layers have none"
    );
    let error = qwen(&[used.clone(), ("max_window_layers", json!(0))]).unwrap_err();
    assert!(error.contains("use_sliding_window"), "{error}");
    let named = ("layer_types", json!(["sliding_attention"]));
    assert!(qwen(&[used, named]).is_err());
}

#[test]
fn of_two_descriptions_of_positions_the_older_counts() {
    let linear = json!({ "type": "linear", "factor": 4.0 });
    let plain = json!({ "rope_type": "default", "rope_theta": 500.0 });
    let both = [("rope_parameters", plain), ("rope_scaling", linear)];
    let model = open(configured(&both)).unwrap();
    let metadata = model.metadata();
    assert_eq!(metadata.str("llama.rope.scaling.type").unwrap(), "linear");
    assert_eq!(metadata.f32("llama.rope.scaling.factor").unwrap(), 4.0);
    assert_eq!(metadata.f32("llama.rope.freq_base").unwrap(), 10_000.0);
    // An empty one says nothing.
    let model = open(configured(&[both[0].clone(), ("rope_scaling", json!({}))])).unwrap();
    assert_eq!(model.metadata().f32("llama.rope.freq_base").unwrap(), 500.0);
    refused(
        configured(&[("rope_scaling", json!("yarn"))]),
        &["rope_scaling", "not an object"],
    );
    refused(
        configured(&[("partial_rotary_factor", json!(0.5))]),
        &["partial_rotary_factor"],
    );
}

#[test]
fn without_a_base_of_positions_the_usual_one_counts() {
    for wrong in [json!(null), json!({}), json!({ "rope_type": "default" })] {
        let without = [("rope_theta", json!(null)), ("rope_parameters", wrong)];
        let model = open(configured(&without)).unwrap();
        assert_eq!(
            model.metadata().f32("llama.rope.freq_base").unwrap(),
            10_000.0
        );
    }
}

#[test]
fn the_context_of_training_beside_a_scaling_counts_before_the_one_in_it() {
    let yarn = json!({
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
    });
    let key = "llama.rope.scaling.original_context_length";
    let model = open(configured(&[("rope_scaling", yarn.clone())])).unwrap();
    assert_eq!(model.metadata().u32(key).unwrap(), 32);
    let beside = ("original_max_position_embeddings", json!(16));
    let model = open(configured(&[("rope_scaling", yarn), beside])).unwrap();
    assert_eq!(model.metadata().u32(key).unwrap(), 16);
}

#[test]
fn tokens_outside_of_the_vocabulary_are_refused() {
    for key in ["eos_token_id", "bos_token_id", "pad_token_id"] {
        for id in [json!(8), json!(-2), json!("7"), json!([7, 9])] {
            let files = configured(&[(key, id.clone())]);
            refused(files, &["config.json", key, "below the 8", "vocab_size"]);
            let generation = json!({ key: id }).to_string();
            refused(
                with("generation_config.json", generation),
                &["generation_config.json", key, "below the 8"],
            );
        }
    }
    assert!(
        open(configured(&[("pad_token_id", json!(-1))])).is_ok(),
        "none"
    );
    let settings = json!({ "eos_token": "<end>" }).to_string();
    refused(
        with("tokenizer_config.json", settings),
        &[
            "tokenizer_config.json",
            "eos_token",
            "<end>",
            "not in the vocabulary",
        ],
    );
    let settings = json!({ "eos_token": "<end>" }).to_string();
    let numbered = configured(&[("eos_token_id", json!(1))]);
    let files_with_both = replaced(numbered, "tokenizer_config.json", settings);
    refused(
        files_with_both,
        &["eos_token", "<end>", "not in the vocabulary"],
    );
    let mut config = small_folder::config();
    config["vocab_size"] = json!(6);
    let files = replaced(files(), "config.json", config.to_string());
    refused(files, &["tokenizer.json", "\"<think>\"", "6", "vocab_size"]);
}
