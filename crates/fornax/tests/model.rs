//! The library on the built-in model: streams, ends, many requests at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fornax::gguf::{Gguf, GgufWriter, Value};
use fornax::{
    Chat, Delta, Event, GenerateOptions, LoadOptions, Model, Pooling, StopReason, TokenLogprob,
};

const BUILT_IN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fornax-cli/model/fornax-mini.gguf"
);
const TINY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fornax-model/tests/golden/tiny-qwen3.gguf"
);

fn model() -> Model {
    Model::load(BUILT_IN, &LoadOptions::default()).unwrap()
}

fn greedy() -> GenerateOptions {
    GenerateOptions {
        temperature: Some(0.0),
        ..GenerateOptions::default()
    }
}

fn question(text: &str) -> Chat {
    Chat::new().user(text).think(false)
}

/// All deltas and the end of an answer.
fn events(generation: fornax::Generation) -> (Vec<Delta>, fornax::Finished) {
    let (mut deltas, mut end) = (Vec::new(), None);
    for event in generation {
        assert!(end.is_none(), "nothing follows the end");
        match event.unwrap() {
            Event::Delta(delta) => deltas.push(delta),
            Event::Finished(finished) => end = Some(finished),
        }
    }
    (deltas, end.unwrap())
}

#[test]
fn a_name_is_remembered_over_turns() {
    let model = model();
    let chat = question("Hello! My name is Mara.");
    let hello = model.chat(&chat, &greedy()).unwrap().text().unwrap();
    let chat = chat.assistant(hello).user("What is my name?");
    let answer = model.chat(&chat, &greedy()).unwrap().text().unwrap();
    assert!(answer.contains("Mara"), "{answer}");
}

#[test]
fn an_answer_ends_with_the_turn_and_counts_its_tokens() {
    let model = model();
    let (deltas, end) = events(
        model
            .chat(&question("What is 12 + 30?"), &greedy())
            .unwrap(),
    );
    assert_eq!(end.reason, StopReason::EndOfTurn);
    let drawn = deltas.iter().filter(|delta| delta.token.is_some()).count();
    assert_eq!(
        end.usage.generated,
        drawn + 1,
        "the end of the turn is drawn too"
    );
    let text: String = deltas.iter().map(|delta| delta.text.as_str()).collect();
    assert!(
        text.contains("42") && !text.contains("<|im_end|>"),
        "{text}"
    );
    let tells_one = |delta: &Delta| delta.logprob.is_some() || !delta.top.is_empty();
    assert!(
        !deltas.iter().any(tells_one),
        "nobody asked for probabilities"
    );
}

#[test]
fn the_most_likely_tokens_are_named_in_order() {
    let options = GenerateOptions {
        logprobs: Some(5),
        max_tokens: Some(6),
        ..greedy()
    };
    let (deltas, end) = events(model().generate("Once upon a time", &options).unwrap());
    assert_eq!(end.reason, StopReason::MaxTokens);
    for delta in deltas.iter().filter(|delta| delta.token.is_some()) {
        assert_eq!(delta.top.len(), 5);
        assert!(delta.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        let TokenLogprob { token, logprob } = delta.top[0];
        assert!(logprob <= 0.0);
        let drawn = (delta.token, delta.logprob);
        assert_eq!(
            drawn,
            (Some(token), Some(logprob)),
            "greedy takes the first"
        );
    }
}

#[test]
fn characters_of_several_tokens_come_whole() {
    let model = model();
    let fox = model.tokenizer().encode("🦊", fornax::text::Special::Plain);
    assert!(fox.len() > 1, "the fox is no token of its own");
    let mut text = String::new();
    let mut detokenizer =
        fornax::text::Detokenizer::new(model.tokenizer(), fornax::text::ControlTokens::Hide);
    for &token in &fox {
        let piece = detokenizer.push(token).unwrap();
        assert!(piece.is_empty() || piece == "🦊");
        text += &piece;
    }
    assert_eq!(text, "🦊");
}

#[test]
fn a_stop_string_ends_an_answer_and_the_engine_goes_on() {
    let model = model();
    let whole = model.generate(
        "Once upon a time",
        &GenerateOptions {
            max_tokens: Some(40),
            ..greedy()
        },
    );
    let whole = whole.unwrap().text().unwrap();
    let stop = whole.split(' ').nth(8).unwrap().to_owned();
    let options = GenerateOptions {
        stop: vec![stop.clone()],
        ..greedy()
    };
    let (deltas, end) = events(model.generate("Once upon a time", &options).unwrap());
    let text: String = deltas.iter().map(|delta| delta.text.as_str()).collect();
    assert_eq!(text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(end.reason, StopReason::StopString(stop));
    let drawn = deltas.iter().filter(|delta| delta.token.is_some()).count();
    assert_eq!(end.usage.generated, drawn);
}

#[test]
fn many_answers_at_once_are_the_same_as_alone() {
    let model = model();
    let options = |seed| GenerateOptions {
        seed: Some(seed),
        max_tokens: Some(24),
        ..Default::default()
    };
    let ask = |seed: u64| {
        model
            .chat(&question("Tell me a story about a fox"), &options(seed))
            .unwrap()
    };
    let together: Vec<_> = (0..6).map(ask).collect();
    let together: Vec<String> = together
        .into_iter()
        .map(|answer| answer.text().unwrap())
        .collect();
    for (seed, text) in together.iter().enumerate() {
        assert_eq!(ask(seed as u64).text().unwrap(), *text);
    }
    assert_ne!(together[0], together[1]);
}

#[test]
fn an_answer_can_be_cancelled_or_dropped() {
    let model = model();
    let forever = GenerateOptions {
        ignore_end: true,
        ..greedy()
    };
    let mut answer = model.generate("Once", &forever).unwrap();
    assert!(matches!(answer.next(), Some(Ok(Event::Delta(_)))));
    answer.cancel_handle().cancel();
    assert_eq!(events(answer).1.reason, StopReason::Cancelled);
    drop(model.generate("Once", &forever).unwrap());
    // All sequences' room is free again.
    let (_, end) = events(model.chat(&question("What is 1 + 10?"), &greedy()).unwrap());
    assert_eq!(end.reason, StopReason::EndOfTurn);
}

#[test]
fn a_story_is_likelier_than_its_words_in_disorder() {
    let model = model();
    let surprise = |text: &str| -> f64 {
        let tokens = model.tokenizer().encode(text, fornax::text::Special::Plain);
        let logits = model.logits(tokens.clone(), 0..tokens.len() - 1).unwrap();
        let rows = logits.chunks_exact(model.config().vocabulary);
        let costs = rows.zip(&tokens[1..]).map(|(row, &token)| {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            sum.ln() - f64::from(row[token as usize])
        });
        costs.sum::<f64>() / (tokens.len() - 1) as f64
    };
    let order = surprise("Once upon a time there was a fox who lived in the forest.");
    let disorder = surprise("forest the in lived who fox a was there time a upon Once.");
    assert!(order + 1.0 < disorder, "{order} {disorder}");
}

#[test]
fn embeddings_have_length_one_and_depend_on_the_text() {
    let model = model();
    for pooling in [Pooling::Mean, Pooling::Last] {
        let embed = |text| model.embed(text, pooling).unwrap();
        let (fox, again, sum) = (
            embed("A story about a fox."),
            embed("A story about a fox."),
            embed("12 + 30"),
        );
        assert_eq!(fox, again);
        assert_eq!(fox.len(), model.config().width);
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert!((dot(&fox, &fox) - 1.0).abs() < 1e-4);
        assert!(dot(&fox, &sum) < 0.95);
    }
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let model = model();
    let long = vec![5; model.context() + 1];
    let error = model
        .generate_tokens(long, &greedy())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("2049") && error.contains("2048"), "{error}");
    assert!(model.generate_tokens(Vec::new(), &greedy()).is_err());
    let hot = GenerateOptions {
        temperature: Some(f32::NAN),
        ..greedy()
    };
    assert!(
        model
            .generate("Hi", &hot)
            .err()
            .unwrap()
            .to_string()
            .contains("temperature")
    );
    let tiny = Model::load(TINY, &LoadOptions::default()).unwrap();
    let error = tiny
        .chat(&question("Hi"), &greedy())
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("tiny-qwen3.gguf") && error.contains("chat template"),
        "{error}"
    );
}

#[test]
fn a_file_recommends_its_sampling() {
    // Greedy by the file's own word: temperature 0 makes two seeds agree.
    let path = recommending("greedy.gguf", "general.sampling.temp", 0.0f32);
    let text = |path: &std::path::Path, seed| {
        let options = GenerateOptions {
            seed: Some(seed),
            max_tokens: Some(12),
            ..Default::default()
        };
        let model = Model::load(path, &LoadOptions::default()).unwrap();
        model.generate("abc", &options).unwrap().text().unwrap()
    };
    assert_eq!(text(&path, 1), text(&path, 2));
    assert_ne!(text(TINY.as_ref(), 1), text(TINY.as_ref(), 2));
}

#[test]
fn a_recommendation_that_is_none_is_refused() {
    let key = "general.sampling.top_k";
    let values: [(Value, &str); 2] = [("all".into(), "string"), (40.5f32.into(), "f32")];
    for (value, part) in values {
        let path = recommending("no-recommendation.gguf", key, value);
        let error = Model::load(&*path, &LoadOptions::default()).err().unwrap();
        let told = error.to_string();
        assert!(told.contains(key) && told.contains(part), "{told}");
    }
    // As files write "all".
    let path = recommending("all.gguf", key, -1i32);
    Model::load(&*path, &LoadOptions::default()).unwrap();
}

/// The tiny model with a value more in its metadata.
fn recommending(name: &str, key: &str, value: impl Into<Value>) -> std::path::PathBuf {
    let file = Gguf::open(TINY).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    writer.set(key, value).unwrap();
    for tensor in file.tensors() {
        writer
            .declare(tensor.name, tensor.dtype, tensor.shape)
            .unwrap();
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut tensors = writer.start(std::fs::File::create(&path).unwrap()).unwrap();
    for tensor in file.tensors() {
        tensors.tensor(tensor.name, &tensor.data()).unwrap();
    }
    tensors.finish().unwrap();
    path
}
