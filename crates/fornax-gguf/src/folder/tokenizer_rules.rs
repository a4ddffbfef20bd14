//! What of a `tokenizer.json` GGUF can say, and the refusal of all else by name.
//!
//! Owns every setting that changes tokens beside the vocabulary itself. Source of their meaning:
//! the `tokenizers` crate (<https://docs.rs/tokenizers>), with which the tests compare. Must not
//! know ids.

use serde_json::Value;

use super::document::Document;
use super::tokenizer::FILE;
use super::vocabulary::{BYTE, Vocabulary};
use super::{pre_tokenizer, refuse};
use crate::{Error, error::Quoted};

/// What SentencePiece writes for a space.
const SPACE: &str = "▁";

/// How a vocabulary makes tokens of text.
pub(super) enum Kind {
    /// By merging bytes.
    ByteLevel {
        /// What GGUF calls the way of cutting.
        pre: &'static str,
        /// Whether words that are tokens are taken whole, where the name does not say so.
        ignore_merges: Option<bool>,
    },
    /// By merging characters, with bytes for those that have no token.
    Pieces {
        /// Whether a space is put before the text.
        prefix: Prefix,
    },
}

/// Which texts get a space in front of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    /// None.
    Never,
    /// Each between added tokens, whatever it begins with.
    Everywhere,
    /// As Hugging Face's scheme of this name says.
    Scheme(&'static str),
}

/// A tokenizer under examination.
pub(super) struct Rules<'a> {
    pub folder: &'a str,
    pub tokenizer: &'a Document,
    pub model: &'a Document,
    pub vocabulary: &'a Vocabulary,
}

impl Rules<'_> {
    /// Which kind it is.
    ///
    /// # Errors
    /// Any setting that this kind has no key for, unless it changes nothing.
    pub fn kind(&self) -> Result<Kind, Error> {
        self.check_model()?;
        self.check_added_tokens()?;
        let falls_back = self.model.optional_bool("byte_fallback")? == Some(true);
        let ignore_merges = self.model.optional_bool("ignore_merges")? == Some(true);
        let pre = self.part("pre_tokenizer");
        if falls_back && !pre_tokenizer::is_byte_level(pre) {
            if ignore_merges {
                return Err(self.model("ignore_merges", "is true with byte_fallback"));
            }
            return self.pieces(pre);
        }
        self.check_byte_level(falls_back)?;
        let name = pre_tokenizer::name(pre).map_err(|steps| {
            refuse(
                self.folder,
                FILE,
                format!("no known pre-tokenizer cuts like this one: {steps}"),
                "convert the model to GGUF with llama.cpp's converter, which may know it",
            )
        })?;
        // What the name implies for every reader, where there is a name for both.
        let (pre, implied) = match (name, ignore_merges) {
            ("llama-bpe", false) => ("smaug-bpe", false),
            ("llama-bpe" | "tekken", _) => (name, true),
            _ => (name, false),
        };
        Ok(Kind::ByteLevel {
            pre,
            ignore_merges: (implied != ignore_merges).then_some(ignore_merges),
        })
    }

    /// Settings of the model that no key says.
    fn check_model(&self) -> Result<(), Error> {
        if self
            .model
            .optional_number("dropout")?
            .is_some_and(|part| part != 0.0)
        {
            return Err(self.model("dropout", "is not 0"));
        }
        for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if self
                .model
                .optional_str(key)?
                .is_some_and(|text| !text.is_empty())
            {
                return Err(self.model(key, "is not empty"));
            }
        }
        self.model.optional_bool("fuse_unk")?;
        Ok(())
    }

    /// An added token is found wherever it stands, and takes nothing with it.
    fn check_added_tokens(&self) -> Result<(), Error> {
        let added = self.tokenizer.key("added_tokens").and_then(Value::as_array);
        for token in added.into_iter().flatten() {
            for key in ["single_word", "lstrip", "rstrip"] {
                if token.get(key).and_then(Value::as_bool) == Some(true) {
                    let name = token.get("content").and_then(Value::as_str).unwrap_or("");
                    return Err(self.unsupported(format!(
                        "the added token {} has {key} of true",
                        Quoted(name)
                    )));
                }
            }
        }
        Ok(())
    }

    fn check_byte_level(&self, falls_back: bool) -> Result<(), Error> {
        // Text is never normalised here, as in llama.cpp: what a user wrote comes back as it was.
        for step in steps(self.part("normalizer"), "normalizers") {
            if kind(step) != "NFC" {
                return Err(self.unsupported(format!("its normalizer is {}", kind(step))));
            }
        }
        let letters = self
            .vocabulary
            .ids
            .keys()
            .filter(|token| token.chars().count() == 1);
        let is_complete = letters.filter(|letter| is_byte_letter(letter)).count() == 256;
        let unknown = self.model.optional_str("unk_token")?;
        match (is_complete, unknown) {
            (false, Some(token)) => {
                let problem = format!(
                    "is {}, and some bytes have no token: it would stand for them",
                    Quoted(token)
                );
                Err(self.model("unk_token", &problem))
            }
            (false, None) if falls_back => Err(self.model(
                "byte_fallback",
                "is true with a byte-level pre-tokenizer and bytes that have no token",
            )),
            _ => Ok(()),
        }
    }

    fn pieces(&self, pre: &Value) -> Result<Kind, Error> {
        let bytes = self.vocabulary.types.iter().filter(|&&kind| kind == BYTE);
        let fuses = self.model.optional_bool("fuse_unk")? == Some(true);
        if fuses && bytes.count() < 256 {
            return Err(self.model("fuse_unk", "is true, and some bytes have no token"));
        }
        let (mut prefix, mut marks_spaces) = (Prefix::Never, false);
        for step in steps(self.part("normalizer"), "normalizers") {
            match kind(step) {
                "Prepend" if text(step, "prepend") == Some(SPACE) && prefix == Prefix::Never => {
                    prefix = Prefix::Everywhere;
                }
                "Replace" if pattern(step) == Some(" ") && text(step, "content") == Some(SPACE) => {
                    marks_spaces = true;
                }
                other => {
                    let problem = format!("its normalizer is {other}, not one of spaces");
                    return Err(self.unsupported(problem));
                }
            }
        }
        if !self.part("normalizer").is_null() {
            self.check_normalized_tokens(prefix)?;
        }
        for step in steps(pre, "pretokenizers") {
            match kind(step) {
                "Metaspace" if flag(step, "split") == Some(false) && is_space(step) => {
                    marks_spaces = true;
                    // What already begins with a space gets no other.
                    if prefix == Prefix::Never {
                        prefix = self.prepend_scheme(step)?;
                    }
                }
                // Gemma's, which finds no space any more.
                "Split" if pattern(step) == Some(" ") && marks_spaces => {}
                other => {
                    let problem =
                        format!("its pre-tokenizer is {other}, which cuts before merging");
                    return Err(self.unsupported(problem));
                }
            }
        }
        match marks_spaces {
            true => Ok(Kind::Pieces { prefix }),
            false => Err(self.unsupported(format!("nothing in it writes {SPACE} for a space"))),
        }
    }

    fn prepend_scheme(&self, step: &Value) -> Result<Prefix, Error> {
        match text(step, "prepend_scheme") {
            None | Some("always") => Ok(Prefix::Scheme("always")),
            Some("first") => Ok(Prefix::Scheme("first")),
            Some("never") => Ok(Prefix::Never),
            Some(other) => {
                let problem = format!("its pre-tokenizer has prepend_scheme {}", Quoted(other));
                Err(self.unsupported(problem))
            }
        }
    }

    /// Added tokens of the kind that is looked for in normalized text, where normalizing changes
    /// them: in front of each stands a space then, or there are spaces in it.
    fn check_normalized_tokens(&self, prefix: Prefix) -> Result<(), Error> {
        let added = self.tokenizer.key("added_tokens").and_then(Value::as_array);
        let normalized = |token: &&Value| flag(token, "normalized") == Some(true);
        for token in added.into_iter().flatten().filter(normalized) {
            let name = text(token, "content").unwrap_or("");
            if prefix == Prefix::Everywhere || name.contains([' ', '▁']) {
                let problem = format!(
                    "the added token {} has normalized of true, so that it is found only where \
                     its normalized form stands, which is not supported",
                    Quoted(name)
                );
                let advice = "set it to false there to have the token found wherever it stands, as \
                              other programs that read GGUF do";
                return Err(refuse(self.folder, FILE, problem, advice));
            }
        }
        Ok(())
    }

    fn part(&self, key: &str) -> &Value {
        self.tokenizer.value().get(key).unwrap_or(&Value::Null)
    }

    /// The error for a setting of the model.
    fn model(&self, key: &str, problem: &str) -> Error {
        self.unsupported(format!("model.{key} {problem}"))
    }

    fn unsupported(&self, problem: String) -> Error {
        refuse(
            self.folder,
            FILE,
            format!("{problem}, which is not supported"),
            "use a model with another tokenizer",
        )
    }
}

/// The steps that a part of the tokenizer has, in order: itself, or those of a sequence.
fn steps<'a>(part: &'a Value, list: &str) -> Vec<&'a Value> {
    match kind(part) {
        _ if part.is_null() => Vec::new(),
        "Sequence" => {
            let list_of = part.get(list).and_then(Value::as_array);
            let inner = list_of.into_iter().flatten();
            inner.flat_map(|step| steps(step, list)).collect()
        }
        _ => vec![part],
    }
}

fn kind(step: &Value) -> &str {
    text(step, "type").unwrap_or("of no type")
}

fn text<'a>(step: &'a Value, key: &str) -> Option<&'a str> {
    step.get(key).and_then(Value::as_str)
}

fn flag(step: &Value, key: &str) -> Option<bool> {
    step.get(key).and_then(Value::as_bool)
}

/// The string that a step looks for.
fn pattern(step: &Value) -> Option<&str> {
    step.get("pattern")?.get("String")?.as_str()
}

fn is_space(step: &Value) -> bool {
    text(step, "replacement").is_none_or(|replacement| replacement == SPACE)
}

/// Whether a character stands for a byte in GPT-2's alphabet: the printable ones of Latin-1 for
/// themselves, and 68 from U+0100 on for the others.
fn is_byte_letter(letter: &str) -> bool {
    let is_printable = |letter: char| matches!(letter, '!'..='~' | '¡'..='¬' | '®'..='ÿ');
    let is_other = |letter: char| matches!(letter, '\u{100}'..='\u{143}');
    letter
        .chars()
        .all(|letter| is_printable(letter) || is_other(letter))
}
