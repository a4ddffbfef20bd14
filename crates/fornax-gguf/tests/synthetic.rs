//! Synthetic models open, have the tensors of their shape, and hold the same weights whatever else
//! is asked for.
//!
//! Knows the public interface only.

use fornax_gguf::{
    Array, DType, Error, Gguf, GgufWriter, Value,
    synthetic::{Formats, Options, Shape, write},
};

/// A vocabulary of `size` tokens.
fn vocabulary(size: usize) -> Gguf {
    let mut writer = GgufWriter::new();
    let tokens: Vec<String> = (0..size).map(|index| format!("t{index}")).collect();
    for (key, value) in [
        ("general.architecture", Value::from("llama")),
        ("tokenizer.ggml.model", Value::from("gpt2")),
        ("tokenizer.ggml.tokens", Value::from(tokens)),
        ("tokenizer.ggml.scores", Value::from(vec![0.5f32; size])),
        ("tokenizer.ggml.token_type", Value::from(vec![1i32; size])),
        ("tokenizer.chat_template", Value::from("{{ messages }}")),
        ("tokenizer.ggml.eos_token_id", Value::U32(3)),
    ] {
        writer.set(key, value).expect("a valid pair");
    }
    let file = writer
        .start(Vec::new())
        .and_then(|tensors| tensors.finish());
    Gguf::from_bytes("vocabulary", file.expect("memory takes all")).expect("a valid file")
}

fn options(vocabulary: &Gguf) -> Options<'_> {
    Options {
        formats: Formats::Of(DType::F32),
        seed: 1,
        deviation: None,
        layers: Some(1),
        vocabulary,
    }
}

fn model(shape: &Shape, options: &Options<'_>) -> Result<Gguf, Error> {
    Gguf::from_bytes("synthetic", write(shape, options, Vec::new())?)
}

fn tiny(name: &str) -> &'static Shape {
    Shape::named(name).expect("a known shape")
}

#[test]
fn every_tiny_shape_opens_in_every_type() -> Result<(), Error> {
    let vocabulary = vocabulary(8);
    for (name, dtypes) in [
        ("tiny-qwen3", DType::all()),
        ("tiny-llama", &[DType::Q8_0, DType::Q4_0]),
        ("tiny-qwen3moe", &[DType::BF16, DType::Q4_0]),
    ] {
        // The real shapes take seconds to encode in every type.
        let shape = Shape {
            feed_forward: 256,
            ..tiny(name).clone()
        };
        let exact = model(&shape, &options(&vocabulary))?;
        for &dtype in dtypes {
            let model = model(
                &shape,
                &Options {
                    formats: Formats::Of(dtype),
                    ..options(&vocabulary)
                },
            )?;
            let architecture = model.metadata().str("general.architecture")?;
            let key = |key: &str| format!("{architecture}.{key}");
            assert_eq!(model.metadata().u32(&key("block_count"))?, 1);
            assert_eq!(model.metadata().u32(&key("embedding_length"))?, 256);
            assert_eq!(
                model.metadata().str("tokenizer.chat_template")?,
                "{{ messages }}"
            );
            for (tensor, exact) in model.tensors().zip(exact.tensors()) {
                assert_eq!((tensor.name, tensor.shape), (exact.name, exact.shape));
                // The same weights, rounded.
                let mut rounded = Vec::new();
                tensor.dtype.encode(&exact.decode(), &mut rounded);
                assert!(tensor.data() == rounded, "{name} {dtype} {}", tensor.name);
            }
            let of = |name| model.tensor(name).map(|tensor| tensor.dtype);
            let outer = if dtype == DType::Q4_0 {
                DType::Q8_0
            } else {
                dtype
            };
            assert_eq!(of("token_embd.weight"), Some(outer));
            assert_eq!(of("output.weight"), (name != "tiny-qwen3").then_some(outer));
            assert_eq!(of("blk.0.attn_q.weight"), Some(dtype));
            assert_eq!(of("blk.0.attn_norm.weight"), Some(DType::F32));
            assert_eq!(
                of("blk.0.attn_q_norm.weight").is_some(),
                name != "tiny-llama"
            );
            assert_eq!(
                of("blk.0.ffn_gate.weight").is_some(),
                name != "tiny-qwen3moe"
            );
            assert_eq!(
                of("blk.0.ffn_gate_inp.weight").is_some(),
                name == "tiny-qwen3moe"
            );
        }
    }
    Ok(())
}

#[test]
fn weights_have_the_deviation_that_was_asked_for() -> Result<(), Error> {
    let vocabulary = vocabulary(8);
    for (asked, expected) in [(None, 0.1), (Some(0.5), 0.5)] {
        let model = model(
            tiny("tiny-llama"),
            &Options {
                deviation: asked,
                ..options(&vocabulary)
            },
        )?;
        let deviation = |name: &str, mean: f32| {
            let values = model.tensor(name).expect("a tensor of the shape").decode();
            let sum: f32 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (sum / values.len() as f32).sqrt()
        };
        assert!((deviation("blk.0.ffn_up.weight", 0.0) / expected - 1.0).abs() < 0.01);
        assert!((deviation("blk.0.attn_norm.weight", 1.0) / 0.1 - 1.0).abs() < 0.1);
    }
    Ok(())
}

#[test]
fn fewer_layers_hold_the_same_weights_and_other_seeds_others() -> Result<(), Error> {
    // Enough tokens that the embedding is made in several pieces, on several threads.
    let vocabulary = vocabulary(2500);
    let shape = tiny("tiny-qwen3");
    let one = model(shape, &options(&vocabulary))?;
    let all = model(
        shape,
        &Options {
            layers: None,
            ..options(&vocabulary)
        },
    )?;
    let other = model(
        shape,
        &Options {
            seed: 2,
            ..options(&vocabulary)
        },
    )?;
    assert_eq!(all.metadata().u32("qwen3.block_count")?, 3);
    assert!(all.tensor("blk.2.ffn_down.weight").is_some());
    for tensor in one.tensors() {
        let same = |model: &Gguf| {
            model
                .tensor(tensor.name)
                .is_some_and(|found| found.data() == tensor.data())
        };
        assert!(same(&all), "{}", tensor.name);
        assert!(!same(&other), "{}", tensor.name);
    }
    Ok(())
}

#[test]
fn vocabularies_are_padded_to_the_shape() -> Result<(), Error> {
    let shape = Shape {
        vocabulary: Some(8),
        ..tiny("tiny-qwen3").clone()
    };
    let model = model(&shape, &options(&vocabulary(5)))?;
    let metadata = model.metadata();
    let tokens = ["t0", "t1", "t2", "t3", "t4", "[PAD5]", "[PAD6]", "[PAD7]"];
    assert_eq!(metadata.strings("tokenizer.ggml.tokens")?, tokens);
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type")?, [1; 8]);
    assert_eq!(
        metadata.f32s("tokenizer.ggml.scores")?[4..],
        [0.5, -1000.0, -1000.0, -1000.0]
    );
    assert_eq!(metadata.u32("tokenizer.ggml.eos_token_id")?, 3);
    assert_eq!(metadata.str("general.architecture")?, "qwen3");
    assert_eq!(
        model
            .tensor("token_embd.weight")
            .map(|tensor| tensor.rows()),
        Some(8)
    );
    Ok(())
}

#[test]
fn a_padding_name_that_is_taken_is_avoided_and_missing_types_are_made() -> Result<(), Error> {
    let mut writer = GgufWriter::new();
    writer.set(
        "tokenizer.ggml.tokens",
        Array::String(vec!["[PAD1]".to_owned()]),
    )?;
    let vocabulary = Gguf::from_bytes("vocabulary", writer.start(Vec::new())?.finish()?)?;
    let shape = Shape {
        vocabulary: Some(2),
        ..tiny("tiny-qwen3").clone()
    };
    let model = model(&shape, &options(&vocabulary))?;
    assert_eq!(
        model.metadata().strings("tokenizer.ggml.tokens")?,
        ["[PAD1]", "[PAD1]]"]
    );
    assert_eq!(model.metadata().i32s("tokenizer.ggml.token_type")?, [1, 1]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let refused = |shape: &Shape, vocabulary: &Gguf, dtype, parts: &[&str]| {
        let options = Options {
            formats: Formats::Of(dtype),
            ..options(vocabulary)
        };
        let message = write(shape, &options, Vec::new())
            .expect_err("does not fit")
            .to_string();
        for part in parts {
            assert!(message.contains(part), "{message:?} does not name {part:?}");
        }
    };
    let shape = tiny("tiny-qwen3");
    let narrow = Shape {
        vocabulary: Some(4),
        ..shape.clone()
    };
    let parts = ["vocabulary has 5 tokens", "tiny-qwen3", "1 to 4"];
    refused(&narrow, &vocabulary(5), DType::F32, &parts);
    refused(shape, &vocabulary(0), DType::F32, &["has 0 tokens"]);
    let odd = Shape {
        width: 100,
        ..shape.clone()
    };
    refused(
        &odd,
        &vocabulary(5),
        DType::Q8_0,
        &["token_embd.weight", "rows of 100", "Q8_0"],
    );
    let mut writer = GgufWriter::new();
    writer
        .set("tokenizer.ggml.tokens", vec!["a".to_owned()])
        .expect("a valid pair");
    writer
        .set("tokenizer.ggml.token_type", vec![1i32, 1])
        .expect("a valid pair");
    let file = writer
        .start(Vec::new())
        .and_then(|tensors| tensors.finish());
    let uneven = Gguf::from_bytes("uneven", file.expect("memory takes all")).expect("a valid file");
    refused(
        shape,
        &uneven,
        DType::F32,
        &["uneven", "token_type has 2 entries for 1 tokens"],
    );
    let none = GgufWriter::new()
        .start(Vec::new())
        .and_then(|tensors| tensors.finish());
    let none = Gguf::from_bytes("none", none.expect("memory takes all")).expect("a valid file");
    refused(
        shape,
        &none,
        DType::F32,
        &["none", "\"tokenizer.ggml.tokens\"", "missing"],
    );
}
