//! The tokens of a model: their bytes, what each is for, and the ones with a role
//! (beginning, end of turn, …). Read from GGUF metadata, common to every kind of
//! tokenizer. Must not know how text is cut into tokens.

use fornax_gguf::Gguf;

use crate::error::Error;
use crate::merge::FastMap;

pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPES: &str = "tokenizer.ggml.token_type";
/// Files from folders have it, other readers of GGUF do not know it.
const FURTHER_ENDS: &str = "tokenizer.ggml.eog_token_ids";

/// No token that is looked for in text is longer, in bytes; SentencePiece's own limit is 16
/// characters. It bounds the time that a hostile vocabulary can take: a piece is split at each of
/// its characters, and a search for added tokens looks as far ahead as the longest.
pub(crate) const LONGEST_TOKEN: usize = 1024;

/// What a token is for (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for text that the vocabulary cannot spell.
    Unknown,
    /// Steers the conversation (`<|im_end|>`); never made from a user's words, never shown.
    Control,
    /// A word added to the vocabulary (`<think>`): taken whole wherever it stands, and shown.
    UserDefined,
    /// A hole in the id space.
    Unused,
    /// One byte, in vocabularies that fall back to bytes.
    Byte,
}

impl TokenKind {
    /// The kind that GGUF numbers so.
    fn from_number(number: i32) -> Option<TokenKind> {
        Some(match number {
            1 => TokenKind::Normal,
            2 => TokenKind::Unknown,
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            5 => TokenKind::Unused,
            6 => TokenKind::Byte,
            _ => return None,
        })
    }

    /// Whether it is taken whole wherever it stands in a text, before anything is merged.
    pub fn is_added(self) -> bool {
        matches!(
            self,
            TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined
        )
    }

    /// Whether a reader of the text is meant to see it.
    pub fn is_text(self) -> bool {
        matches!(
            self,
            TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte
        )
    }
}

/// The tokens with a role, as the file names them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Markers {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message within a turn.
    pub eom: Option<u32>,
    /// Further tokens that end an answer.
    pub further_ends: Vec<u32>,
    /// Stands for text that the vocabulary cannot spell.
    pub unknown: Option<u32>,
    /// Fills rows of a batch up.
    pub padding: Option<u32>,
    /// Whether the model expects `bos` in front; absent in some files.
    pub add_bos: Option<bool>,
    /// Whether the model expects `eos` behind; absent in some files.
    pub add_eos: Option<bool>,
}

/// Every token's bytes and kind, by id.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// The tokens' bytes, end to end in order of id.
    bytes: Vec<u8>,
    /// [n_tokens + 1] where each token begins in `bytes`, in bytes.
    starts: Vec<usize>,
    /// [n_tokens]
    kinds: Vec<TokenKind>,
    /// The tokens with a role.
    pub markers: Markers,
}

impl Vocabulary {
    /// Reads the vocabulary of `gguf`; `spelled` turns a stored token into the bytes it stands for.
    ///
    /// # Errors
    /// A key that is missing or of another type, lists of unequal length, an unknown kind,
    /// a role given to a token that is not there.
    pub(crate) fn read(
        gguf: &Gguf,
        spelled: impl Fn(&str, TokenKind) -> Vec<u8>,
    ) -> Result<Vocabulary, Error> {
        let texts = gguf.metadata().strings(TOKENS)?;
        let kinds = read_kinds(gguf, texts.len())?;
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        for (text, &kind) in texts.iter().zip(&kinds) {
            bytes.extend(spelled(text, kind));
            starts.push(bytes.len());
        }
        let markers = Markers::read(gguf, kinds.len())?;
        Ok(Vocabulary {
            bytes,
            starts,
            kinds,
            markers,
        })
    }

    /// How many tokens there are; their ids are 0 to this, exclusive.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    /// The bytes that `token` stands for.
    pub(crate) fn bytes(&self, token: u32) -> Option<&[u8]> {
        let token = usize::try_from(token).ok()?;
        let end = *self.starts.get(token.checked_add(1)?)?;
        Some(&self.bytes[self.starts[token]..end])
    }

    /// What `token` is for.
    pub(crate) fn kind(&self, token: u32) -> Option<TokenKind> {
        self.kinds.get(usize::try_from(token).ok()?).copied()
    }

    /// Ids, bytes and kinds of all tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], TokenKind)> {
        (0u32..)
            .zip(&self.kinds)
            .zip(self.starts.windows(2))
            .map(|((token, &kind), bounds)| (token, &self.bytes[bounds[0]..bounds[1]], kind))
    }
}

impl Markers {
    fn read(gguf: &Gguf, tokens: usize) -> Result<Markers, Error> {
        let metadata = gguf.metadata();
        let token = |key: &'static str| -> Result<Option<u32>, Error> {
            let Some(token) = metadata.optional_u32(key)? else {
                return Ok(None);
            };
            if token as usize >= tokens {
                let problem = format!("{token} is not one of the {tokens} tokens");
                return Err(damaged(gguf, key, problem));
            }
            Ok(Some(token))
        };
        let further_ends = metadata.optional_u32s(FURTHER_ENDS)?.unwrap_or_default();
        if let Some(token) = further_ends.iter().find(|&&token| token as usize >= tokens) {
            let problem = format!("{token} is not one of the {tokens} tokens");
            return Err(damaged(gguf, FURTHER_ENDS, problem));
        }
        let markers = Markers {
            further_ends,
            bos: token("tokenizer.ggml.bos_token_id")?,
            eos: token("tokenizer.ggml.eos_token_id")?,
            eot: token("tokenizer.ggml.eot_token_id")?,
            eom: token("tokenizer.ggml.eom_token_id")?,
            unknown: token("tokenizer.ggml.unknown_token_id")?,
            padding: token("tokenizer.ggml.padding_token_id")?,
            add_bos: metadata.optional_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.optional_bool("tokenizer.ggml.add_eos_token")?,
        };
        for (key, asked, id, name) in [
            (
                "tokenizer.ggml.add_bos_token",
                markers.add_bos,
                markers.bos,
                "bos_token_id",
            ),
            (
                "tokenizer.ggml.add_eos_token",
                markers.add_eos,
                markers.eos,
                "eos_token_id",
            ),
        ] {
            if asked == Some(true) && id.is_none() {
                let problem = format!("is true, but there is no tokenizer.ggml.{name}");
                return Err(damaged(gguf, key, problem));
            }
        }
        Ok(markers)
    }
}

/// [n_tokens] the kinds, one for each token.
fn read_kinds(gguf: &Gguf, tokens: usize) -> Result<Vec<TokenKind>, Error> {
    let numbers = gguf.metadata().i32s(TOKEN_TYPES)?;
    if tokens == 0 {
        return Err(damaged(gguf, TOKENS, "is empty".to_owned()));
    }
    if numbers.len() != tokens {
        let problem = format!("has {} entries for {tokens} tokens", numbers.len());
        return Err(damaged(gguf, TOKEN_TYPES, problem));
    }
    let kind = |(token, &number): (usize, &i32)| {
        TokenKind::from_number(number).ok_or_else(|| {
            let problem = format!("token {token} has type {number}; types are 1 to 6");
            damaged(gguf, TOKEN_TYPES, problem)
        })
    };
    numbers.iter().enumerate().map(kind).collect()
}

/// The id of each stored token.
///
/// # Errors
/// Two tokens that are the same.
pub(crate) fn ids_by_text(gguf: &Gguf) -> Result<FastMap<&str, u32>, Error> {
    let texts = gguf.metadata().strings(TOKENS)?;
    let mut ids = FastMap::with_capacity_and_hasher(texts.len(), Default::default());
    for (id, text) in (0u32..).zip(texts) {
        if let Some(first) = ids.insert(text.as_str(), id) {
            let problem = format!("tokens {first} and {id} are both {text:?}");
            return Err(damaged(gguf, TOKENS, problem));
        }
    }
    Ok(ids)
}

/// The error for a vocabulary that contradicts itself at `key`.
pub(crate) fn damaged(gguf: &Gguf, key: &'static str, problem: String) -> Error {
    Error::Vocabulary {
        file: gguf.source().to_owned(),
        key,
        problem,
    }
}
