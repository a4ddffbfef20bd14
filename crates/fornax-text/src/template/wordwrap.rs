//! Jinja's `wordwrap`: lines broken as Python's `textwrap` breaks them, at white space, behind
//! hyphens and around dashes. Charges what it makes. Knows no templates.

use std::ops::Range;

use minijinja::Error;

use super::budget::Budget;
use super::characters::{is_decimal, is_space, is_word};
use super::string_methods::lines;

/// How text is to be broken.
pub(super) struct Wrap<'a> {
    /// Characters of a line, at least one.
    pub(super) width: usize,
    /// Whether a word that is longer than a line is cut.
    pub(super) break_long_words: bool,
    /// What stands between lines.
    pub(super) between: &'a str,
    /// Whether a word may end behind its hyphen.
    pub(super) break_on_hyphens: bool,
}

/// `text` in lines of at most `wrap.width` characters.
///
/// # Errors
/// It costs more than is left.
pub(super) fn wordwrap(text: &str, wrap: &Wrap<'_>, budget: &Budget) -> Result<String, Error> {
    budget.spend(
        text.chars()
            .filter(|character| character.is_control())
            .count(),
    )?;
    let mut out = String::new();
    for (index, (line, _)) in lines(text).into_iter().enumerate() {
        let line: Vec<char> = line.chars().collect();
        let pieces = pieces(&line, wrap.break_on_hyphens, budget)?;
        let broken = broken(&line, pieces, wrap, budget)?;
        // An empty line is none, but it is joined to the others.
        if index > 0 {
            budget.spend_text(wrap.between.len())?;
            out.push_str(wrap.between);
        }
        for (index, part) in broken.into_iter().enumerate() {
            if index > 0 {
                budget.spend_text(wrap.between.len())?;
                out.push_str(wrap.between);
            }
            out.extend(&line[part]);
        }
    }
    budget.spend_text(out.len()).map(|()| out)
}

/// The white space of `textwrap`: that of ASCII.
fn is_blank(character: char) -> bool {
    matches!(character, '\t' | '\n' | '\x0B' | '\x0C' | '\r' | ' ')
}

/// Words and what is between them.
fn pieces(line: &[char], hyphens: bool, budget: &Budget) -> Result<Vec<Range<usize>>, Error> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < line.len() {
        let end = if is_blank(line[at]) {
            run(line, at, is_blank)
        } else if !hyphens {
            run(line, at, |character| !is_blank(character))
        } else {
            dash(line, at).unwrap_or_else(|| word(line, at))
        };
        budget.spend(1)?;
        pieces.push(at..end);
        at = end;
    }
    Ok(pieces)
}

/// Where the characters from `at` on end that are `alike`.
fn run(line: &[char], at: usize, alike: impl Fn(char) -> bool) -> usize {
    let end = line[at..].iter().position(|&character| !alike(character));
    end.map_or(line.len(), |length| at + length)
}

/// Where a dash between words ends, if one begins at `at`: two hyphens or more.
fn dash(line: &[char], at: usize) -> Option<usize> {
    let before = *line.get(at.checked_sub(1)?)?;
    let follows = is_word(before) || matches!(before, '!' | '"' | '\'' | '&' | '.' | ',' | '?');
    if line[at] != '-' || !follows {
        return None;
    }
    let end = run(line, at, |character| character == '-');
    let precedes = line.get(end).is_some_and(|&character| is_word(character));
    (end - at >= 2 && precedes).then_some(end)
}

/// Where the word from `at` on ends, or its part up to a hyphen.
fn word(line: &[char], at: usize) -> usize {
    for place in at + 1..line.len() {
        if hyphenated(line, place) {
            return place + 1;
        }
        if is_blank(line[place]) || dash(line, place).is_some() {
            return place;
        }
    }
    line.len()
}

/// Whether a word may be broken behind `place`: a hyphen with two letters on both sides, or with a
/// letter, a hyphen and a letter.
fn hyphenated(line: &[char], place: usize) -> bool {
    let letter = |place: Option<usize>| {
        place
            .and_then(|place| line.get(place))
            .is_some_and(|&character| is_word(character) && !is_decimal(character))
    };
    let back = |by: usize| place.checked_sub(by);
    let hyphen = |place: Option<usize>| place.is_some_and(|at| line.get(at) == Some(&'-'));
    let punctuated = |place: Option<usize>| {
        place.and_then(|place| line.get(place)).is_some_and(|&at| {
            is_word(at) || matches!(at, '!' | '"' | '\'' | '&' | '.' | ',' | '?')
        })
    };
    let [next, second, third] = [1, 2, 3].map(|by| Some(place + by));
    let behind = letter(back(1)) && letter(back(2))
        || punctuated(back(1)) && hyphen(back(2)) && letter(back(3));
    let ahead = letter(next) && (letter(second) || hyphen(second) && letter(third));
    line[place] == '-' && behind && ahead
}

/// The lines that `left`, the pieces of one line, make.
fn broken(
    line: &[char],
    mut left: Vec<Range<usize>>,
    wrap: &Wrap<'_>,
    budget: &Budget,
) -> Result<Vec<Range<usize>>, Error> {
    left.reverse();
    let is_blank = |piece: &Range<usize>| line[piece.clone()].iter().all(|&at| is_space(at));
    let mut made: Vec<Range<usize>> = Vec::new();
    while let Some(first) = left.last() {
        budget.spend(1 + first.len() / 128)?;
        if !made.is_empty() && is_blank(first) {
            left.pop();
        }
        let Some(start) = left.last().map(|piece| piece.start) else {
            break;
        };
        let (mut end, mut last) = (start, None);
        while let Some(piece) = left.pop_if(|piece| piece.end - start <= wrap.width) {
            end = piece.end;
            last = Some(piece);
        }
        if let Some(long) = left.pop_if(|piece| piece.len() > wrap.width) {
            if wrap.break_long_words {
                end = cut(line, &long, wrap, wrap.width - (end - start));
                left.push(end..long.end);
                last = Some(long.start..end);
            } else if last.is_none() {
                end = long.end;
                last = Some(long);
            } else {
                left.push(long);
            }
        }
        // What may be nothing at all, where the line was full: then white space before it stays.
        if let Some(last) = last.filter(is_blank) {
            end = last.start;
        }
        if end > start {
            made.push(start..end);
        }
    }
    Ok(made)
}

/// Where a word that is longer than a line is cut, with so much room left: behind its last hyphen.
fn cut(line: &[char], long: &Range<usize>, wrap: &Wrap<'_>, room: usize) -> usize {
    let part = &line[long.start..long.start + room];
    let hyphen = part.iter().rposition(|&character| character == '-');
    let hyphen = hyphen.filter(|&at| part[..at].iter().any(|&character| character != '-'));
    match hyphen.filter(|_| wrap.break_on_hyphens) {
        Some(hyphen) => long.start + hyphen + 1,
        None => long.start + room,
    }
}
