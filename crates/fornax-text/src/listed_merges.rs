//! Merges as a file lists them: a line of two tokens each, the first line first.
//!
//! Must not know which texts they are for.

use fornax_gguf::Gguf;

use crate::error::Error;
use crate::merge::{FastMap, Merge, Merges};
use crate::vocabulary::{TokenKind, Vocabulary, damaged};

/// Reads those under `key`.
///
/// # Errors
/// A key that is missing or of another type, a merge of something that is not a token or into
/// something that is none, one that stands there twice, one that would spell a control token, one
/// of tokens that stand for bytes, which are put where no token is.
pub(crate) fn read(
    gguf: &Gguf,
    key: &'static str,
    vocabulary: &Vocabulary,
    ids: &FastMap<&str, u32>,
) -> Result<Merges, Error> {
    let lines = gguf.metadata().strings(key)?;
    let mut merges = Merges::with_capacity(lines.len());
    for (rank, line) in (0u32..).zip(lines) {
        let wrong =
            |problem: &str| damaged(gguf, key, format!("merge {rank}, {line:?}, {problem}"));
        // A token may begin with a space of its own, so the first character never separates.
        let space = line
            .char_indices()
            .skip(1)
            .find(|(_, letter)| *letter == ' ');
        let (space, _) = space.ok_or_else(|| wrong("is not two tokens with a space between"))?;
        let (left, right) = (&line[..space], &line[space + 1..]);
        let token = |text: &str| {
            let id = ids.get(text).copied();
            id.ok_or_else(|| wrong(&format!("names {text:?}, which is not a token")))
        };
        let (left_token, right_token) = (token(left)?, token(right)?);
        let merge = Merge {
            rank,
            token: token(&format!("{left}{right}"))?,
        };
        if vocabulary.kind(merge.token) == Some(TokenKind::Control) {
            return Err(wrong("would spell a control token from text"));
        }
        let parts = [left_token, right_token, merge.token];
        if parts
            .map(|token| vocabulary.kind(token))
            .contains(&Some(TokenKind::Byte))
        {
            return Err(wrong("joins tokens that stand for bytes"));
        }
        if !merges.insert(left_token, right_token, merge) {
            return Err(wrong("stands there twice"));
        }
    }
    Ok(merges)
}
