//! Tokenizers of folders: the settings of `tokenizer.json` that change tokens, as the `tokenizers`
//! of Hugging Face heed them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../fornax-gguf/tests/small_folder/mod.rs"]
mod small_folder;
mod wheel;

use fornax_gguf::Gguf;
use fornax_text::{ControlTokens, Detokenizer, Special, Tokenizer};
use serde_json::{Map, Value, json};
use wheel::Peer;

/// Rows of the embedding, as many as the largest vocabulary here needs.
const ROWS: usize = 280;

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
    read(tokenizer).encode(text, Special::Plain)
}

/// The tokenizer of a folder that has it.
fn read(tokenizer: &Value) -> Tokenizer {
    let mut config = small_folder::config();
    config["vocab_size"] = json!(ROWS);
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
    Tokenizer::from_gguf(&model).unwrap()
}

const TEXT: &str = "abc abc abcd ab";

/// What version 0.23 of theirs makes of [`TEXT`], by whether words that are tokens are taken
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

/// SentencePiece's kind as they have it: `abc` is a token that nothing merges into, and the
/// order of merges is that of no scores. Some of its added tokens overlap.
fn pieces(normalizer: &Value, pre_tokenizer: &Value) -> Value {
    let mut vocabulary = Map::new();
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let words = [
        "▁", "a", "b", "c", "▁a", "ab", "bc", "abc", "▁▁", "<", "s", ">",
    ];
    let tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let tokens = tokens.chain(bytes).chain(words.map(str::to_owned));
    for (id, token) in tokens.enumerate() {
        vocabulary.insert(token, json!(id));
    }
    let added = |id: u32, content: &str, special: bool, normalized: bool| {
        json!({
            "id": id, "content": content, "special": special, "normalized": normalized,
            "single_word": false, "lstrip": false, "rstrip": false
        })
    };
    json!({
        "version": "1.0",
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": {
            "type": "BPE", "vocab": vocabulary, "byte_fallback": true, "unk_token": "<unk>",
            "merges": [["b", "c"], ["a", "b"], ["ab", "c"], ["▁", "a"], ["▁", "▁"]]
        },
        "added_tokens": [
            added(0, "<unk>", true, false), added(1, "<s>", true, false),
            added(2, "</s>", true, false), added(271, "<y>", false, false),
        ]
    })
}

fn metaspace(scheme: &str) -> Value {
    json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false
    })
}

fn spaces_as_pieces() -> Value {
    json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" })
}

/// All ways of writing a space and of putting one in front.
fn all_pieces() -> Vec<Value> {
    let mut all: Vec<Value> = ["never", "always", "first"]
        .map(|scheme| pieces(&Value::Null, &metaspace(scheme)))
        .into();
    all.push(pieces(&spaces_as_pieces(), &Value::Null));
    let prepend = json!({ "type": "Prepend", "prepend": "▁" });
    let steps = json!({ "type": "Sequence", "normalizers": [prepend, spaces_as_pieces()] });
    all.push(pieces(&steps, &Value::Null));
    all.push(pieces(&steps, &metaspace("first")));
    // A word that they look for only where they found no other added token.
    let mut late = pieces(&Value::Null, &metaspace("first"));
    let word = json!({
        "id": 272, "content": "<s>a", "special": false, "normalized": true,
        "single_word": false, "lstrip": false, "rstrip": false
    });
    late["added_tokens"].as_array_mut().unwrap().push(word);
    all.push(late);
    all
}

const PIECES: [&str; 14] = [
    "abc",
    " abc",
    "  a",
    "▁a",
    "<s>a",
    "<s> a",
    " <s>a",
    "a<s>b",
    "a </s> a",
    "<y>abc<y> abc",
    "é\n a",
    "<s><s>a",
    "",
    "a\u{0}b",
];

/// What version 0.23 of theirs makes of some of them: never, always, first.
const SCHEMES: [(&str, [&[u32]; 3]); 4] = [
    ("abc", [&[260, 265], &[263, 265], &[263, 265]]),
    (" abc", [&[263, 265], &[263, 265], &[263, 265]]),
    ("<s>a", [&[1, 260], &[1, 263], &[1, 260]]),
    ("<s> a", [&[1, 263], &[1, 263], &[1, 263]]),
];

#[test]
fn spaces_go_in_front_as_the_scheme_says_and_merges_are_those_listed() {
    for (index, scheme) in ["never", "always", "first"].into_iter().enumerate() {
        let tokenizer = read(&pieces(&Value::Null, &metaspace(scheme)));
        for (text, expected) in SCHEMES {
            let tokens = tokenizer.encode(text, Special::Parse);
            assert_eq!(tokens, expected[index], "{scheme} {text:?}");
            let back = tokenizer.decode(&tokens, ControlTokens::Show).unwrap();
            let back = String::from_utf8(back).unwrap();
            let lost = scheme != "never" && text.starts_with(' ');
            let written = if lost { &text[1..] } else { text };
            let also_lost = scheme == "always" && text == "<s> a";
            assert_eq!(back, if also_lost { "<s>a" } else { written }, "{scheme}");
        }
    }
    // In front of an answer stands what the prompt ends with.
    for (scheme, answer) in [("always", "a"), ("first", " a")] {
        let tokenizer = read(&pieces(&Value::Null, &metaspace(scheme)));
        let mut text = Detokenizer::behind(&tokenizer, ControlTokens::Hide, &[263, 2]);
        assert_eq!(text.push(263).unwrap(), answer, "{scheme}");
    }
}

#[test]
fn normalized_words_are_looked_for_in_what_the_other_added_tokens_leave() {
    let tokenizer = read(&all_pieces().pop().unwrap());
    let parsed = tokenizer.encode("b<s>ab", Special::Parse);
    assert_eq!(parsed, [259, 261, 1, 264]);
    let plain = tokenizer.encode("b<s>ab", Special::Plain);
    assert_eq!(plain, [259, 261, 272, 261]);
}

#[test]
#[ignore = "needs tokenizers of PyPI: `cargo xtask ci peer` fetches them"]
fn the_peer_makes_the_same_of_them() {
    for pre_tokenizer in [gpt2(), llama3()] {
        for ignore_merges in [true, false] {
            let tokenizer = tokenizer(json!(ignore_merges), pre_tokenizer.clone());
            let texts = [TEXT, "", " abc", "abc1abc", "déjà abc\n abc"];
            compare(&tokenizer, &texts, Special::Plain);
        }
    }
    for tokenizer in all_pieces() {
        compare(&tokenizer, &PIECES, Special::Parse);
    }
}

fn compare(tokenizer: &Value, texts: &[&str], special: Special) {
    let texts: Vec<String> = texts.iter().copied().map(str::to_owned).collect();
    let theirs = Peer::new(tokenizer).encode(&texts);
    let ours = read(tokenizer);
    for (text, theirs) in texts.iter().zip(theirs) {
        let ours = ours.encode(text, special);
        assert_eq!(ours, theirs, "{text:?} with {tokenizer}");
    }
}
