//! Agreement with the `tokenizers` of Hugging Face, which are given the same vocabulary and the
//! published pre-tokenizer in the notation of `tokenizer.json`.

mod peer_definition;
mod shared;
mod wheel;

use std::{cell::RefCell, slice};

use fornax_gguf::{Gguf, GgufWriter, Value};
use fornax_text::{Special, Tokenizer};
use peer_definition::{definition, published};
use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngSeed, TestRunner},
};
use wheel::Peer;

/// Texts that are told at once: one by one, they would take half as long again. Divides the number
/// of cases.
const BATCH: usize = 500;

#[test]
#[ignore = "needs ../shared, and tokenizers of PyPI: `cargo xtask ci peer` fetches these"]
fn random_text_becomes_the_same_tokens() {
    compare_vocabularies(Special::Plain);
}

#[test]
#[ignore = "needs ../shared, and tokenizers of PyPI: `cargo xtask ci peer` fetches these"]
fn so_it_does_where_control_tokens_are_read() {
    compare_vocabularies(Special::Parse);
}

/// The vocabularies of most of these are not at hand; their way of cutting works with any.
#[test]
#[ignore = "needs ../shared, and tokenizers of PyPI: `cargo xtask ci peer` fetches these"]
fn so_it_does_cut_in_every_published_way() {
    for (pre, _) in published::PUBLISHED {
        let gguf = with_pre_tokenizer(&shared::gguf("gpt-2"), pre);
        let pair = Pair::new(&gguf, pre, Special::Plain);
        pair.compare(&format!("gpt-2 as {pre}"), 4000);
    }
}

fn compare_vocabularies(special: Special) {
    for name in ["qwen2", "llama-bpe", "gpt-2", "llama-spm"] {
        Pair::new(&shared::gguf(name), name, special).compare(name, 20_000);
    }
}

/// Our tokenizer and theirs of one vocabulary.
struct Pair {
    ours: Tokenizer,
    theirs: RefCell<Peer>,
    special: Special,
}

impl Pair {
    fn new(gguf: &Gguf, pre: &str, special: Special) -> Self {
        Self {
            ours: Tokenizer::from_gguf(gguf).expect("a vocabulary that is supported"),
            theirs: RefCell::new(Peer::new(&definition(gguf, pre, special))),
            special,
        }
    }

    /// Panics with the first text that becomes other tokens, made as small as it can be, and both.
    fn compare(&self, case: &str, cases: usize) {
        let mut runner = TestRunner::new(Config {
            rng_seed: RngSeed::Fixed(5),
            failure_persistence: None,
            ..Config::default()
        });
        let texts = text(self.control_tokens());
        for _ in 0..cases / BATCH {
            let batch = (0..BATCH).map(|_| texts.new_tree(&mut runner).expect("a text"));
            let mut batch: Vec<_> = batch.collect();
            if let Some(index) = self.first_difference(&batch) {
                let text = batch.swap_remove(index);
                let failure = runner.run_one(text, |text| self.agree(text));
                let failure = failure.expect_err("what differs does so alone, too");
                panic!("{case}, {:?}: {failure}", self.special);
            }
        }
    }

    fn first_difference(&self, texts: &[impl ValueTree<Value = String>]) -> Option<usize> {
        let texts: Vec<String> = texts.iter().map(ValueTree::current).collect();
        let theirs = self.theirs.borrow_mut().encode(&texts);
        let ours = texts
            .iter()
            .map(|text| self.ours.encode(text, self.special));
        ours.zip(theirs).position(|(ours, theirs)| ours != theirs)
    }

    fn agree(&self, text: String) -> Result<(), TestCaseError> {
        let ours = self.ours.encode(&text, self.special);
        let theirs = self.theirs.borrow_mut().encode(slice::from_ref(&text));
        prop_assert_eq!(&ours, &theirs[0], "ours is the left");
        Ok(())
    }

    fn control_tokens(&self) -> Vec<String> {
        let control = self.ours.control_tokens();
        control
            .map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned())
            .collect()
    }
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
