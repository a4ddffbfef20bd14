//! Agreement with the `tokenizers` crate, which is given the same vocabulary and the published
//! pre-tokenizer in the notation of `tokenizer.json`.
//!
//! That crate compiles for minutes, so this waits for `--features peer-tokenizers`.

#[cfg(feature = "peer-tokenizers")]
mod shared;

#[test]
#[cfg_attr(
    all(feature = "peer-tokenizers", no_shared),
    ignore = "needs ../shared: real vocabularies"
)]
#[cfg_attr(
    not(feature = "peer-tokenizers"),
    ignore = "needs --features peer-tokenizers, whose crate compiles for minutes"
)]
fn random_text_becomes_the_same_tokens() {
    #[cfg(not(feature = "peer-tokenizers"))]
    panic!("run with --features peer-tokenizers");
    #[cfg(feature = "peer-tokenizers")]
    agreement::check_all();
}

#[cfg(feature = "peer-tokenizers")]
mod agreement {
    use fornax_gguf::{Gguf, GgufWriter, Value};
    use fornax_text::{Special, Tokenizer};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngSeed, TestRunner};
    use serde_json::{Map, Value as Json, json};

    use super::shared;

    const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    const CONTROL: i32 = 3;
    const USER_DEFINED: i32 = 4;

    pub fn check_all() {
        // SmolLM's vocabulary is not at hand; its way of cutting works with any.
        for (name, pre) in [
            ("qwen2", "qwen2"),
            ("llama-bpe", "llama-bpe"),
            ("gpt-2", "gpt-2"),
            ("gpt-2", "smollm"),
        ] {
            let gguf = with_pre_tokenizer(&shared::gguf(name), pre);
            let ours = Tokenizer::from_gguf(&gguf).expect("a vocabulary that is supported");
            for special in [Special::Plain, Special::Parse] {
                let peer = peer(&gguf, pre, special);
                compare(&format!("{name} as {pre}"), &ours, &peer, special);
            }
        }
    }

    fn compare(case: &str, ours: &Tokenizer, peer: &tokenizers::Tokenizer, special: Special) {
        let config = Config {
            cases: 4000,
            rng_seed: RngSeed::Fixed(5),
            failure_persistence: None,
            ..Config::default()
        };
        let control = ours.control_tokens().map(|(_, bytes)| bytes);
        let control = control
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .collect();
        let agreed = TestRunner::new(config).run(&text(control), |text| {
            let theirs = peer
                .encode_fast(text.as_str(), false)
                .expect("any text has tokens");
            prop_assert_eq!(ours.encode(&text, special), theirs.get_ids());
            Ok(())
        });
        assert!(agreed.is_ok(), "{case}, {special:?}: {agreed:?}");
    }

    /// Words, code, marks, characters of every script, and control tokens.
    fn text(control: Vec<String>) -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => any::<String>(),
            4 => "[a-zA-Z]{1,12}",
            2 => "[ \t\r\n]{1,5}",
            2 => "[0-9]{1,9}",
            1 => "'(s|S|t|re|VE|m|ll|d|ſ|x)",
            2 => "[!-/:-@\\[-`{-~]{1,6}",
            2 => "[à-ÿа-яα-ω一-龥ぁ-んก-๛अ-हا-ي가-힣]{1,8}",
            1 => "[🦊👩\u{200D}❤️🇨🇭\u{300}-\u{36F}]{1,4}",
            1 => prop::sample::select(control),
            1 => prop::sample::select(vec![" the", " of", "ing", "  def f(x):\n    return", "://", "\u{FFFD}"])
                .prop_map(str::to_owned),
        ];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    fn peer(gguf: &Gguf, pre: &str, special: Special) -> tokenizers::Tokenizer {
        let metadata = gguf.metadata();
        let tokens = metadata.strings("tokenizer.ggml.tokens").expect("tokens");
        let types = metadata.i32s("tokenizer.ggml.token_type").expect("types");
        let merges = metadata.strings("tokenizer.ggml.merges").expect("merges");
        let vocabulary: Map<String, Json> = (0..)
            .zip(tokens)
            .map(|(id, text): (u32, _)| (text.clone(), json!(id)))
            .collect();
        let added: Vec<Json> = (0..)
            .zip(tokens)
            .zip(types)
            .filter(|(_, kind)| {
                *kind == USER_DEFINED || (*kind == CONTROL && special == Special::Parse)
            })
            .map(|((id, text), _): ((u32, _), _)| {
                json!({"id": id, "content": text, "special": true, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false})
            })
            .collect();
        let definition = json!({
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": pre_tokenizer(pre),
            "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": pre == "llama-bpe"},
        });
        definition.to_string().parse().expect("a tokenizer.json")
    }

    /// As in the `tokenizer.json` of GPT-2, Qwen2, Llama 3 and SmolLM.
    fn pre_tokenizer(pre: &str) -> Json {
        let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let steps = match pre {
            "gpt-2" => json!([bytes(true)]),
            "qwen2" => json!([split(QWEN2), bytes(false)]),
            "llama-bpe" => json!([split(LLAMA3), bytes(false)]),
            "smollm" => json!([{"type": "Digits", "individual_digits": true}, bytes(true)]),
            other => panic!("no published pre-tokenizer for {other}"),
        };
        json!({"type": "Sequence", "pretokenizers": steps})
    }

    fn with_pre_tokenizer(gguf: &Gguf, pre: &str) -> Gguf {
        let mut writer = GgufWriter::new();
        for (key, value) in gguf.metadata().iter() {
            let value = match key {
                "tokenizer.ggml.pre" => Value::from(pre),
                _ => value.clone(),
            };
            writer.set(key, value).expect("a key of another file");
        }
        let bytes = writer
            .start(Vec::new())
            .and_then(|tensors| tensors.finish());
        Gguf::from_bytes(pre, bytes.expect("a file without tensors")).expect("what was written")
    }
}
