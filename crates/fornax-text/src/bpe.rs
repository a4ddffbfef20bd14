//! Byte-level byte-pair encoding, as in GPT-2: text is cut into pieces, and the tokens of a
//! piece's bytes are merged in the order that was learned. Knows no special tokens and no chat.

use fornax_gguf::Gguf;

use crate::byte_alphabet::{letter_of, spelled_bytes};
use crate::error::Error;
use crate::listed_merges;
use crate::memo::Memo;
use crate::merge::{FastMap, Merges, Merging};
use crate::split::Scheme;
use crate::vocabulary::{TOKENS, TokenKind, Vocabulary, damaged, ids_by_text};

const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
/// Whether words that are tokens are taken whole, where the pre-tokenizer's name implies the
/// opposite; files from folders have it, other readers of GGUF do not know it.
const IGNORE_MERGES: &str = "tokenizer.ggml.ignore_merges";

/// The merges of a vocabulary and how text is cut before they apply.
#[derive(Debug)]
pub(crate) struct Bpe {
    pub scheme: Scheme,
    /// [256] the token of each single byte, where it has one.
    byte_tokens: [Option<u32>; 256],
    merges: Merges,
    /// The tokens that are text, by their bytes; only where whole pieces are taken at once.
    whole_pieces: Option<FastMap<Box<[u8]>, u32>>,
}

impl Bpe {
    /// Reads vocabulary and merges of `gguf`.
    ///
    /// # Errors
    /// A pre-tokenizer that is not supported, a merge of something that is not a token, two
    /// tokens or merges that are the same, a printable ASCII character without a token.
    pub(crate) fn read(gguf: &Gguf) -> Result<(Vocabulary, Bpe), Error> {
        let name = gguf.metadata().str(PRE)?;
        let mut scheme = Scheme::from_name(name).ok_or_else(|| Error::Unsupported {
            file: gguf.source().to_owned(),
            key: PRE,
            found: name.to_owned(),
            supported: Scheme::names(),
        })?;
        if let Some(whole) = gguf.metadata().optional_bool(IGNORE_MERGES)? {
            scheme.whole_pieces = whole;
        }
        let vocabulary = Vocabulary::read(gguf, spelled)?;
        let ids = ids_by_text(gguf)?;
        let bpe = Bpe {
            scheme,
            byte_tokens: byte_tokens(gguf, &ids)?,
            merges: listed_merges::read(gguf, MERGES, &vocabulary, &ids)?,
            whole_pieces: scheme.whole_pieces.then(|| text_tokens(&vocabulary)),
        };
        Ok((vocabulary, bpe))
    }

    /// Appends the tokens of `text`, which holds no added tokens, to `out`.
    pub(crate) fn encode<'t>(
        &self,
        text: &'t str,
        memo: &mut Memo<'t>,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        for piece in self.scheme.pieces(text) {
            let piece = piece.as_bytes();
            memo.repeat_or(piece, out, |out| self.encode_piece(piece, merging, out));
        }
    }

    /// The token of a single byte, where the vocabulary has one.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.byte_tokens[usize::from(byte)]
    }

    fn encode_piece(&self, piece: &[u8], merging: &mut Merging, out: &mut Vec<u32>) {
        if let Some(whole_pieces) = &self.whole_pieces
            && let Some(&token) = whole_pieces.get(piece)
        {
            return out.push(token);
        }
        for token in piece.iter().filter_map(|&byte| self.byte_token(byte)) {
            merging.push(token);
        }
        merging.finish(&self.merges, out);
    }
}

/// The bytes that a stored token stands for: byte letters for text, itself for added tokens.
fn spelled(text: &str, kind: TokenKind) -> Vec<u8> {
    let bytes = match kind {
        TokenKind::Normal => spelled_bytes(text),
        _ => None,
    };
    bytes.unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Some vocabularies were learned without ever seeing certain bytes (SmolLM's lacks 21); text
/// loses these, as in llama.cpp and `tokenizers`. One that cannot spell ASCII is damaged.
fn byte_tokens(gguf: &Gguf, ids: &FastMap<&str, u32>) -> Result<[Option<u32>; 256], Error> {
    let mut tokens = [None; 256];
    for byte in 0..=u8::MAX {
        let letter = letter_of(byte).to_string();
        let token = ids.get(letter.as_str()).copied();
        if token.is_none() && matches!(byte, b' '..=b'~') {
            let problem = format!(
                "{:?} has no token (it is written {letter:?})",
                char::from(byte)
            );
            return Err(damaged(gguf, TOKENS, problem));
        }
        tokens[usize::from(byte)] = token;
    }
    Ok(tokens)
}

fn text_tokens(vocabulary: &Vocabulary) -> FastMap<Box<[u8]>, u32> {
    vocabulary
        .iter()
        .filter(|(_, _, kind)| *kind == TokenKind::Normal)
        .map(|(token, bytes, _)| (bytes.into(), token))
        .collect()
}
