//! Real vocabularies against the token ids that are published with them.

mod shared;

use fornax_text::{ControlTokens, Detokenizer, Special};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};

/// Texts and their expected ids; a text is everything between two separator lines.
fn vectors(name: &str) -> Vec<(String, Vec<u32>)> {
    let file = format!("vocabs/ggml-vocab-{name}.gguf");
    let read = |ending: &str| {
        std::fs::read_to_string(shared::path(&format!("{file}.{ending}")))
            .expect("a file of vectors")
    };
    let (texts, ids) = (read("inp"), read("out"));
    let texts = texts.split("\n__ggml_vocab_test__\n");
    let ids = ids.lines().map(|line| {
        let ids = line.split_whitespace();
        ids.map(|id| id.parse().expect("a token id")).collect()
    });
    texts.map(str::to_owned).zip(ids).collect()
}

#[test]
#[cfg_attr(no_shared, ignore = "needs ../shared: real vocabularies")]
fn published_vectors_are_exact() {
    let names = shared::vocabularies();
    assert!(names.len() >= 4, "only {names:?}");
    for name in &names {
        let tokenizer = shared::tokenizer(name);
        let vectors = vectors(name);
        assert!(
            vectors.len() >= 46,
            "{name}: only {} vectors",
            vectors.len()
        );
        for (text, ids) in vectors {
            assert_eq!(
                tokenizer.encode(&text, Special::Plain),
                ids,
                "{name}: {text:?}"
            );
            assert_eq!(
                tokenizer.decode(&ids, ControlTokens::Hide).unwrap(),
                text.as_bytes(),
                "{name}: {text:?}"
            );
        }
    }
}

#[test]
#[cfg_attr(no_shared, ignore = "needs ../shared: real vocabularies")]
fn any_text_and_any_bytes_come_back() {
    let config = Config {
        cases: 700,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..Config::default()
    };
    for name in &shared::vocabularies() {
        let tokenizer = shared::tokenizer(name);
        let last = tokenizer.vocabulary_len() as u32;
        let cases = (any::<String>(), prop::collection::vec(0..last, 0..30));
        let outcome = TestRunner::new(config.clone()).run(&cases, |(text, tokens)| {
            for special in [Special::Plain, Special::Parse] {
                let encoded = tokenizer.encode(&text, special);
                let bytes = tokenizer.decode(&encoded, ControlTokens::Show).unwrap();
                prop_assert_eq!(bytes, written(name, &text).into_bytes());
            }
            // Any tokens, cut anywhere in a character, read in a stream as in one go.
            let bytes = tokenizer.decode(&tokens, ControlTokens::Hide).unwrap();
            let mut stream = Detokenizer::new(&tokenizer, ControlTokens::Hide);
            let pieces = tokens.iter().map(|&token| stream.push(token).unwrap());
            let text = pieces.collect::<String>() + &stream.finish();
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
            Ok(())
        });
        assert!(outcome.is_ok(), "{name}: {outcome:?}");
    }
}

/// SentencePiece knows no `▁` but as a space.
fn written(name: &str, text: &str) -> String {
    match name {
        "llama-spm" => text.replace('▁', " "),
        _ => text.to_owned(),
    }
}
