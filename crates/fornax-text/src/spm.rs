//! SentencePiece's byte-pair encoding (GGUF calls it `llama`: Llama 2, Mistral, Phi-3, Gemma):
//! text starts as its characters, and the neighbours that together are the token of the highest
//! score are joined, or those that a folder's list of merges has first. What has no token falls back
//! to its bytes. Knows no special tokens.
//!
//! Kudo and Richardson 2018 (arXiv:1808.06226). A space is written `▁` (U+2581), so a `▁` in a text
//! comes back as a space: the model knows no other.

use std::collections::HashSet;

use fornax_gguf::Gguf;

use crate::error::Error;
use crate::listed_merges;
use crate::memo::Memo;
use crate::merge::{FastMap, Merge, Merges, Merging};
use crate::space_prefix::SpacePrefix;
use crate::vocabulary::{LONGEST_TOKEN, TOKENS, TokenKind, Vocabulary, damaged, ids_by_text};

const SCORES: &str = "tokenizer.ggml.scores";
/// Merges in their order, where they do not follow from scores; files from folders have it, other
/// readers of GGUF do not know it.
const PIECE_MERGES: &str = "tokenizer.ggml.piece_merges";

/// How a space is written in the vocabulary.
const SPACE: char = '▁';

/// The merges, which follow from scores unless they are listed, and what cannot be merged.
#[derive(Debug)]
pub(crate) struct Spm {
    /// Which texts are read with a space in front of them.
    pub space_prefix: SpacePrefix,
    /// The token of each character; one that only longer tokens have gets a number behind them.
    characters: FastMap<char, u32>,
    /// [numbers behind the tokens] the characters that are no token themselves.
    orphans: Vec<char>,
    /// How many tokens there are.
    tokens: u32,
    merges: Merges,
    /// Characters that some token has before a space; text can be cut before the others' spaces.
    before_space: HashSet<char, foldhash::fast::RandomState>,
    /// [256] the token of each byte, where it has one.
    byte_tokens: [Option<u32>; 256],
    /// Stands for a character that not even bytes can spell.
    unknown: Option<u32>,
}

impl Spm {
    /// Reads vocabulary and scores of `gguf`.
    ///
    /// # Errors
    /// Scores that are missing, too few or no numbers, two tokens that are the same, a byte token
    /// that names no byte, a token too long to be one.
    pub(crate) fn read(gguf: &Gguf) -> Result<(Vocabulary, Spm), Error> {
        let vocabulary = Vocabulary::read(gguf, spelled)?;
        let ids = ids_by_text(gguf)?;
        let ranks = read_ranks(gguf, vocabulary.len())?;
        let mut spm = Spm {
            space_prefix: SpacePrefix::read(gguf)?,
            characters: FastMap::default(),
            orphans: Vec::new(),
            tokens: vocabulary.len() as u32,
            merges: Merges::default(),
            before_space: HashSet::default(),
            byte_tokens: read_byte_tokens(gguf, &vocabulary)?,
            unknown: vocabulary.markers.unknown,
        };
        let texts = gguf.metadata().strings(TOKENS)?.iter().map(String::as_str);
        let words = (0u32..)
            .zip(texts)
            .filter(|&(token, _)| is_merged(vocabulary.kind(token)));
        let words: Vec<(u32, &str)> = words.collect();
        for &(token, text) in &words {
            if text.len() > LONGEST_TOKEN {
                let problem = format!("token {token} has {} bytes of text", text.len());
                return Err(damaged(gguf, TOKENS, problem));
            }
            spm.learn_characters(text, &ids, &vocabulary);
        }
        if gguf.metadata().value(PIECE_MERGES).is_some() {
            spm.merges = listed_merges::read(gguf, PIECE_MERGES, &vocabulary, &ids)?;
            return Ok((vocabulary, spm));
        }
        for (token, text) in words {
            spm.learn_merges(token, text, ranks[token as usize], &ids, &vocabulary);
        }
        Ok((vocabulary, spm))
    }

    /// Appends the tokens of `text`, which holds no added tokens and is not empty, to `out`;
    /// `prefixed` reads it with a space in front.
    pub(crate) fn encode<'t>(
        &self,
        text: &'t str,
        prefixed: bool,
        memo: &mut Memo<'t>,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        let mut rest = text;
        if prefixed {
            let (word, behind) = text.split_at(self.word_length(text));
            self.encode_word(Some(SPACE), word, merging, out);
            rest = behind;
        }
        while !rest.is_empty() {
            let (word, behind) = rest.split_at(self.word_length(rest));
            memo.repeat_or(word.as_bytes(), out, |out| {
                self.encode_word(None, word, merging, out);
            });
            rest = behind;
        }
    }

    /// The token of a single byte, where the vocabulary has one.
    pub(crate) fn byte_token(&self, byte: u8) -> Option<u32> {
        self.byte_tokens[usize::from(byte)]
    }

    /// Length of the first word: up to the first space behind another character, unless a token
    /// may reach across.
    fn word_length(&self, text: &str) -> usize {
        let mut previous = SPACE;
        for (at, character) in text.char_indices() {
            crate::work::step();
            let character = stored(character);
            if character == SPACE && previous != SPACE && !self.before_space.contains(&previous) {
                return at;
            }
            previous = character;
        }
        text.len()
    }

    fn encode_word(
        &self,
        prefix: Option<char>,
        word: &str,
        merging: &mut Merging,
        out: &mut Vec<u32>,
    ) {
        for character in prefix.into_iter().chain(word.chars().map(stored)) {
            match self.characters.get(&character) {
                Some(&token) => merging.push(token),
                // No token has this character, so none reaches across it.
                None => {
                    self.finish(merging, out);
                    self.fall_back(character, out);
                }
            }
        }
        self.finish(merging, out);
    }

    fn finish(&self, merging: &mut Merging, out: &mut Vec<u32>) {
        let start = out.len();
        merging.finish(&self.merges, out);
        if out[start..].iter().all(|&token| token < self.tokens) {
            return;
        }
        for token in out.split_off(start) {
            match token.checked_sub(self.tokens) {
                Some(orphan) => self.fall_back(self.orphans[orphan as usize], out),
                None => out.push(token),
            }
        }
    }

    /// Appends the bytes of a character, or the token for the unknown where one has none.
    fn fall_back(&self, character: char, out: &mut Vec<u32>) {
        let start = out.len();
        for &byte in character.encode_utf8(&mut [0; 4]).as_bytes() {
            let Some(token) = self.byte_token(byte) else {
                out.truncate(start);
                return out.extend(self.unknown);
            };
            out.push(token);
        }
    }

    fn learn_characters(&mut self, text: &str, ids: &FastMap<&str, u32>, vocabulary: &Vocabulary) {
        let mut previous = SPACE;
        for character in text.chars() {
            if character == SPACE && previous != SPACE {
                self.before_space.insert(previous);
            }
            previous = character;
            self.characters.entry(character).or_insert_with(|| {
                token_of(character.encode_utf8(&mut [0; 4]), ids, vocabulary).unwrap_or_else(|| {
                    self.orphans.push(character);
                    self.tokens + self.orphans.len() as u32 - 1
                })
            });
        }
    }

    /// Every pair of neighbours that together are the token becomes it.
    fn learn_merges(
        &mut self,
        token: u32,
        text: &str,
        rank: u32,
        ids: &FastMap<&str, u32>,
        vocabulary: &Vocabulary,
    ) {
        for (middle, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(middle);
            let part = |text: &str| {
                token_of(text, ids, vocabulary).or_else(|| {
                    let mut characters = text.chars();
                    let only = characters.next().filter(|_| characters.next().is_none())?;
                    self.characters.get(&only).copied()
                })
            };
            if let (Some(left), Some(right)) = (part(left), part(right)) {
                self.merges.insert(left, right, Merge { rank, token });
            }
        }
    }
}

/// The bytes that a stored token stands for.
fn spelled(text: &str, kind: TokenKind) -> Vec<u8> {
    match kind {
        TokenKind::Normal => text.replace(SPACE, " ").into_bytes(),
        TokenKind::Byte => byte_of(text).map_or_else(|| text.into(), |byte| vec![byte]),
        _ => text.as_bytes().to_vec(),
    }
}

/// How a character of a text is written in the vocabulary.
fn stored(character: char) -> char {
    match character {
        ' ' => SPACE,
        other => other,
    }
}

/// Text is never merged into a token that steers, that stands for a byte or that is not in use.
fn is_merged(kind: Option<TokenKind>) -> bool {
    matches!(kind, Some(TokenKind::Normal | TokenKind::UserDefined))
}

fn token_of(text: &str, ids: &FastMap<&str, u32>, vocabulary: &Vocabulary) -> Option<u32> {
    let token = ids.get(text).copied()?;
    is_merged(vocabulary.kind(token)).then_some(token)
}

/// The byte that `<0xAB>` names.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    match digits.len() {
        2 => u8::from_str_radix(digits, 16).ok(),
        _ => None,
    }
}

fn read_byte_tokens(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<[Option<u32>; 256], Error> {
    let mut tokens = [None; 256];
    for (token, text) in (0u32..).zip(gguf.metadata().strings(TOKENS)?) {
        if vocabulary.kind(token) != Some(TokenKind::Byte) {
            continue;
        }
        let byte = byte_of(text).ok_or_else(|| {
            let problem = format!("the byte token {token} is {text:?}, not <0x00> to <0xFF>");
            damaged(gguf, TOKENS, problem)
        })?;
        tokens[usize::from(byte)] = Some(token);
    }
    Ok(tokens)
}

/// [n_tokens] the order in which tokens are merged: the highest score goes first, and equal scores
/// share a rank.
fn read_ranks(gguf: &Gguf, tokens: usize) -> Result<Vec<u32>, Error> {
    let scores = gguf.metadata().f32s(SCORES)?;
    if scores.len() != tokens {
        let problem = format!("has {} entries for {tokens} tokens", scores.len());
        return Err(damaged(gguf, SCORES, problem));
    }
    if let Some(token) = scores.iter().position(|score| score.is_nan()) {
        let problem = format!("the score of token {token} is no number");
        return Err(damaged(gguf, SCORES, problem));
    }
    let mut order: Vec<usize> = (0..tokens).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut ranks = vec![0; tokens];
    for pair in order.windows(2) {
        let lower = scores[pair[1]] < scores[pair[0]];
        ranks[pair[1]] = ranks[pair[0]] + u32::from(lower);
    }
    Ok(ranks)
}

#[cfg(test)]
#[path = "spm_tests.rs"]
mod tests;
