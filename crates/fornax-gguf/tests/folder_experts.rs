//! Folders whose tensors GGUF has in other pieces: gpt-oss's experts and DeepSeek's latent attention.
//! What whole models of these make is in `compare_folders.py` of the golden models.

mod small_folder;

use fornax_gguf::{DType, Error, Gguf};
use serde_json::{Value, json};
use small_folder::{config, files, safetensors, stored_safetensors, values};

type Stored = (&'static str, &'static str, Vec<usize>, Vec<u8>);

/// The small folder with another configuration and other weights.
fn open(config: &Value, weights: Vec<u8>) -> Result<Gguf, Error> {
    let mut files = files();
    for (name, bytes) in &mut files {
        match name.as_str() {
            "config.json" => *bytes = config.to_string().into_bytes(),
            "model.safetensors" => bytes.clone_from(&weights),
            _ => {}
        }
    }
    Gguf::from_folder("folder", files)
}

fn gpt_oss() -> Value {
    let mut config = config();
    for (key, value) in [
        ("architectures", json!(["GptOssForCausalLM"])),
        ("hidden_size", json!(64)),
        ("intermediate_size", json!(32)),
        ("num_local_experts", json!(2)),
        ("num_experts_per_tok", json!(1)),
        ("sliding_window", json!(16)),
        ("layer_types", json!(["sliding_attention"])),
        ("swiglu_limit", json!(7.0)),
        // These folders have no head.
        ("tie_word_embeddings", json!(true)),
    ] {
        config[key] = value;
    }
    config
}

fn deepseek() -> Value {
    let mut config = config();
    for (key, value) in [
        ("architectures", json!(["DeepseekV3ForCausalLM"])),
        ("num_key_value_heads", json!(2)),
        ("q_lora_rank", Value::Null),
        ("kv_lora_rank", json!(3)),
        ("qk_nope_head_dim", json!(2)),
        ("qk_rope_head_dim", json!(4)),
        ("v_head_dim", json!(1)),
        ("n_routed_experts", json!(4)),
        ("num_experts_per_tok", json!(2)),
        ("moe_intermediate_size", json!(4)),
        ("n_shared_experts", json!(1)),
        ("first_k_dense_replace", json!(1)),
        ("n_group", json!(2)),
        ("topk_group", json!(1)),
        ("num_nextn_predict_layers", json!(1)),
        ("tie_word_embeddings", json!(true)),
    ] {
        config[key] = value;
    }
    config
}

const GATE_UP: &str = "model.layers.0.mlp.experts.gate_up_proj";
const GATE_UP_BIAS: &str = "model.layers.0.mlp.experts.gate_up_proj_bias";
const GATE_UP_BLOCKS: &str = "model.layers.0.mlp.experts.gate_up_proj_blocks";
const GATE_UP_SCALES: &str = "model.layers.0.mlp.experts.gate_up_proj_scales";
const DOWN: &str = "model.layers.0.mlp.experts.down_proj";

#[test]
fn plain_experts_are_turned_and_gate_and_up_taken_apart() -> Result<(), Error> {
    let weights = safetensors(&[
        (GATE_UP, &[2, 3, 4]),
        (GATE_UP_BIAS, &[2, 4]),
        (DOWN, &[2, 2, 3]),
        ("model.layers.0.self_attn.sinks", &[2]),
        ("model.layers.0.post_attention_layernorm.weight", &[64]),
    ]);
    let size = weights.len() as u64;
    let model = open(&gpt_oss(), weights)?;
    assert_eq!(
        model.len_bytes(),
        size,
        "nothing is made before it is asked for"
    );
    let tensor = |name: &str| model.tensor(&format!("blk.0.{name}")).expect("a tensor");
    let stored = values(GATE_UP, 24);
    for (part, first) in [("gate", 0), ("up", 1)] {
        let found = tensor(&format!("ffn_{part}_exps.weight"));
        assert_eq!(found.shape, [2, 2, 3]);
        let at = |expert: usize, output: usize, input: usize| {
            stored[expert * 12 + input * 4 + 2 * output + first]
        };
        let expected: Vec<f32> = (0..12).map(|i| at(i / 6, i / 3 % 2, i % 3)).collect();
        assert_eq!(found.decode(), expected, "{part}");
        let bias = values(GATE_UP_BIAS, 8);
        let expected: Vec<f32> = bias.into_iter().skip(first).step_by(2).collect();
        let found = tensor(&format!("ffn_{part}_exps.bias"));
        assert_eq!((found.shape, found.decode()), (&[2, 2][..], expected));
    }
    let stored = values(DOWN, 12);
    let expected: Vec<f32> = (0..12)
        .map(|i| stored[i / 6 * 6 + i % 2 * 3 + i / 2 % 3])
        .collect();
    let down = tensor("ffn_down_exps.weight");
    assert_eq!((down.shape, down.decode()), (&[2, 3, 2][..], expected));
    assert_eq!(tensor("attn_sinks.weight").shape, [2]);
    assert_eq!(tensor("post_attention_norm.weight").shape, [64]);
    let metadata = model.metadata();
    assert_eq!(metadata.u32("gpt-oss.expert_feed_forward_length")?, 32);
    assert_eq!(metadata.u32("gpt-oss.attention.sliding_window")?, 16);
    Ok(())
}

/// Values of the four bits, as the OCP Microscaling specification has them.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn blocks() -> [Stored; 2] {
    let bytes: Vec<u8> = (0..2 * 4 * 2 * 16)
        .map(|i: u32| (i * 37 % 256) as u8)
        .collect();
    let scales: Vec<u8> = (0..16).map(|i| 120 + i).collect();
    [
        (GATE_UP_BLOCKS, "U8", vec![2, 4, 2, 16], bytes),
        (GATE_UP_SCALES, "U8", vec![2, 4, 2], scales),
    ]
}

#[test]
fn blocks_keep_their_values() -> Result<(), Error> {
    let [blocks, scales] = blocks();
    let value = |row: usize, column: usize| {
        let byte = blocks.3[(row * 64 + column) / 2];
        let bits = usize::from(byte >> (column % 2 * 4) & 15);
        let sign = if bits & 8 == 0 { 1.0 } else { -1.0 };
        let exponent = i32::from(scales.3[row * 2 + column / 32]) - 127;
        sign * E2M1[bits & 7] * 2f32.powi(exponent)
    };
    let model = open(
        &gpt_oss(),
        stored_safetensors([scales.clone(), blocks.clone()].into_iter()),
    )?;
    for (part, first) in [("gate", 0), ("up", 1)] {
        let name = format!("blk.0.ffn_{part}_exps.weight");
        let found = model.tensor(&name).expect("a tensor");
        assert_eq!((found.dtype, found.shape), (DType::MXFP4, &[2, 2, 64][..]));
        let expected: Vec<f32> = (0..4)
            .flat_map(|row| (0..64).map(move |column| (2 * row + first, column)))
            .map(|(row, column)| value(row, column))
            .collect();
        assert_eq!(found.decode(), expected, "{part}");
    }
    Ok(())
}

#[test]
fn experts_that_cannot_be_are_refused() {
    let [blocks, scales] = blocks();
    let wide = ("wide", "U8", vec![2, 4, 1, 32], blocks.3.clone());
    let odd = (GATE_UP_BIAS, "F32", vec![2, 3], vec![0; 24]);
    let three = (DOWN, "F32", vec![3, 2, 2], vec![0; 48]);
    let eight_bits = (DOWN, "F8_E4M3", vec![2, 2, 2], vec![0; 8]);
    let flat = (DOWN, "F32", vec![2], vec![0; 8]);
    for (tensors, part) in [
        (vec![blocks.clone()], "no scales of its shape"),
        (
            vec![blocks, (GATE_UP_SCALES, "U8", vec![2, 4, 1], vec![0; 8])],
            "no scales",
        ),
        (
            vec![(GATE_UP_BLOCKS, wide.1, wide.2, wide.3), scales],
            "cannot be",
        ),
        (vec![odd], "no two halves"),
        (vec![three], "2 experts"),
        (vec![eight_bits], "F8_E4M3"),
        (vec![flat], "cannot be"),
    ] {
        let error = open(&gpt_oss(), stored_safetensors(tensors.into_iter()));
        let error = error.expect_err("it cannot be read").to_string();
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

#[test]
fn latent_keys_and_values_are_taken_apart() -> Result<(), Error> {
    const BOTH: &str = "model.layers.0.self_attn.kv_b_proj.weight";
    const BIAS: &str = "model.layers.0.mlp.gate.e_score_correction_bias";
    let weights = safetensors(&[
        (BOTH, &[6, 3]),
        (BIAS, &[4]),
        ("model.layers.1.eh_proj.weight", &[8]),
    ]);
    let model = open(&deepseek(), weights)?;
    let stored = values(BOTH, 18);
    let keys = model.tensor("blk.0.attn_k_b.weight").expect("keys");
    let expected: Vec<f32> = (0..12)
        .map(|i| stored[i / 6 * 9 + i % 2 * 3 + i / 2 % 3])
        .collect();
    assert_eq!((keys.shape, keys.decode()), (&[2, 3, 2][..], expected));
    let found = model.tensor("blk.0.attn_v_b.weight").expect("values");
    let expected = [&stored[6..9], &stored[15..18]].concat();
    assert_eq!((found.shape, found.decode()), (&[2, 1, 3][..], expected));
    assert!(model.tensor("blk.0.exp_probs_b.bias").is_some());
    assert_eq!(
        model.tensors().len(),
        3,
        "what foretells further tokens is left"
    );
    let metadata = model.metadata();
    for (key, expected) in [
        ("attention.head_count_kv", 1),
        ("attention.key_length", 7),
        ("attention.value_length", 3),
        ("attention.key_length_mla", 6),
        ("attention.value_length_mla", 1),
        ("rope.dimension_count", 4),
        ("expert_gating_func", 2),
        ("expert_group_count", 2),
        ("expert_group_used_count", 1),
        ("leading_dense_block_count", 1),
    ] {
        assert_eq!(
            metadata.u32(&format!("deepseek2.{key}"))?,
            expected,
            "{key}"
        );
    }
    assert!(metadata.bool("deepseek2.expert_weights_norm")?);
    Ok(())
}

#[test]
fn the_third_generation_adds_to_its_scores_and_the_second_does_not() {
    const ROUTER: (&str, &[usize]) = ("model.layers.0.mlp.gate.weight", &[4, 8]);
    const BIAS: (&str, &[usize]) = ("model.layers.0.mlp.gate.e_score_correction_bias", &[4]);
    let third = open(&deepseek(), safetensors(&[ROUTER, BIAS])).expect("a model");
    assert!(third.tensor("blk.0.exp_probs_b.bias").is_some());
    let error = open(&deepseek(), safetensors(&[ROUTER])).expect_err("it has no bias");
    assert!(error.to_string().contains(BIAS.0), "{error}");
    let mut second = deepseek();
    second["architectures"] = json!(["DeepseekV2ForCausalLM"]);
    let error = open(&second, safetensors(&[ROUTER, BIAS])).expect_err("it has a bias");
    assert!(error.to_string().contains(BIAS.0), "{error}");
}

#[test]
fn settings_without_a_key_are_refused_unless_they_are_the_usual() {
    let yarn = |more: Value| {
        let mut yarn =
            json!({ "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16 });
        let pairs = more.as_object().expect("an object").clone();
        yarn.as_object_mut().expect("an object").extend(pairs);
        yarn
    };
    for (config, key, value, part) in [
        (gpt_oss(), "swiglu_limit", json!(5.0), "swiglu_limit"),
        (gpt_oss(), "swiglu_alpha", json!(1.0), "swiglu_alpha"),
        (
            gpt_oss(),
            "layer_types",
            json!(["full_attention"]),
            "layer_types",
        ),
        (gpt_oss(), "sliding_window", Value::Null, "sliding_window"),
        (gpt_oss(), "rope_scaling", yarn(json!({})), "truncate"),
        (
            deepseek(),
            "rope_scaling",
            yarn(json!({ "mscale": 1.0, "mscale_all_dim": 0.5 })),
            "mscale",
        ),
        (deepseek(), "scoring_func", json!("softmax"), "scoring_func"),
        (deepseek(), "topk_method", json!("greedy"), "topk_method"),
        (deepseek(), "moe_layer_freq", json!(2), "moe_layer_freq"),
        (
            deepseek(),
            "rope_interleave",
            json!(false),
            "rope_interleave",
        ),
        (deepseek(), "attention_bias", json!(true), "attention_bias"),
    ] {
        let mut config = config;
        config[key] = value;
        let error = open(&config, safetensors(&[])).expect_err("it cannot be said");
        assert!(
            error.to_string().contains(part),
            "{error} does not name {part}"
        );
    }
    let mut config = gpt_oss();
    config["head_dim"] = json!(4);
    let model = open(&config, safetensors(&[])).expect("a model");
    let metadata = model.metadata();
    let factor = metadata.f32("gpt-oss.rope.scaling.factor");
    assert_eq!(factor.expect("scaled where nothing is said"), 32.0);
    let original = metadata.u32("gpt-oss.rope.scaling.original_context_length");
    assert_eq!(original.expect("a context"), 4096);
    let mut config = deepseek();
    let model = open(&config, safetensors(&[])).expect("a model");
    let scale = model.metadata().f32("deepseek2.expert_weights_scale");
    assert_eq!(scale.expect("the third generation's"), 2.5);
    config["norm_topk_prob"] = Value::Null;
    let model = open(&config, safetensors(&[])).expect("a model");
    let normed = model.metadata().bool("deepseek2.expert_weights_norm");
    assert!(!normed.expect("null is false"));
    config["rope_scaling"] = yarn(json!({ "mscale": 0.707, "mscale_all_dim": 0.707 }));
    let model = open(&config, safetensors(&[])).expect("a model");
    let log = model
        .metadata()
        .f32("deepseek2.rope.scaling.yarn_log_multiplier");
    assert!((log.expect("a factor") - 0.0707).abs() < 1e-6);
}

#[test]
fn an_expert_that_is_not_counted_is_refused_by_its_number() {
    let more = ("model.layers.0.mlp.experts.4.up_proj.weight", &[4, 8][..]);
    let error = open(&deepseek(), safetensors(&[more])).expect_err("there are 4");
    assert!(
        error.to_string().contains("expert 4, counted from 0"),
        "{error}"
    );
    let model = open(&deepseek(), safetensors(&[])).expect("a model");
    assert_eq!(model.setting("deepseek2.expert_count"), "n_routed_experts");
    assert_eq!(model.setting("attention.key_length"), "head_dim");
}

/// The tensors of the two layouts that are taken apart, each small.
fn taken_apart() -> [(Value, Vec<u8>); 3] {
    let [blocks, scales] = blocks();
    let plain: &[(&str, &[usize])] = &[
        (GATE_UP, &[2, 3, 4]),
        (GATE_UP_BIAS, &[2, 4]),
        (DOWN, &[2, 2, 3]),
    ];
    let latent: &[(&str, &[usize])] = &[
        ("model.layers.0.self_attn.kv_b_proj.weight", &[6, 3]),
        ("model.layers.0.mlp.experts.0.up_proj.weight", &[4, 8]),
        ("model.layers.0.mlp.experts.1.up_proj.weight", &[4, 8]),
        ("model.layers.0.mlp.experts.2.up_proj.weight", &[4, 8]),
        ("model.layers.0.mlp.experts.3.up_proj.weight", &[4, 8]),
    ];
    [
        (gpt_oss(), safetensors(plain)),
        (gpt_oss(), stored_safetensors([scales, blocks].into_iter())),
        (deepseek(), safetensors(latent)),
    ]
}

#[test]
fn whatever_numbers_they_have_they_are_made_in_bounds_or_refused() {
    let (mut opened, mut cases) = (0, 0);
    for (config, weights) in taken_apart() {
        let whole = config.to_string();
        open(&config, weights.clone()).expect("as it is");
        let length = u64::from_le_bytes(weights[..8].try_into().expect("a length")) as usize;
        let mut check = |config: &str, weights: &[u8]| {
            cases += 1;
            let files = small_folder::with("config.json", config);
            let files = small_folder::replaced(files, "model.safetensors", weights);
            if let Ok(model) = Gguf::from_folder("folder", files) {
                opened += 1;
                for tensor in model.tensors() {
                    assert_eq!(tensor.decode().len(), tensor.elements());
                }
            }
        };
        let digits = |text: &[u8]| -> Vec<usize> {
            let places = 0..text.len();
            places.filter(|at| text[*at].is_ascii_digit()).collect()
        };
        for digit in *b"01235689" {
            for at in digits(whole.as_bytes()) {
                let mut changed = whole.clone().into_bytes();
                changed[at] = digit;
                check(&String::from_utf8(changed).expect("JSON"), &weights);
            }
            for at in digits(&weights[8..8 + length]) {
                let mut changed = weights.clone();
                changed[8 + at] = digit;
                check(&whole, &changed);
            }
        }
    }
    assert!(
        cases > 1000 && opened > cases / 20 && opened < cases,
        "{opened} of {cases}"
    );
}
