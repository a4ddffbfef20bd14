//! The two steps that Falcon takes besides GPT-2's pattern. Knows no other pattern.

use super::runs::run_or_gap;
use crate::unicode_class::Classes;

/// Punctuation stands apart: `[\p{P}$+<=>^~|`]+`, and what lies between.
pub(super) fn punctuation(text: &str) -> usize {
    run_or_gap(text, |character| {
        character.is_ascii_punctuation() || Classes::PUNCTUATION.contain(character)
    })
}

/// ASCII digits stand apart in threes: `[0-9][0-9][0-9]`, and what lies between.
pub(super) fn digit_triples(text: &str) -> usize {
    let mut digits = 0;
    for (at, byte) in text.bytes().enumerate() {
        crate::work::step();
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        if digits == 3 {
            return if at == 2 { 3 } else { at - 2 };
        }
    }
    text.len()
}
