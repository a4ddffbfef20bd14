//! Agreement with the `tokenizers` crate, which is given the same vocabulary and the published
//! pre-tokenizer in the notation of `tokenizer.json`.
//!
//! That crate compiles for minutes, so this waits for `--features peer-tokenizers`.

#[cfg(feature = "peer-tokenizers")]
mod peer_definition;
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

    use super::peer_definition::{peer, published};
    use super::shared;

    pub fn check_all() {
        for name in ["qwen2", "llama-bpe", "gpt-2", "llama-spm"] {
            for special in [Special::Plain, Special::Parse] {
                compare(name, &shared::gguf(name), name, special, 20_000);
            }
        }
        // The vocabularies of these are not at hand; their way of cutting works with any.
        for (pre, _) in published::PUBLISHED {
            let gguf = with_pre_tokenizer(&shared::gguf("gpt-2"), pre);
            compare(&format!("gpt-2 as {pre}"), &gguf, pre, Special::Plain, 4000);
        }
    }

    fn compare(case: &str, gguf: &Gguf, pre: &str, special: Special, cases: u32) {
        let ours = Tokenizer::from_gguf(gguf).expect("a vocabulary that is supported");
        let peer = peer(gguf, pre, special);
        let config = Config {
            cases,
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
