//! The pattern of GPT-2, which most others grew from:
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

use super::runs::{contraction, first, run, white_space};
use crate::unicode_class::Classes;

const SYMBOL: Classes = Classes::SPACE.or(Classes::LETTER).or(Classes::NUMBER).not();

/// Length of the first piece.
pub(super) fn piece(text: &str) -> usize {
    if let Some(length) = contraction(text, |letter| letter) {
        return length;
    }
    let space = usize::from(text.starts_with(' '));
    let word = &text[space..];
    let class = first(word).map_or(Classes::SPACE, Classes::of);
    for kind in [Classes::LETTER, Classes::NUMBER, SYMBOL] {
        if kind.or(class) == kind {
            return space + run(word, kind);
        }
    }
    white_space(text)
}
