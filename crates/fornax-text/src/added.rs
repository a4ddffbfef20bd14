//! Finds the tokens that are taken whole wherever they stand in a text: control
//! tokens and words added to the vocabulary. Knows nothing of merging.

use std::collections::HashSet;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use fornax_gguf::Gguf;

use crate::error::Error;
use crate::tokenizer::Special;
use crate::vocabulary::{LONGEST_TOKEN, TOKENS, TokenKind, Vocabulary, damaged};

/// The added tokens of a vocabulary, ready to be found.
///
/// As in llama.cpp and Hugging Face `tokenizers`, user-defined tokens are found in plain text
/// too: they are words, and the model knows no other spelling of them. Where several match,
/// the leftmost wins, and of those the longest; but `tokenizers` looks for those that it normalizes
/// only in what the others leave, and files from folders list them.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    plain: Rounds,
    parse: Rounds,
}

/// The added tokens that are looked for in what the others leave; other readers of GGUF do not know
/// the key.
const NORMALIZED: &str = "tokenizer.ggml.normalized_tokens";

/// A stretch of text, as `AddedTokens::fragments` cuts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fragment<'a> {
    /// Ordinary text, never empty.
    Text(&'a str),
    /// An added token.
    Token(u32),
}

/// One search, and another in what it leaves.
#[derive(Debug)]
struct Rounds {
    first: Finder,
    second: Option<Finder>,
}

#[derive(Debug)]
struct Finder {
    automaton: AhoCorasick,
    /// [patterns of the automaton] the token of each.
    tokens: Vec<u32>,
    /// [patterns of the automaton] whether white space behind it is no part of the text.
    swallows: Vec<bool>,
}

impl AddedTokens {
    /// Collects the added tokens of the `vocabulary` of `gguf`.
    ///
    /// # Errors
    /// One without text or with too much to be one, or more than can be searched for.
    pub(crate) fn of(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<AddedTokens, Error> {
        let damaged = |problem| damaged(gguf, TOKENS, problem);
        for (token, bytes, _) in added(vocabulary) {
            match bytes.len() {
                0 => return Err(damaged(format!("the added token {token} has no text"))),
                1..=LONGEST_TOKEN => {}
                length => {
                    let problem = format!("the added token {token} has {length} bytes of text");
                    return Err(damaged(problem));
                }
            }
        }
        let normalized = gguf.metadata().optional_u32s(NORMALIZED)?;
        let normalized: HashSet<u32> = normalized.into_iter().flatten().collect();
        let swallows = is_phi3(gguf)?;
        let rounds = |plain: bool| {
            let is_meant = |kind| !plain || kind == TokenKind::UserDefined;
            let of = |late: bool| {
                let found = added(vocabulary).filter(move |(_, _, kind)| is_meant(*kind));
                let found = found.filter(|(token, ..)| normalized.contains(token) == late);
                Finder::of(found, swallows)
            };
            let second = (!normalized.is_empty()).then(|| of(true)).transpose()?;
            Ok(Rounds {
                first: of(false)?,
                second,
            })
        };
        Ok(AddedTokens {
            plain: rounds(true).map_err(damaged)?,
            parse: rounds(false).map_err(damaged)?,
        })
    }

    /// Cuts `text` at the added tokens that `special` allows; joined again it is `text`.
    pub(crate) fn fragments<'t>(
        &self,
        text: &'t str,
        special: Special,
    ) -> impl Iterator<Item = Fragment<'t>> {
        let Rounds { first, second } = match special {
            Special::Parse => &self.parse,
            Special::Plain => &self.plain,
        };
        first.fragments(text).flat_map(move |fragment| {
            let cut = match (fragment, second) {
                (Fragment::Text(text), Some(second)) => Some(second.fragments(text)),
                _ => None,
            };
            let whole = cut.is_none().then_some(fragment);
            cut.into_iter().flatten().chain(whole)
        })
    }
}

fn added(vocabulary: &Vocabulary) -> impl Iterator<Item = (u32, &[u8], TokenKind)> {
    vocabulary.iter().filter(|(_, _, kind)| kind.is_added())
}

/// Phi-3's added tokens take the white space behind them along (`rstrip` in its
/// `tokenizer.json`), but for those of [`KEEP_SPACE`]. GGUF has no key that says so.
fn is_phi3(gguf: &Gguf) -> Result<bool, Error> {
    let metadata = gguf.metadata();
    let architecture = metadata.optional_str("general.architecture")?;
    Ok(architecture == Some("phi3") && metadata.str("tokenizer.ggml.model")? == "llama")
}

const KEEP_SPACE: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];

impl Finder {
    fn of<'v>(
        found: impl Iterator<Item = (u32, &'v [u8], TokenKind)>,
        swallows: bool,
    ) -> Result<Finder, String> {
        let (tokens, texts): (Vec<u32>, Vec<&[u8]>) =
            found.map(|(token, bytes, _)| (token, bytes)).unzip();
        let swallows = (texts.iter())
            .map(|text| swallows && !KEEP_SPACE.contains(text))
            .collect();
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            // What would be chosen for few tokens takes the square of their lengths to make.
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts)
            .map_err(|error| format!("the added tokens are too many to search for: {error}"))?;
        Ok(Finder {
            automaton,
            tokens,
            swallows,
        })
    }

    fn fragments<'t>(&self, text: &'t str) -> impl Iterator<Item = Fragment<'t>> {
        let mut at = 0;
        let mut found = self.automaton.find_iter(text);
        let mut pending = None;
        std::iter::from_fn(move || {
            if let Some(token) = pending.take() {
                return Some(Fragment::Token(token));
            }
            let (end, next, token) = match found.next() {
                Some(hit) => {
                    let pattern = hit.pattern().as_usize();
                    let space = match self.swallows[pattern] {
                        true => space_length(&text[hit.end()..]),
                        false => 0,
                    };
                    (hit.start(), hit.end() + space, Some(self.tokens[pattern]))
                }
                None => (text.len(), text.len(), None),
            };
            // An added token of white space may begin in what was swallowed.
            let before = &text[at.min(end)..end];
            at = next.max(at);
            if before.is_empty() {
                return token.map(Fragment::Token);
            }
            pending = token;
            Some(Fragment::Text(before))
        })
    }
}

fn space_length(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens that begin anew within themselves are the worst for what finds them.
    #[test]
    fn a_search_takes_memory_in_proportion_to_its_tokens() {
        let texts: Vec<Vec<u8>> = (b'A'..=b'Z').map(|letter| vec![letter; 200]).collect();
        let tokens = texts.iter().zip(0..);
        let tokens = tokens.map(|(text, id)| (id, text.as_slice(), TokenKind::Control));
        let finder = Finder::of(tokens, false).expect("few tokens");
        let (memory, bytes) = (finder.automaton.memory_usage(), 26 * 200);
        assert!(memory < 40 * bytes, "{memory} for {bytes} bytes");
    }
}
