//! What the patterns of pre-tokenizers have in common, each step bounded by the piece
//! it finds: runs of characters, gaps between them, white space. Knows no pattern.

use crate::unicode_class::Classes;

/// The first character.
#[inline]
pub(super) fn first(text: &str) -> Option<char> {
    text.chars().next()
}

/// Byte length of the characters of `classes` at the start of `text`.
#[inline]
pub(super) fn run(text: &str, classes: Classes) -> usize {
    run_where(text, |character| classes.contain(character))
}

/// Byte length of the characters at the start of `text` that `belong`.
#[inline]
pub(super) fn run_where(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.char_indices()
        .find(|&(_, character)| !belongs(character))
        .map_or(text.len(), |(end, _)| end)
}

/// The first piece where all that `belongs` stands apart: `X+`, and what lies between.
pub(super) fn run_or_gap(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    let inside = first(text).is_some_and(&belongs);
    run_where(text, |character| belongs(character) == inside)
}

/// The first piece where numbers stand apart, at most `N` digits long: `\p{N}{1,N}`, and what lies
/// between.
pub(super) fn numbers<const N: usize>(text: &str) -> usize {
    match run(first_characters(text, N), Classes::NUMBER) {
        0 => run(text, Classes::NUMBER.not()),
        length => length,
    }
}

/// The first piece by `\s?X+`, and what lies between.
pub(super) fn spaced_run_or_gap(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    let mut space = None;
    for (at, character) in text.char_indices() {
        if belongs(character) {
            // A white space just before belongs to the run.
            let start = space.unwrap_or(at);
            return match start {
                0 => at + run_where(&text[at..], belongs),
                gap => gap,
            };
        }
        space = Classes::SPACE.contain(character).then_some(at);
    }
    text.len()
}

/// `'s|'t|'re|'ve|'m|'ll|'d` after `fold` of each letter.
#[inline]
pub(super) fn contraction(text: &str, fold: fn(char) -> char) -> Option<usize> {
    let mut letters = text.strip_prefix('\'')?.chars();
    let first = letters.next()?;
    let short = 1 + first.len_utf8();
    match fold(first) {
        's' | 't' | 'm' | 'd' => Some(short),
        head @ ('r' | 'v' | 'l') => {
            let second = letters.next()?;
            let tail = if head == 'l' { 'l' } else { 'e' };
            (fold(second) == tail).then(|| short + second.len_utf8())
        }
        _ => None,
    }
}

/// Case folding as `(?i:…)` does it in Unicode mode, as far as contractions have letters:
/// beside the capitals, the long s (ſ) is an s.
pub(super) fn fold_case(letter: char) -> char {
    match letter {
        'ſ' => 's',
        _ => letter.to_ascii_lowercase(),
    }
}

/// Length of `X+[…]*` behind the first `skip` bytes, with these: symbols and the `tail` of ASCII
/// characters (line ends) that is drawn along.
pub(super) fn symbols(text: &str, skip: usize, symbol: Classes, tail: &[u8]) -> usize {
    let end = skip + run(&text[skip..], symbol);
    let drawn = text.as_bytes()[end..]
        .iter()
        .take_while(|byte| tail.contains(byte))
        .inspect(|_| crate::work::step());
    end + drawn.count()
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: white space up to its last line end, if it has one.
pub(super) fn blank_lines(text: &str) -> usize {
    let white = &text[..run(text, Classes::SPACE)];
    match white.rfind(['\r', '\n']) {
        Some(last) => last + 1,
        None => all_but_last(text, white),
    }
}

/// `\s+(?!\S)|\s+`: white space, but its last character is left to the word that follows.
pub(super) fn white_space(text: &str) -> usize {
    all_but_last(text, &text[..run(text, Classes::SPACE)])
}

fn all_but_last(text: &str, white: &str) -> usize {
    let last = white.chars().next_back().map_or(0, char::len_utf8);
    match white.len() < text.len() && white.len() > last {
        true => white.len() - last,
        false => white.len(),
    }
}

/// The first `count` characters of `text`, or all of it.
pub(super) fn first_characters(text: &str, count: usize) -> &str {
    match text.char_indices().nth(count) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
