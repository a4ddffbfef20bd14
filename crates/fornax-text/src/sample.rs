//! A small vocabulary for this crate's unit tests, and how often they try.

use fornax_gguf::{Gguf, GgufWriter, Value};
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
    /// SentencePiece's tokens with their scores and types, in place of bytes and merges.
    pub pieces: Vec<(&'static str, f32, i32)>,
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
            pieces: Vec::new(),
            numbers: Vec::new(),
            flags: Vec::new(),
            texts: Vec::new(),
        }
    }
}

impl Sample {
    /// A small vocabulary of SentencePiece's kind, with all bytes, `<0x00>` having the id 3.
    pub(crate) fn spm() -> Sample {
        let bytes = (0..=255).map(|byte| (&*format!("<0x{byte:02X}>").leak(), 0.0, 6));
        let mut pieces = vec![("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)];
        pieces.extend(bytes);
        pieces.extend([
            ("▁", -10.0, 1),
            ("a", -11.0, 1),
            ("b", -12.0, 1),
            ("c", -13.0, 1),
            ("é", -14.0, 1),
            ("▁▁", -2.0, 1),
            ("▁a", -3.0, 1),
            ("ab", -4.0, 1),
            ("bc", -1.0, 1),
            ("▁ab", -5.0, 1),
            ("abc", -6.0, 1),
            ("aa", -7.0, 1),
            ("ca", -7.0, 1),
            ("xa", -8.0, 1),
            ("b▁c", -9.0, 1),
            ("b▁", -9.5, 1),
            ("<end>", 0.0, 3),
            ("<think>", 0.0, 4),
            ("[PAD]", 0.0, 5),
        ]);
        Sample {
            model: "llama",
            pieces,
            numbers: vec![
                ("ggml.bos_token_id", 1),
                ("ggml.eos_token_id", 2),
                ("ggml.unknown_token_id", 0),
            ],
            ..Sample::default()
        }
    }

    /// All tokens in order of id: the 256 bytes, the merged ones, the added ones.
    pub(crate) fn tokens(&self) -> Vec<String> {
        if !self.pieces.is_empty() {
            return self.pieces.iter().map(|piece| piece.0.to_owned()).collect();
        }
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
        Gguf::from_bytes("sample.gguf", self.bytes()).unwrap()
    }

    /// The sample as a file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        let mut set = |key: &str, value: Value| {
            writer.set(&format!("tokenizer.{key}"), value).unwrap();
        };
        set("ggml.model", self.model.into());
        set("ggml.tokens", self.tokens().into());
        set("ggml.token_type", self.types().into());
        if self.pieces.is_empty() {
            let merges = self.merges.iter().map(|merge| (*merge).to_owned());
            set("ggml.pre", self.pre.into());
            set("ggml.merges", merges.collect::<Vec<String>>().into());
        } else {
            let scores: Vec<f32> = self.pieces.iter().map(|piece| piece.1).collect();
            set("ggml.scores", scores.into());
        }
        for (name, number) in &self.numbers {
            set(name, (*number).into());
        }
        for (name, flag) in &self.flags {
            set(name, (*flag).into());
        }
        for (name, text) in &self.texts {
            set(name, (*text).into());
        }
        writer.start(Vec::new()).unwrap().finish().unwrap()
    }

    fn types(&self) -> Vec<i32> {
        if !self.pieces.is_empty() {
            return self.pieces.iter().map(|piece| piece.2).collect();
        }
        let plain = vec![1; self.tokens().len() - self.added.len()];
        let added = self.added.iter().map(|(_, kind)| *kind);
        plain.into_iter().chain(added).collect()
    }

    pub(crate) fn tokenizer(&self) -> Tokenizer {
        Tokenizer::from_gguf(&self.gguf()).unwrap()
    }

    /// What is wrong with this sample.
    pub(crate) fn error(&self) -> String {
        Tokenizer::from_gguf(&self.gguf()).unwrap_err().to_string()
    }
}
