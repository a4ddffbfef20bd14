//! When SentencePiece's vocabularies read a text with a space in front of it, and when the space of
//! a first word is therefore nobody's.
//!
//! GGUF has one switch for it (`add_space_prefix`), which is llama.cpp's rule. A `tokenizer.json`
//! has Hugging Face's `prepend_scheme`, which looks at the text first; files made from folders keep
//! it under a key of their own. Must not know tokens.

use fornax_gguf::Gguf;

use crate::error::Error;

const SWITCH: &str = "tokenizer.ggml.add_space_prefix";
/// Other readers of GGUF do not know it.
const SCHEME: &str = "tokenizer.ggml.prepend_scheme";

/// Which texts get a space in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpacePrefix {
    /// None.
    Never,
    /// Those at the start and behind added tokens.
    Everywhere,
    /// The same, but for those that begin with a space (`always`).
    Missing,
    /// Only the one at the start, unless it begins with a space (`first`).
    MissingAtStart,
}

/// What stands before a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nothing, or the BOS that every text has in front of it.
    Start,
    /// An added token.
    BehindToken,
    /// Other text.
    Within,
}

impl SpacePrefix {
    /// What the file says; without a word of it, everywhere.
    ///
    /// # Errors
    /// A key of another type, a scheme that is not known.
    pub fn read(gguf: &Gguf) -> Result<SpacePrefix, Error> {
        match gguf.metadata().optional_str(SCHEME)? {
            Some("always") => Ok(SpacePrefix::Missing),
            Some("first") => Ok(SpacePrefix::MissingAtStart),
            Some(other) => Err(Error::Unsupported {
                file: gguf.source().to_owned(),
                key: SCHEME,
                found: other.to_owned(),
                supported: "always, first".to_owned(),
            }),
            None => Ok(match gguf.metadata().optional_bool(SWITCH)? {
                Some(false) => SpacePrefix::Never,
                _ => SpacePrefix::Everywhere,
            }),
        }
    }

    /// Whether texts in such a place get one, as far as they do not have it themselves.
    pub fn goes(self, place: Place) -> bool {
        match self {
            SpacePrefix::Never => false,
            SpacePrefix::Everywhere | SpacePrefix::Missing => place != Place::Within,
            SpacePrefix::MissingAtStart => place == Place::Start,
        }
    }

    /// Whether this text in such a place gets one.
    pub fn goes_before(self, text: &str, place: Place) -> bool {
        let has_one = text.starts_with([' ', '▁']);
        self.goes(place) && (self == SpacePrefix::Everywhere || !has_one)
    }
}
