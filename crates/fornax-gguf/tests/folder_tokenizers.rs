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
    for (scheme, prefixed, kept) in [
        (json!("first"), true, Some("first")),
        (json!("always"), true, Some("always")),
        (json!("never"), false, None),
    ] {
        other["pre_tokenizer"]["prepend_scheme"] = scheme;
        let model = open(&other).unwrap();
        let metadata = model.metadata();
        let prefix = metadata.bool("tokenizer.ggml.add_space_prefix").unwrap();
        assert_eq!(prefix, prefixed);
        let scheme = metadata.optional_str("tokenizer.ggml.prepend_scheme");
        assert_eq!(scheme.unwrap(), kept);
    }
    other["pre_tokenizer"]["prepend_scheme"] = json!("sometimes");
    refused(&other, &["prepend_scheme", "sometimes"]);
    other["pre_tokenizer"]["prepend_scheme"] = json!("first");
    other["pre_tokenizer"]["split"] = json!(true);
    refused(&other, &["Metaspace"]);
}

#[test]
fn added_tokens_whose_normalized_form_differs_are_refused() {
    let mut other = pieces();
    other["added_tokens"][2]["normalized"] = json!(true);
    let model = open(&other).unwrap();
    let late = model.metadata().u32s("tokenizer.ggml.normalized_tokens");
    assert_eq!(late.unwrap(), [6], "looked for behind the others");
    other["added_tokens"][2]["content"] = json!("<th ink>");
    refused(&other, &["<th ink>", "normalized", "set it to false"]);
    other["added_tokens"][2]["content"] = json!("<think>");
    other["normalizer"] = json!({ "type": "Sequence", "normalizers": [
        { "type": "Prepend", "prepend": "▁" }, other["normalizer"]
    ] });
    refused(&other, &["<think>", "normalized"]);
    for token in other["added_tokens"].as_array_mut().unwrap() {
        token["normalized"] = json!(false);
    }
    assert!(open(&other).is_ok());
}

/// A post-processor of these pieces around a text.
fn template(pieces: &[&str]) -> Value {
    let piece = |name: &&str| match *name {
        "A" => json!({ "Sequence": { "id": "A", "type_id": 0 } }),
        name => json!({ "SpecialToken": { "id": name, "type_id": 0 } }),
    };
    let single: Vec<Value> = pieces.iter().map(piece).collect();
    json!({ "type": "TemplateProcessing", "single": single, "special_tokens": {
        "<s>": { "id": "<s>", "ids": [0] }, "</s>": { "id": "</s>", "ids": [1] },
        "two": { "id": "two", "ids": [0, 1] }
    } })
}

#[test]
fn a_post_processor_puts_bos_and_eos_around_a_text_or_is_refused() {
    let mut other = tokenizer();
    let bert = |kind: &str, cls: u32, sep: u32| json!({ "type": kind, "cls": ["", cls], "sep": ["", sep] });
    let bytes = json!({ "type": "ByteLevel", "trim_offsets": true });
    let list = |list: &[Value]| json!({ "type": "Sequence", "processors": list });
    for (processor, bos, eos) in [
        (Value::Null, false, false),
        (bytes.clone(), false, false),
        (template(&["A"]), false, false),
        (template(&["<s>", "A"]), true, false),
        (template(&["A", "</s>"]), false, true),
        (template(&["<s>", "A", "</s>"]), true, true),
        (list(&[bytes.clone(), template(&["<s>", "A"])]), true, false),
        (bert("BertProcessing", 0, 1), true, true),
        (bert("RobertaProcessing", 0, 1), true, true),
    ] {
        other["post_processor"] = processor;
        // Settings beside a tokenizer.json do not count.
        let settings = json!({ "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": !bos });
        let files = small_folder::with("tokenizer.json", other.to_string());
        let files = small_folder::replaced(files, "tokenizer_config.json", settings.to_string());
        let model = Gguf::from_folder("folder", files).unwrap();
        let adds = |key: &str| {
            model
                .metadata()
                .bool(&format!("tokenizer.ggml.add_{key}_token"))
        };
        assert_eq!(adds("bos").unwrap(), bos, "{other}");
        assert_eq!(adds("eos").unwrap(), eos, "{other}");
    }
    for (processor, part) in [
        (template(&["<s>", "</s>", "A"]), "one token on a side"),
        (template(&["A", "A"]), "one token"),
        (template(&["two", "A"]), "two"),
        (template(&["none", "A"]), "none"),
        (
            list(&[template(&["<s>", "A"]), bert("BertProcessing", 0, 1)]),
            "more than once",
        ),
        (bert("BertProcessing", 0, 100), "sep"),
        (json!({ "type": "Sideways" }), "Sideways"),
    ] {
        other["post_processor"] = processor;
        refused(&other, &["post_processor", part]);
    }
}

#[test]
fn another_token_around_a_text_than_the_named_one_is_refused() {
    let mut other = tokenizer();
    other["post_processor"] = template(&["</s>", "A"]);
    let files = small_folder::with("tokenizer.json", other.to_string());
    let error = Gguf::from_folder("folder", files.clone())
        .unwrap_err()
        .to_string();
    for part in [
        "folder/tokenizer_config.json",
        "bos_token",
        "\"<s>\"",
        "\"</s>\"",
    ] {
        assert!(error.contains(part), "{error:?} does not name {part}");
    }
    // Without a name it is that one.
    let files = small_folder::replaced(files, "tokenizer_config.json", "{}");
    let model = Gguf::from_folder("folder", files).unwrap();
    assert_eq!(
        model.metadata().u32("tokenizer.ggml.bos_token_id").unwrap(),
        1
    );
}

#[test]
fn cuts_are_known_whole_or_refused() {
    let split = |pattern: &str| json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "use_regex": false });
    let words = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    let digits = json!({ "type": "Digits", "individual_digits": true });
    let eastern = split("[一-龥ࠀ-一가-\u{D7FF}]+");
    let third = [
        split(r"\p{N}{1,3}"),
        split("[一-龥぀-ゟ゠-ヿ]+"),
        split(words),
    ];
    let coder = [
        split("[\r\n]"),
        split(r"\s?\p{L}+"),
        split(r"\s?\p{P}+"),
        eastern,
        digits,
    ];
    for (name, steps) in [("deepseek-v3", &third[..]), ("deepseek-coder", &coder[..])] {
        let named = |steps: &[Value]| {
            let mut other = tokenizer();
            let steps: Vec<&Value> = steps.iter().chain([&bytes]).collect();
            other["pre_tokenizer"] = json!({ "type": "Sequence", "pretokenizers": steps });
            let model = open(&other)?;
            model
                .metadata()
                .str("tokenizer.ggml.pre")
                .map(str::to_owned)
        };
        assert_eq!(named(steps).unwrap(), name);
        for left_out in 0..steps.len() {
            let mut fewer = steps.to_vec();
            fewer.remove(left_out);
            let error = named(&fewer).expect_err("another cut").to_string();
            assert!(error.contains("no known pre-tokenizer"), "{error}");
        }
    }
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

#[test]
fn the_model_says_what_stands_for_what_has_no_token() {
    const KEY: &str = "tokenizer.ggml.unknown_token_id";
    let mut tokenizer = pieces();
    let unknown = |tokenizer: &Value| open(tokenizer).unwrap().metadata().u32(KEY).ok();
    assert_eq!(unknown(&tokenizer), None);
    tokenizer["model"]["unk_token"] = json!("b");
    assert_eq!(unknown(&tokenizer), Some(3));
}
