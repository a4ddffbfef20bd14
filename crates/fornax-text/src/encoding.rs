//! One text on its way to tokens: added tokens are taken out, what lies between is merged.
//! Owns when SentencePiece's space goes in front; knows nothing of files.

use crate::added::{AddedTokens, Fragment};
use crate::bpe::Bpe;
use crate::memo::Memo;
use crate::merge::Merging;
use crate::space_prefix::Place;
use crate::spm::Spm;
use crate::tokenizer::Special;

/// The kinds of tokenizer.
#[derive(Debug)]
pub(crate) enum Model {
    Bpe(Bpe),
    Spm(Spm),
}

/// A text of which some is tokens already.
pub(crate) struct Encoding<'m, 't> {
    model: &'m Model,
    added: &'m AddedTokens,
    memo: Memo<'t>,
    merging: Merging,
    tokens: Vec<u32>,
    /// What stands before.
    place: Place,
}

impl<'m, 't> Encoding<'m, 't> {
    /// Begins a text of `bytes` bytes.
    pub(crate) fn new(model: &'m Model, added: &'m AddedTokens, bytes: usize) -> Self {
        Encoding {
            model,
            added,
            memo: Memo::for_text(bytes),
            merging: Merging::default(),
            tokens: Vec::with_capacity(bytes / 3),
            place: Place::Start,
        }
    }

    /// Appends text.
    pub(crate) fn push_text(&mut self, text: &'t str, special: Special) {
        for fragment in self.added.fragments(text, special) {
            match fragment {
                Fragment::Token(token) => self.tokens.push(token),
                Fragment::Text(text) => self.push_words(text),
            }
            self.place = match fragment {
                Fragment::Token(_) => Place::BehindToken,
                Fragment::Text(_) => Place::Within,
            };
        }
    }

    /// Appends bytes that are no text: each becomes its own token, if it has one.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        let token = |&byte: &u8| match self.model {
            Model::Bpe(bpe) => bpe.byte_token(byte),
            Model::Spm(spm) => spm.byte_token(byte),
        };
        self.tokens.extend(bytes.iter().filter_map(token));
        if !bytes.is_empty() {
            self.place = Place::Within;
        }
    }

    /// The tokens of all that was appended.
    pub(crate) fn finish(self) -> Vec<u32> {
        self.tokens
    }

    fn push_words(&mut self, text: &'t str) {
        let (memo, merging, tokens) = (&mut self.memo, &mut self.merging, &mut self.tokens);
        match self.model {
            Model::Bpe(bpe) => bpe.encode(text, memo, merging, tokens),
            Model::Spm(spm) => {
                let prefixed = spm.space_prefix.goes_before(text, self.place);
                spm.encode(text, prefixed, memo, merging, tokens);
            }
        }
    }
}
