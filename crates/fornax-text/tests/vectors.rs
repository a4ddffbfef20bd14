//! Real vocabularies against the token ids that are published with them.

mod shared;

use fornax_text::{ControlTokens, Special};

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
    for name in shared::BPE {
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
