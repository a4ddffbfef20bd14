//! A small vocabulary for this crate's unit tests, and how often they try.

use fornax_gguf::{Gguf, GgufWriter};
use proptest::test_runner::{Config, RngSeed};

use crate::byte_alphabet::letter_of;
use crate::tokenizer::Tokenizer;

/// Property tests that try the same cases every time.
pub(crate) fn repeatable(cases: u32) -> Config {
    Config {
        cases,
        rng_seed: RngSeed::Fixed(20_261_121),
        failure_persistence: None,
        ..Config::default()
    }
}

/// What the sample file is made of; a test changes what it is about.
pub(crate) struct Sample {
    pub model: &'static str,
    pub pre: &'static str,
    /// The letter of one byte that gets no token.
    pub without: Option<char>,
    pub merges: Vec<&'static str>,
    /// Tokens behind the bytes and the merged ones, with their types.
    pub added: Vec<(&'static str, i32)>,
    /// Further metadata: names below `tokenizer.` and their numbers.
    pub numbers: Vec<(&'static str, u32)>,
    /// Further metadata: names below `tokenizer.` and their truth values.
    pub flags: Vec<(&'static str, bool)>,
    /// Further metadata: names below `tokenizer.` and their texts.
    pub texts: Vec<(&'static str, &'static str)>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample {
            model: "gpt2",
            pre: "gpt-2",
            without: None,
            merges: vec![
                "a b",
                "b a",
                "ab ab",
                "l o",
                "lo w",
                "Ġ lo",
                "e r",
                "abab abab",
                "a a",
                "Ġ Ġ",
            ],
            added: vec![
                ("<bos>", 3),
                ("<eos>", 3),
                ("<end>", 3),
                ("<think>", 4),
                ("<th", 4),
                ("[PAD]", 5),
            ],
            numbers: Vec::new(),
            flags: Vec::new(),
            texts: Vec::new(),
        }
    }
}

impl Sample {
    /// All tokens in order of id: the 256 bytes, the merged ones, the added ones.
    pub(crate) fn tokens(&self) -> Vec<String> {
        let letters = (0..=255).map(letter_of);
        let bytes = letters
            .filter(|letter| Some(*letter) != self.without)
            .map(String::from);
        let merged = self.merges.iter().map(|merge| merge.replacen(' ', "", 1));
        let added = self.added.iter().map(|(text, _)| (*text).to_owned());
        bytes.chain(merged).chain(added).collect()
    }

    /// The id of a token by its stored text.
    pub(crate) fn id(&self, text: &str) -> u32 {
        let at = self.tokens().iter().position(|token| token == text);
        at.expect("a token of the sample") as u32
    }

    pub(crate) fn gguf(&self) -> Gguf {
        let tokens = self.tokens();
        let plain = vec![1; tokens.len() - self.added.len()];
        let added = self.added.iter().map(|(_, kind)| *kind);
        let types: Vec<i32> = plain.into_iter().chain(added).collect();
        let merges: Vec<String> = self
            .merges
            .iter()
            .map(|merge| (*merge).to_owned())
            .collect();
        let mut writer = GgufWriter::new();
        writer.set("tokenizer.ggml.model", self.model).unwrap();
        writer.set("tokenizer.ggml.pre", self.pre).unwrap();
        writer.set("tokenizer.ggml.tokens", tokens).unwrap();
        writer.set("tokenizer.ggml.token_type", types).unwrap();
        writer.set("tokenizer.ggml.merges", merges).unwrap();
        for (name, number) in &self.numbers {
            writer.set(&format!("tokenizer.{name}"), *number).unwrap();
        }
        for (name, flag) in &self.flags {
            writer.set(&format!("tokenizer.{name}"), *flag).unwrap();
        }
        for (name, text) in &self.texts {
            writer.set(&format!("tokenizer.{name}"), *text).unwrap();
        }
        let bytes = writer.start(Vec::new()).unwrap().finish().unwrap();
        Gguf::from_bytes("sample.gguf", bytes).unwrap()
    }

    pub(crate) fn tokenizer(&self) -> Tokenizer {
        Tokenizer::from_gguf(&self.gguf()).unwrap()
    }

    /// What is wrong with this sample.
    pub(crate) fn error(&self) -> String {
        Tokenizer::from_gguf(&self.gguf()).unwrap_err().to_string()
    }
}
