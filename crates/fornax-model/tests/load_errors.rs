//! A file that does not hold what its architecture needs is refused by the name of what is wrong.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{load_error, open, options, rewritten, same, with_value};
use fornax_backend::Reference;
use fornax_engine::{Engine, EventKind, Failure, KvPolicy, Request, SamplingParams};
use fornax_gguf::{Array, Gguf, Tensor, Value};
use fornax_model::{Config, LoadError, ModelRunner, RunnerOptions};

fn keep(_: &str, value: &Value) -> Option<Value> {
    Some(value.clone())
}

#[test]
fn each_missing_tensor_is_named() {
    for model in common::MODELS {
        let file = open(&format!("{model}.gguf"));
        for missing in file.tensors().map(|tensor| tensor.name.to_owned()) {
            // Without these a file is another, valid model: a tied head, plain RoPE, or one whose
            // K and V are in two tensors.
            let other = ["output.weight", "rope_freqs.weight", "attn_kv_b.weight"];
            if other.iter().any(|other| missing.ends_with(other))
                && !missing.contains("attn_output")
            {
                continue;
            }
            let without =
                |tensor: Tensor<'_>| (tensor.name != missing).then(|| same(tensor)).flatten();
            let error = load_error(model, keep, without).to_string();
            assert!(
                error.contains(&missing) && error.contains("changed.gguf"),
                "{error}"
            );
            assert!(error.contains("missing"), "{error}");
        }
    }
}

#[test]
fn each_missing_dimension_is_named() {
    // What follows from other dimensions by the GGUF specification may be absent, and so may what
    // makes another, valid model of the file: no scaling, no window, no groups.
    let derived = [
        "head_count_kv",
        "key_length",
        "value_length",
        "rope.freq_base_swa",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_log_multiplier",
        "expert_gating_func",
        "expert_group_count",
        "expert_weights_norm",
        "expert_weights_scale",
    ];
    let without_experts = ["llama", "qwen2", "qwen3", "gemma3", "deepseek2"];
    for model in common::MODELS {
        let file = open(&format!("{model}.gguf"));
        let prefix = format!("{}.", file.metadata().str("general.architecture").unwrap());
        let keys = file.metadata().iter().map(|(key, _)| key.to_owned());
        for missing in keys.filter(|key| key.starts_with(&prefix)) {
            if derived.iter().any(|derived| missing.ends_with(derived)) {
                continue;
            }
            let architecture = prefix.trim_end_matches('.');
            let of_another = (missing.ends_with(".feed_forward_length")
                && !without_experts.contains(&architecture))
                || (missing.ends_with("rope.dimension_count") && architecture != "deepseek2")
                || (missing.ends_with("rope.scaling.factor") && !is_yarn(&file))
                || (missing.ends_with("sliding_window") && architecture != "gpt-oss");
            if missing.ends_with("vocab_size") || of_another {
                continue;
            }
            if [
                "q_lora_rank",
                "key_length_mla",
                "expert_shared_count",
                "leading_dense_block_count",
            ]
            .iter()
            .any(|counted| missing.ends_with(counted))
            {
                // 0 without, and then the tensors do not fit.
                let without = |key: &str, value: &Value| (key != missing).then(|| value.clone());
                load_error(model, without, same);
                continue;
            }
            let without = |key: &str, value: &Value| (key != missing).then(|| value.clone());
            let error = load_error(model, without, same).to_string();
            assert!(
                error.contains(&missing) && error.contains("changed.gguf"),
                "{missing}: {error}"
            );
        }
    }
}

fn is_yarn(file: &Gguf) -> bool {
    file.metadata().iter().any(|(key, value)| {
        key.ends_with("rope.scaling.type") && *value == Value::String("yarn".into())
    })
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both_shapes() {
    let transposed = |tensor: Tensor<'_>| {
        let (name, mut shape, data, dtype) = same(tensor)?;
        if name == "blk.1.ffn_down.weight" {
            shape.reverse();
        }
        Some((name, shape, data, dtype))
    };
    let error = load_error("tiny-llama", keep, transposed).to_string();
    for part in ["blk.1.ffn_down.weight", "[96, 32]", "[32, 96]"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_tensor_without_a_place_is_refused() {
    let renamed = |tensor: Tensor<'_>| {
        let (name, shape, data, dtype) = same(tensor)?;
        let name = if name == "rope_freqs.weight" {
            "blk.1.attn_q.bias".into()
        } else {
            name
        };
        Some((name, shape, data, dtype))
    };
    let error = load_error("tiny-llama3", keep, renamed);
    assert!(
        matches!(&error, LoadError::UnusedTensor { name, .. } if name == "blk.1.attn_q.bias"),
        "{error}"
    );
}

#[test]
fn an_unknown_architecture_is_named_with_those_that_run() {
    let other = |key: &str, value: &Value| match key {
        "general.architecture" => Some(Value::String("mamba".into())),
        _ => Some(value.clone()),
    };
    let error = load_error("tiny-llama", other, same).to_string();
    for part in ["mamba", "llama", "qwen3", "qwen3moe"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn contradictory_dimensions_are_refused() {
    for (key, value, part) in [
        ("qwen3.attention.head_count_kv", Value::U32(3), "divide"),
        ("qwen3.attention.head_count", Value::U32(0), "above 0"),
        ("qwen3.block_count", Value::U32(u32::MAX), "damaged"),
        (
            "qwen3.attention.layer_norm_rms_epsilon",
            Value::F32(f32::NAN),
            "above 0",
        ),
        ("qwen3.rope.dimension_count", Value::U32(7), "even"),
        (
            "qwen3.rope.scaling.type",
            Value::String("longrope".into()),
            "not supported",
        ),
        ("qwen3.rope.scaling.factor", Value::F32(-4.0), "above 0"),
        (
            "qwen3.attention.sliding_window",
            Value::U32(64),
            "not supported",
        ),
        (
            "qwen3.block_count",
            Value::String("three".into()),
            "block_count",
        ),
    ] {
        let file = with_value(&open("tiny-qwen3.gguf"), key, value);
        let error = Config::from_gguf(&file).unwrap_err().to_string();
        assert!(
            error.contains(key) && error.contains(part),
            "{key}: {error}"
        );
    }
}

#[test]
fn what_an_architecture_cannot_do_is_refused_by_its_key() {
    let text = |text: &str| Value::String(text.into());
    let pattern = Value::Array(Array::Bool(vec![true, false]));
    for (model, key, value, part) in [
        ("tiny-llama", "llama.expert_count", Value::U32(8), "Mixtral"),
        (
            "tiny-qwen2",
            "qwen2.attention.sliding_window",
            Value::U32(9),
            "windows",
        ),
        (
            "tiny-gemma3",
            "gemma3.final_logit_softcapping",
            Value::F32(30.0),
            "caps",
        ),
        (
            "tiny-gemma3",
            "gemma3.attention.sliding_window_pattern",
            pattern,
            "7 blocks",
        ),
        (
            "tiny-gpt-oss",
            "gpt-oss.expert_used_count",
            Value::U32(5),
            "only 4 experts",
        ),
        (
            "tiny-gpt-oss",
            "gpt-oss.rope.scaling.type",
            text("longrope"),
            "not supported",
        ),
        (
            "tiny-deepseek3",
            "deepseek2.expert_gating_func",
            Value::U32(3),
            "router",
        ),
        (
            "tiny-deepseek3",
            "deepseek2.expert_group_count",
            Value::U32(3),
            "8 experts",
        ),
        (
            "tiny-deepseek3",
            "deepseek2.expert_group_used_count",
            Value::U32(1),
            "3 experts",
        ),
        (
            "tiny-deepseek3",
            "deepseek2.expert_group_used_count",
            Value::U32(5),
            "of 4 groups",
        ),
        (
            "tiny-deepseek3",
            "deepseek2.rope.dimension_count",
            Value::U32(24),
            "below",
        ),
    ] {
        let file = with_value(&open(&format!("{model}.gguf")), key, value);
        let error = Config::from_gguf(&file).unwrap_err().to_string();
        assert!(
            error.contains(key) && error.contains(part),
            "{key}: {error}"
        );
    }
}

/// Neutral values of keys that ask for nothing.
#[test]
fn what_asks_for_nothing_is_no_reason_to_refuse() {
    for (model, key, value) in [
        ("tiny-llama", "llama.expert_count", Value::U32(0)),
        (
            "tiny-qwen2",
            "qwen2.attention.sliding_window",
            Value::U32(0),
        ),
        (
            "tiny-gemma3",
            "gemma3.final_logit_softcapping",
            Value::F32(0.0),
        ),
        (
            "tiny-llama",
            "llama.rope.scaling.type",
            Value::String("none".into()),
        ),
        (
            "tiny-deepseek3",
            "deepseek2.expert_group_count",
            Value::U32(1),
        ),
    ] {
        let file = with_value(&open(&format!("{model}.gguf")), key, value);
        Config::from_gguf(&file).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

/// What files say of their blocks' windows, against the pattern where they say nothing.
#[test]
fn windows_are_where_the_file_says() {
    let windowed = |file: &Gguf| -> Vec<bool> {
        let blocks = Config::from_gguf(file).unwrap().blocks;
        blocks
            .iter()
            .map(|block| block.window == Some(16))
            .collect()
    };
    let plain = open("tiny-gemma3.gguf");
    assert_eq!(
        windowed(&plain),
        [true, true, true, true, true, false, true]
    );
    let key = "gemma3.attention.sliding_window_pattern";
    let by_period = with_value(&plain, key, Value::U32(3));
    let expected = [true, true, false, true, true, false, true];
    assert_eq!(windowed(&by_period), expected);
    let listed = [false, true, true, false, false, true, false];
    let array = Value::Array(Array::Bool(listed.to_vec()));
    assert_eq!(windowed(&with_value(&plain, key, array)), listed);
}

#[test]
fn options_that_the_model_cannot_meet_say_so() {
    let file = open("tiny-qwen3.gguf");
    for (options, parts) in [
        (
            RunnerOptions {
                context: 513,
                ..options()
            },
            ["513", "512"],
        ),
        (
            RunnerOptions {
                pages: 7,
                ..options()
            },
            ["112", "128"],
        ),
        (
            RunnerOptions {
                max_rows: 0,
                ..options()
            },
            ["rows", "at least 1"],
        ),
        (
            RunnerOptions {
                max_rows: 1 << 63,
                ..options()
            },
            ["rows", "at most 65535"],
        ),
        (
            RunnerOptions {
                max_tokens: 1 << 60,
                ..options()
            },
            ["tokens of a step", "at most 16777215"],
        ),
        (
            RunnerOptions {
                pages: usize::MAX / 2,
                ..options()
            },
            ["pages", "at most 4294967295"],
        ),
    ] {
        let Err(error) = ModelRunner::load(&file, Reference, &options) else {
            panic!("it loads")
        };
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn logits_that_are_no_number_fail_the_request_only() {
    let broken = |tensor: Tensor<'_>| {
        let (name, shape, mut data, dtype) = same(tensor)?;
        if name == "token_embd.weight" {
            // The embedding of token 65 alone.
            data[65 * 32 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        Some((name, shape, data, dtype))
    };
    // tiny-llama has a head of its own, so that only sequences with token 65 are struck.
    let file = rewritten(&open("tiny-llama.gguf"), keep, broken);
    let runner = ModelRunner::load(&file, Reference, &options()).unwrap();
    let mut engine = Engine::new(runner, KvPolicy::Paged).unwrap();
    let struck = engine
        .submit(common::generate(&[64, 65, 66], SamplingParams::greedy(), 4))
        .unwrap();
    let scored = engine.submit(Request::score(vec![65], 0..1)).unwrap();
    let sound = engine
        .submit(common::generate(&[70, 71], SamplingParams::greedy(), 1))
        .unwrap();
    let mut ends = Vec::new();
    while engine.step().is_some() {
        ends.extend(engine.events().filter(|event| event.kind.is_last()));
    }
    for end in ends {
        let failed = matches!(end.kind, EventKind::Failed(Failure::NotFinite { .. }));
        assert_eq!(failed, [struck, scored].contains(&end.request), "{end:?}");
        assert!(failed || end.request == sound);
    }
}
