//! A vocabulary as the `tokenizers` of Hugging Face want it: in the notation of `tokenizer.json`.

use fornax_gguf::Gguf;
use fornax_text::Special;
use serde_json::{Map, Value as Json, json};

#[path = "../published/mod.rs"]
pub mod published;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// The `tokenizer.json` of the vocabulary of `gguf`, with the pre-tokenizer `pre`.
pub fn definition(gguf: &Gguf, pre: &str, special: Special) -> Json {
    match gguf.metadata().str("tokenizer.ggml.model") {
        Ok("llama") => sentencepiece(gguf, special),
        _ => byte_level(gguf, pre, special),
    }
}

fn byte_level(gguf: &Gguf, pre: &str, special: Special) -> Json {
    let merges = gguf.metadata().strings("tokenizer.ggml.merges");
    json!({
        "version": "1.0",
        "added_tokens": added_tokens(gguf, special),
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers(pre)},
        "model": {
            "type": "BPE",
            "vocab": vocabulary(gguf),
            "merges": merges.expect("merges"),
            "ignore_merges": matches!(pre, "llama-bpe" | "tekken"),
        },
    })
}

/// As in the `tokenizer.json` of Llama 2: merges are made of the scores.
fn sentencepiece(gguf: &Gguf, special: Special) -> Json {
    json!({
        "version": "1.0",
        "added_tokens": added_tokens(gguf, special),
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": true,
            "byte_fallback": true,
            "vocab": vocabulary(gguf),
            "merges": merges_by_score(gguf),
        },
    })
}

fn tokens(gguf: &Gguf) -> impl Iterator<Item = (u32, &str, i32)> {
    let metadata = gguf.metadata();
    let texts = metadata.strings("tokenizer.ggml.tokens").expect("tokens");
    let types = metadata.i32s("tokenizer.ggml.token_type").expect("types");
    let texts = (0u32..).zip(texts).zip(types);
    texts.map(|((id, text), kind)| (id, text.as_str(), kind))
}

fn vocabulary(gguf: &Gguf) -> Map<String, Json> {
    tokens(gguf)
        .map(|(id, text, _)| (text.to_owned(), json!(id)))
        .collect()
}

fn added_tokens(gguf: &Gguf, special: Special) -> Vec<Json> {
    let added = tokens(gguf).filter(|(_, _, kind)| {
        *kind == USER_DEFINED || (*kind == CONTROL && special == Special::Parse)
    });
    added
        .map(|(id, text, _)| {
            json!({"id": id, "content": text, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect()
}

/// Every way to put a token together from two, the highest score first.
fn merges_by_score(gguf: &Gguf) -> Vec<Json> {
    let ids = vocabulary(gguf);
    let scores = gguf.metadata().f32s("tokenizer.ggml.scores");
    let scores = scores.expect("scores");
    let mut merges = Vec::new();
    for (id, text, _) in tokens(gguf).filter(|(_, _, kind)| *kind == NORMAL) {
        for (middle, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(middle);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push((scores[id as usize], left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0));
    merges
        .into_iter()
        .map(|(_, left, right)| json!([left, right]))
        .collect()
}

/// The steps where `tokenizer.json` has a name for them, and else their expressions.
fn pre_tokenizers(pre: &str) -> Vec<Json> {
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    match pre {
        "gpt-2" | "mpt" => vec![bytes(true)],
        "smollm" | "starcoder" => vec![
            json!({"type": "Digits", "individual_digits": true}),
            bytes(true),
        ],
        _ => {
            let rows = published::PUBLISHED.iter();
            let expressions = rows.filter(|(name, _)| *name == pre);
            let steps = expressions.flat_map(|(_, steps)| steps.iter());
            steps
                .map(|step| split(step))
                .chain([bytes(false)])
                .collect()
        }
    }
}
