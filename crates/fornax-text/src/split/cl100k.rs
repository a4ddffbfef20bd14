//! The family of OpenAI's cl100k: words with the mark before them, numbers in groups,
//! symbols with the line ends behind them.
//!
//! `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,N}| ?[^\s\p{N}W]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

use super::runs::{blank_lines, contraction, first_characters, fold_case, run, symbols};
use crate::unicode_class::Classes;

/// Length of the first piece where W is `\p{L}`: Llama 3 (`DIGITS` = 3), Qwen 2 (1).
pub(super) fn piece<const DIGITS: usize>(text: &str) -> usize {
    piece_of(text, Classes::LETTER, DIGITS)
}

/// Length of the first piece where W is `[\p{L}\p{M}]`: Qwen 3.5.
pub(super) fn piece_with_marks<const DIGITS: usize>(text: &str) -> usize {
    piece_of(text, Classes::LETTER.or(Classes::MARK), DIGITS)
}

fn piece_of(text: &str, word: Classes, digits: usize) -> usize {
    if let Some(length) = contraction(text, fold_case) {
        return length;
    }
    let mut characters = text.chars();
    let head = characters
        .next()
        .expect("invariant: a piece is cut from text that is left");
    let length = head.len_utf8();
    if word.contain(head) {
        return length + run(&text[length..], word);
    }
    if Classes::NUMBER.contain(head) {
        return run(first_characters(text, digits), Classes::NUMBER);
    }
    let next = characters.next();
    if !matches!(head, '\r' | '\n') && next.is_some_and(|next| word.contain(next)) {
        return length + run(&text[length..], word);
    }
    let symbol = Classes::SPACE.or(Classes::NUMBER).or(word).not();
    if symbol.contain(head) {
        return symbols(text, 0, symbol, b"\r\n");
    }
    match next {
        Some(next) if head == ' ' && symbol.contain(next) => symbols(text, 1, symbol, b"\r\n"),
        _ => blank_lines(text),
    }
}
