//! The tokenizer of a model: text to tokens and tokens to bytes, whatever the
//! kind of vocabulary. Must not know chat templates or how text is streamed.

use std::collections::HashSet;
use std::sync::Arc;

use fornax_gguf::Gguf;

use crate::added::AddedTokens;
use crate::bpe::Bpe;
use crate::encoding::{Encoding, Model};
use crate::error::Error;
use crate::space_prefix::Place;
use crate::spm::Spm;
use crate::vocabulary::{TokenKind, Vocabulary};

const MODEL: &str = "tokenizer.ggml.model";

/// What `Tokenizer::encode` makes of text that reads like a control token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// It is the control token: for prompts that a chat template has written.
    Parse,
    /// It is ordinary text: for words of people, who must not steer the conversation with them.
    /// User-defined tokens are words and taken whole here too.
    Plain,
}

/// Whether control tokens are part of the text that tokens are turned into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ControlTokens {
    /// Left out, as a reader wants it.
    Hide,
    /// Written out, as a debugger wants it.
    Show,
}

/// A model's tokenizer. Cheap to clone: clones share the vocabulary.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vocabulary: Vocabulary,
    added: AddedTokens,
    model: Model,
    add_bos: bool,
    add_eos: bool,
}

impl Tokenizer {
    /// Reads the tokenizer from the metadata of `gguf`.
    ///
    /// # Errors
    /// A kind of tokenizer or pre-tokenizer that is not supported (nothing is guessed), keys that
    /// are missing or of another type, a vocabulary that contradicts itself.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let (vocabulary, model) = match gguf.metadata().str(MODEL)? {
            "gpt2" => {
                let (vocabulary, bpe) = Bpe::read(gguf)?;
                (vocabulary, Model::Bpe(bpe))
            }
            "llama" => {
                let (vocabulary, spm) = Spm::read(gguf)?;
                (vocabulary, Model::Spm(spm))
            }
            other => {
                return Err(Error::Unsupported {
                    file: gguf.source().to_owned(),
                    key: MODEL,
                    found: other.to_owned(),
                    supported: "gpt2, llama".to_owned(),
                });
            }
        };
        let bos_by_default = match &model {
            Model::Bpe(bpe) => bpe.scheme.bos_by_default,
            Model::Spm(_) => true,
        };
        let markers = &vocabulary.markers;
        let inner = Inner {
            add_bos: markers
                .add_bos
                .unwrap_or(bos_by_default && markers.bos.is_some()),
            add_eos: markers.add_eos.unwrap_or(false),
            added: AddedTokens::of(gguf, &vocabulary)?,
            vocabulary,
            model,
        };
        Ok(Tokenizer {
            inner: Arc::new(inner),
        })
    }

    /// The tokens of `text`; never adds a BOS or EOS that is not written there. No Unicode
    /// normalization takes place, so that every text comes back from its tokens, but for what a
    /// vocabulary cannot spell: bytes without a token (SmolLM's lacks 21 rare ones), and in
    /// SentencePiece's the character `▁`, which is a space there. Takes time near linear in the
    /// text, whatever it is.
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut encoding = self.encoding(text.len());
        encoding.push_text(text, special);
        encoding.finish()
    }

    /// The tokens of bytes that need not be UTF-8: each byte that is no part of a character becomes
    /// its own token, so that any bytes come back from their tokens.
    pub fn encode_bytes(&self, bytes: &[u8], special: Special) -> Vec<u32> {
        let mut encoding = self.encoding(bytes.len());
        for chunk in bytes.utf8_chunks() {
            encoding.push_text(chunk.valid(), special);
            encoding.push_bytes(chunk.invalid());
        }
        encoding.finish()
    }

    fn encoding<'t>(&self, bytes: usize) -> Encoding<'_, 't> {
        Encoding::new(&self.inner.model, &self.inner.added, bytes)
    }

    /// Puts BOS in front and EOS behind as the model asks, unless they are there already.
    pub fn with_markers(&self, mut tokens: Vec<u32>) -> Vec<u32> {
        if self.add_bos() && tokens.first().copied() != self.bos() {
            tokens.splice(0..0, self.bos());
        }
        if self.add_eos() && tokens.last().copied() != self.eos() {
            tokens.extend(self.eos());
        }
        tokens
    }

    /// The bytes that `tokens` spell; they need not be UTF-8. The space that `encode` put in
    /// front of the text is taken away again.
    ///
    /// # Errors
    /// A token that the vocabulary does not have.
    pub fn decode(&self, tokens: &[u32], control: ControlTokens) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut place = Place::Start;
        for &token in tokens {
            bytes.extend_from_slice(self.visible_bytes(token, control, place)?);
            place = self.place_behind(token, place);
        }
        Ok(bytes)
    }

    /// The bytes that `token` adds to a text: none for a hidden control token. A space in front of
    /// a word may be one that `encode` put there, if it does so in this `place`.
    ///
    /// # Errors
    /// A token that the vocabulary does not have.
    pub(crate) fn visible_bytes(
        &self,
        token: u32,
        control: ControlTokens,
        place: Place,
    ) -> Result<&[u8], Error> {
        let vocabulary = &self.inner.vocabulary;
        let (Some(bytes), Some(kind)) = (vocabulary.bytes(token), vocabulary.kind(token)) else {
            return Err(Error::UnknownToken {
                token,
                last: vocabulary.len() as u32 - 1,
            });
        };
        if !kind.is_text() && control == ControlTokens::Hide {
            return Ok(&[]);
        }
        match bytes.strip_prefix(b" ") {
            Some(word) if kind == TokenKind::Normal && self.prefixes_space(place) => Ok(word),
            _ => Ok(bytes),
        }
    }

    /// Where a text behind `token` stands, when this token stands in that place.
    pub(crate) fn place_behind(&self, token: u32, place: Place) -> Place {
        match self.token_kind(token).is_some_and(TokenKind::is_added) {
            true if place == Place::Start && self.bos() == Some(token) => Place::Start,
            true => Place::BehindToken,
            false => Place::Within,
        }
    }

    /// Where a text behind all of `tokens` stands.
    pub(crate) fn place_behind_all(&self, tokens: &[u32]) -> Place {
        match tokens {
            [] => Place::Start,
            [only] => self.place_behind(*only, Place::Start),
            [.., last] => self.place_behind(*last, Place::Within),
        }
    }

    fn prefixes_space(&self, place: Place) -> bool {
        matches!(&self.inner.model, Model::Spm(spm) if spm.space_prefix.goes(place))
    }

    /// The bytes that `token` stands for, shown or not; `None` where there is no such token.
    pub fn token_bytes(&self, token: u32) -> Option<&[u8]> {
        self.inner.vocabulary.bytes(token)
    }

    /// What `token` is for; `None` where there is no such token.
    pub fn token_kind(&self, token: u32) -> Option<TokenKind> {
        self.inner.vocabulary.kind(token)
    }

    /// Whether `token` steers the conversation and is no part of its text.
    pub fn is_control(&self, token: u32) -> bool {
        self.token_kind(token) == Some(TokenKind::Control)
    }

    /// The control tokens and the bytes they are written as.
    pub fn control_tokens(&self) -> impl Iterator<Item = (u32, &[u8])> {
        let tokens = self.inner.vocabulary.iter();
        tokens
            .filter(|(_, _, kind)| *kind == TokenKind::Control)
            .map(|(token, bytes, _)| (token, bytes))
    }

    /// How many tokens there are; their ids are 0 to this, exclusive.
    pub fn vocabulary_len(&self) -> usize {
        self.inner.vocabulary.len()
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.inner.vocabulary.markers.bos
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.inner.vocabulary.markers.eos
    }

    /// The token for text that the vocabulary cannot spell, if the model has one.
    pub fn unknown(&self) -> Option<u32> {
        self.inner.vocabulary.markers.unknown
    }

    /// The token that fills short rows of a batch up in training, if the model has one.
    pub fn padding(&self) -> Option<u32> {
        self.inner.vocabulary.markers.padding
    }

    /// Whether the model expects a BOS in front of every text: what the file says, and where it
    /// says nothing, what its tokenizer implies (SentencePiece, Llama 3, tekken: yes; others: no).
    pub fn add_bos(&self) -> bool {
        self.inner.add_bos
    }

    /// Whether the model expects an EOS behind every text.
    pub fn add_eos(&self) -> bool {
        self.inner.add_eos
    }

    /// The tokens that end a generation by the file's metadata: EOS, EOT, EOM and what else it lists,
    /// each once.
    /// A chat adds those of its template: `ChatTemplate::stop_tokens`.
    pub fn stop_tokens(&self) -> Vec<u32> {
        let markers = &self.inner.vocabulary.markers;
        let named = [markers.eos, markers.eot, markers.eom];
        let further = markers.further_ends.iter().copied();
        let tokens = named.into_iter().flatten().chain(further);
        // A file may list as many as it has tokens.
        let mut seen = HashSet::new();
        tokens.filter(|&token| seen.insert(token)).collect()
    }
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
