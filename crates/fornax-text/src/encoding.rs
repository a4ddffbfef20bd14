//! One text on its way to tokens: added tokens are taken out, what lies between is merged.
//! Owns when SentencePiece's space goes in front; knows nothing of files.

use crate::added::{AddedTokens, Fragment};
use crate::bpe::Bpe;
use crate::memo::Memo;
use crate::merge::Merging;
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
    /// Whether nothing stands before, or an added token: a word here gets its space.
    begins: bool,
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
            begins: true,
        }
    }

    /// Appends text.
    pub(crate) fn push_text(&mut self, text: &'t str, special: Special) {
        for fragment in self.added.fragments(text, special) {
            match fragment {
                Fragment::Token(token) => self.tokens.push(token),
                Fragment::Text(text) => self.push_words(text),
            }
            self.begins = matches!(fragment, Fragment::Token(_));
        }
    }

    /// Appends bytes that are no text: each becomes its own token, if it has one.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        let token = |&byte: &u8| match self.model {
            Model::Bpe(bpe) => bpe.byte_token(byte),
            Model::Spm(spm) => spm.byte_token(byte),
        };
        self.tokens.extend(bytes.iter().filter_map(token));
        self.begins &= bytes.is_empty();
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
                let prefixed = spm.space_prefix && self.begins;
                spm.encode(text, prefixed, memo, merging, tokens);
            }
        }
    }
}
