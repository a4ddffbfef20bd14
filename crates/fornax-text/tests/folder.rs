//! Tokenizers of folders: the settings of `tokenizer.json` that change tokens, as the `tokenizers`
//! crate heeds them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../fornax-gguf/tests/small_folder/mod.rs"]
mod small_folder;

use fornax_gguf::Gguf;
use fornax_text::{Special, Tokenizer};
use serde_json::{Map, Value, json};

/// A vocabulary in which no merge leads to `abc`, though it is a token, and text is cut so.
fn tokenizer(ignore_merges: Value, pre_tokenizer: Value) -> Value {
    let mut vocabulary = Map::new();
    for (id, letter) in small_folder::letters().into_iter().enumerate() {
        vocabulary.insert(letter, json!(id));
    }
    vocabulary.insert("ab".to_owned(), json!(256));
    vocabulary.insert("abc".to_owned(), json!(257));
    vocabulary.insert("Ġabc".to_owned(), json!(258));
    json!({
        "version": "1.0",
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]],
            "ignore_merges": ignore_merges
        },
        "pre_tokenizer": pre_tokenizer,
        "added_tokens": []
    })
}

fn gpt2() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true })
}

fn llama3() -> Value {
    const CUT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Split", "pattern": { "Regex": CUT }, "behavior": "Isolated", "invert": false },
        {
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false
        }
    ] })
}

fn tokens(tokenizer: &Value, text: &str) -> Vec<u32> {
    let mut config = small_folder::config();
    config["vocab_size"] = json!(259);
    let files = [
        ("config.json", config.to_string().into_bytes()),
        ("tokenizer.json", tokenizer.to_string().into_bytes()),
        (
            "model.safetensors",
            small_folder::safetensors(&small_folder::TENSORS),
        ),
    ];
    let files = files.map(|(name, content)| (name.to_owned(), content));
    let model = Gguf::from_folder("folder", files.into()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&model).unwrap();
    tokenizer.encode(text, Special::Plain)
}

const TEXT: &str = "abc abc abcd ab";

/// What version 0.23 of the crate makes of [`TEXT`], by whether words that are tokens are taken
/// whole.
const WHOLE: &[u32] = &[257, 258, 32, 256, 99, 100, 32, 256];
const MERGED: &[u32] = &[256, 99, 32, 256, 99, 32, 256, 99, 100, 32, 256];

#[test]
fn words_that_are_tokens_are_taken_whole_where_it_says_so() {
    for pre_tokenizer in [gpt2(), llama3()] {
        for (ignore_merges, expected) in [
            (json!(true), WHOLE),
            (json!(false), MERGED),
            (Value::Null, MERGED),
        ] {
            let tokenizer = tokenizer(ignore_merges, pre_tokenizer.clone());
            assert_eq!(tokens(&tokenizer, TEXT), expected, "{tokenizer}");
        }
    }
}

#[test]
#[cfg_attr(
    not(feature = "peer-tokenizers"),
    ignore = "needs --features peer-tokenizers, whose crate compiles for minutes"
)]
fn the_crate_makes_the_same_of_them() {
    #[cfg(not(feature = "peer-tokenizers"))]
    panic!("run with --features peer-tokenizers");
    #[cfg(feature = "peer-tokenizers")]
    for pre_tokenizer in [gpt2(), llama3()] {
        for ignore_merges in [true, false] {
            let tokenizer = tokenizer(json!(ignore_merges), pre_tokenizer.clone());
            let peer = tokenizers::Tokenizer::from_bytes(tokenizer.to_string()).unwrap();
            for text in [TEXT, "", " abc", "abc1abc", "déjà abc\n abc"] {
                let theirs = peer.encode(text, false).unwrap();
                assert_eq!(tokens(&tokenizer, text), theirs.get_ids(), "{text:?}");
            }
        }
    }
}
