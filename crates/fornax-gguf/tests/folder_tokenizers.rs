//! Settings of a `tokenizer.json` that change tokens: each has a key in GGUF, changes nothing, or is
//! refused by name.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod small_folder;

use fornax_gguf::{Error, Gguf};
use serde_json::{Value, json};
use small_folder::tokenizer;

fn open(tokenizer: &Value) -> Result<Gguf, Error> {
    Gguf::from_folder(
        "folder",
        small_folder::with("tokenizer.json", tokenizer.to_string()),
    )
}

/// The small folder's tokenizer with a setting of its model changed.
fn with_model(key: &str, value: Value) -> Value {
    let mut tokenizer = tokenizer();
    tokenizer["model"][key] = value;
    tokenizer
}

/// A tokenizer of pieces.
fn pieces() -> Value {
    let mut tokenizer = with_model("byte_fallback", json!(true));
    tokenizer["pre_tokenizer"] = Value::Null;
    tokenizer["normalizer"] =
        json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    tokenizer
}

fn refused(tokenizer: &Value, parts: &[&str]) {
    let message = open(tokenizer).expect_err("it changes tokens").to_string();
    for part in ["folder/tokenizer.json"].iter().chain(parts) {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}

#[test]
fn settings_of_the_model_are_no_more_than_nothing_or_refused() {
    for (key, nothing, something) in [
        ("dropout", json!(0.0), json!(0.1)),
        ("continuing_subword_prefix", json!(""), json!("##")),
        ("end_of_word_suffix", json!(""), json!("</w>")),
        ("unk_token", Value::Null, json!("a")),
    ] {
        for none in [nothing, Value::Null] {
            assert!(open(&with_model(key, none)).is_ok(), "{key}");
        }
        refused(&with_model(key, something), &[key]);
    }
    assert!(
        open(&with_model("fuse_unk", json!(true))).is_ok(),
        "no unknown"
    );
    refused(
        &with_model("byte_fallback", json!(true)),
        &["byte_fallback"],
    );
    refused(&with_model("fuse_unk", json!("yes")), &["fuse_unk"]);
    let mut fusing = pieces();
    assert!(open(&fusing).is_ok());
    fusing["model"]["fuse_unk"] = json!(true);
    refused(&fusing, &["fuse_unk"]);
    let mut ignoring = pieces();
    ignoring["model"]["ignore_merges"] = json!(true);
    refused(&ignoring, &["ignore_merges"]);
}

#[test]
fn added_tokens_that_take_their_neighbours_are_refused() {
    for key in ["single_word", "lstrip", "rstrip"] {
        let mut tokenizer = tokenizer();
        tokenizer["added_tokens"][2][key] = json!(false);
        assert!(open(&tokenizer).is_ok());
        tokenizer["added_tokens"][2][key] = json!(true);
        refused(&tokenizer, &["<think>", key]);
    }
}

#[test]
fn steps_that_change_text_are_refused() {
    let mut other = tokenizer();
    other["normalizer"] = json!({ "type": "NFC" });
    assert!(open(&other).is_ok());
    other["normalizer"] = json!({ "type": "Sequence", "normalizers": [{ "type": "Lowercase" }] });
    refused(&other, &["Lowercase"]);
    let mut other = pieces();
    other["normalizer"] = json!({ "type": "NFKC" });
    refused(&other, &["NFKC"]);
    other["normalizer"] = Value::Null;
    refused(&other, &["for a space"]);
    other["pre_tokenizer"] = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false });
    let model = open(&other).unwrap();
    assert!(
        model
            .metadata()
            .bool("tokenizer.ggml.add_space_prefix")
            .unwrap()
    );
    other["pre_tokenizer"]["split"] = json!(true);
    refused(&other, &["Metaspace"]);
}

/// The expression that Llama 3 cuts by.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

#[test]
fn whole_words_are_taken_at_once_where_it_says_so() {
    let said = |ignore: bool, cut: Option<&str>| {
        let mut tokenizer = with_model("ignore_merges", json!(ignore));
        if let Some(cut) = cut {
            tokenizer["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": cut }, "behavior": "Isolated", "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "use_regex": false }
            ] });
        }
        let model = open(&tokenizer).unwrap();
        let metadata = model.metadata();
        let pre = metadata.str("tokenizer.ggml.pre").unwrap().to_owned();
        (
            pre,
            metadata
                .optional_bool("tokenizer.ggml.ignore_merges")
                .unwrap(),
        )
    };
    assert_eq!(said(false, None), ("gpt-2".to_owned(), None));
    assert_eq!(said(true, None), ("gpt-2".to_owned(), Some(true)));
    assert_eq!(said(true, Some(LLAMA3)), ("llama-bpe".to_owned(), None));
    // The same cut by a name that merges.
    assert_eq!(said(false, Some(LLAMA3)), ("smaug-bpe".to_owned(), None));
}
