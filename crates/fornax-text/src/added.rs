//! Finds the tokens that are taken whole wherever they stand in a text: control
//! tokens and words added to the vocabulary. Knows nothing of merging.

use aho_corasick::{AhoCorasick, MatchKind};

use crate::tokenizer::Special;
use crate::vocabulary::{TokenKind, Vocabulary};

/// The added tokens of a vocabulary, ready to be found.
///
/// As in llama.cpp and Hugging Face `tokenizers`, user-defined tokens are found in plain text
/// too: they are words, and the model knows no other spelling of them. Where several match,
/// the leftmost wins, and of those the longest.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    plain: Finder,
    parse: Finder,
}

/// A stretch of text, as `AddedTokens::fragments` cuts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fragment<'a> {
    /// Ordinary text, never empty.
    Text(&'a str),
    /// An added token.
    Token(u32),
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    /// [patterns of the automaton] the token of each.
    tokens: Vec<u32>,
}

impl AddedTokens {
    /// Collects the added tokens of `vocabulary`; the error says what is wrong with one of them.
    pub(crate) fn of(vocabulary: &Vocabulary) -> Result<AddedTokens, String> {
        if let Some((token, _, _)) = added(vocabulary).find(|(_, bytes, _)| bytes.is_empty()) {
            return Err(format!("the added token {token} has no text"));
        }
        let user_defined = added(vocabulary).filter(|(_, _, kind)| *kind == TokenKind::UserDefined);
        Ok(AddedTokens {
            plain: Finder::of(user_defined)?,
            parse: Finder::of(added(vocabulary))?,
        })
    }

    /// Cuts `text` at the added tokens that `special` allows; joined again it is `text`.
    pub(crate) fn fragments<'a>(
        &'a self,
        text: &'a str,
        special: Special,
    ) -> impl Iterator<Item = Fragment<'a>> {
        let finder = match special {
            Special::Parse => &self.parse,
            Special::Plain => &self.plain,
        };
        finder.fragments(text)
    }
}

fn added(vocabulary: &Vocabulary) -> impl Iterator<Item = (u32, &[u8], TokenKind)> {
    use TokenKind::{Control, Unknown, UserDefined};
    vocabulary
        .iter()
        .filter(|(_, _, kind)| matches!(kind, Control | Unknown | UserDefined))
}

impl Finder {
    fn of<'v>(found: impl Iterator<Item = (u32, &'v [u8], TokenKind)>) -> Result<Finder, String> {
        let (tokens, texts): (Vec<u32>, Vec<&[u8]>) =
            found.map(|(token, bytes, _)| (token, bytes)).unzip();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
            .map_err(|error| format!("the added tokens are too many to search for: {error}"))?;
        Ok(Finder { automaton, tokens })
    }

    fn fragments<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Fragment<'a>> {
        let mut at = 0;
        let mut found = self.automaton.find_iter(text);
        let mut pending = None;
        std::iter::from_fn(move || {
            if let Some(token) = pending.take() {
                return Some(Fragment::Token(token));
            }
            let (end, next, token) = match found.next() {
                Some(hit) => {
                    let token = self.tokens[hit.pattern().as_usize()];
                    (hit.start(), hit.end(), Some(token))
                }
                None => (text.len(), text.len(), None),
            };
            let before = &text[at..end];
            at = next;
            if before.is_empty() {
                return token.map(Fragment::Token);
            }
            pending = token;
            Some(Fragment::Text(before))
        })
    }
}
