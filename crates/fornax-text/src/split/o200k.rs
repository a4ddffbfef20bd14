//! The family of OpenAI's o200k (GPT-4o, gpt-oss, Llama 4) and Mistral's tekken: as cl100k, but a
//! word ends where capitals begin anew. With U = `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`,
//! W = `[\p{Ll}\p{Lm}\p{Lo}\p{M}]` and C the contractions, which tekken lacks:
//!
//! `[^\r\n\p{L}\p{N}]?U*W+C?|[^\r\n\p{L}\p{N}]?U+W*C?|\p{N}{1,N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

use super::runs::{
    blank_lines, contraction, first, first_characters, fold_case, run, run_where, symbols,
};
use crate::unicode_class::Classes;

/// Characters that may stand among capitals and among small letters.
const EITHER: Classes = Classes::CASELESS.or(Classes::MARK);
const SMALL: Classes = Classes::LOWER.or(EITHER);
const SYMBOL: Classes = Classes::SPACE.or(Classes::LETTER).or(Classes::NUMBER).not();

/// Length of the first piece by GPT-4o's pattern.
pub(super) fn piece(text: &str) -> usize {
    match word(text) {
        Some(length) => length + contraction(&text[length..], fold_case).unwrap_or(0),
        None => no_word(text, 3),
    }
}

/// Length of the first piece by tekken's pattern.
pub(super) fn tekken_piece(text: &str) -> usize {
    word(text).unwrap_or_else(|| no_word(text, 1))
}

/// The two alternatives that are words, each first with the mark before it and then without.
fn word(text: &str) -> Option<usize> {
    let head = first(text)?;
    let marked = !matches!(head, '\r' | '\n') && !Classes::LETTER.or(Classes::NUMBER).contain(head);
    let mark = if marked { head.len_utf8() } else { 0 };
    let behind_mark = &text[mark..];
    if let Some(length) = ends_small(behind_mark) {
        return Some(mark + length);
    }
    // The mark itself may be a letter's accent that nothing follows.
    if marked && EITHER.contain(head) {
        return ends_small(text);
    }
    // What is left to begin here are capitals alone.
    match run(behind_mark, Classes::UPPER) {
        0 => None,
        capitals => Some(mark + capitals),
    }
}

/// `U*W+`: capitals, then small letters; where none follow, up to the last character among the
/// capitals that can be taken for a small one.
fn ends_small(text: &str) -> Option<usize> {
    let mut either = None;
    let capitals = run_where(text, |character| {
        Classes::UPPER.or(EITHER).contain(character)
    });
    for (at, character) in text[..capitals].char_indices() {
        if EITHER.contain(character) {
            either = Some(at + character.len_utf8());
        }
    }
    match run(&text[capitals..], SMALL) {
        0 => either,
        small => Some(capitals + small),
    }
}

fn no_word(text: &str, digits: usize) -> usize {
    let numbers = run(first_characters(text, digits), Classes::NUMBER);
    if numbers > 0 {
        return numbers;
    }
    let space = usize::from(text.starts_with(' '));
    match first(&text[space..]) {
        Some(next) if SYMBOL.contain(next) => symbols(text, space, SYMBOL, b"\r\n/"),
        _ => blank_lines(text),
    }
}
