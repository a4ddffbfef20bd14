//! HTML's character references, read as Python's `html.unescape` reads them: the standard's rules for
//! what is wrong included (WHATWG HTML, 13.2.5.72 and 13.5). Knows no templates.

/// The standard's names, each with what it stands for: sorted, and some without a semicolon.
const NAMED: &str = include_str!("entities.txt");
/// Characters of the longest name that is looked for.
const LONGEST_NAME: usize = 32;
/// What 0x80 to 0x9F stand for: the characters of Windows-1252.
const WINDOWS: [char; 32] = [
    '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8D}', 'Ž', '\u{8F}',
    '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9D}', 'ž', 'Ÿ',
];

/// `text` with its references replaced by what they stand for.
pub(super) fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    let names: Vec<(&str, &str)> = NAMED
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('&') {
        out.push_str(before);
        rest = match behind.strip_prefix('#') {
            Some(number) => push_number(&mut out, number, behind),
            None => push_named(&mut out, &names, behind),
        };
    }
    out + rest
}

/// Writes the character of a number, and answers with what follows.
fn push_number<'t>(out: &mut String, number: &'t str, behind: &'t str) -> &'t str {
    let (digits, base) = match number.strip_prefix(['x', 'X']) {
        Some(digits) => (digits, 16),
        None => (number, 10),
    };
    let end = digits.find(|character: char| !character.is_digit(base));
    let (digits, rest) = digits.split_at(end.unwrap_or(digits.len()));
    if digits.is_empty() {
        out.push('&');
        return behind;
    }
    let significant = digits.trim_start_matches('0');
    let code = match significant.len() {
        0 => 0,
        1..=8 => u32::from_str_radix(significant, base).unwrap_or(u32::MAX),
        _ => u32::MAX,
    };
    out.extend(character(code));
    rest.strip_prefix(';').unwrap_or(rest)
}

fn character(code: u32) -> Option<char> {
    match code {
        0 => Some('\u{FFFD}'),
        0x80..=0x9F => Some(WINDOWS[code as usize - 0x80]),
        0x1..=0x8 | 0xB | 0xE..=0x1F | 0x7F | 0xFDD0..=0xFDEF => None,
        0x1_0000.. | 0xFFFE | 0xFFFF if code <= 0x10_FFFF && code & 0xFFFE == 0xFFFE => None,
        _ => Some(char::from_u32(code).unwrap_or('\u{FFFD}')),
    }
}

/// Writes what a name stands for, or as much of it as is one, and answers with what follows.
fn push_named<'t>(out: &mut String, names: &[(&str, &str)], behind: &'t str) -> &'t str {
    let ends = |(_, character): &(usize, char)| {
        matches!(
            character,
            '\t' | '\n' | '\x0C' | ' ' | '<' | '&' | '#' | ';'
        )
    };
    let mut characters = behind.char_indices().take(LONGEST_NAME + 1).enumerate();
    let end = characters.find(|(count, place)| *count == LONGEST_NAME || ends(place));
    let end = end.map_or(behind.len(), |(_, (at, _))| at);
    if end == 0 {
        out.push('&');
        return behind;
    }
    let closed = end + usize::from(behind[end..].starts_with(';'));
    let (name, rest) = behind.split_at(closed);
    // No name has one character.
    let prefixes = name.char_indices().map(|(at, _)| at).skip(2);
    let prefixes: Vec<usize> = prefixes.chain([name.len()]).collect();
    for &length in prefixes.iter().rev() {
        if let Ok(found) = names.binary_search_by_key(&&name[..length], |(name, _)| name) {
            let codes = names[found].1.split(' ');
            let codes = codes.filter_map(|code| u32::from_str_radix(code, 16).ok());
            out.extend(codes.filter_map(char::from_u32));
            out.push_str(&name[length..]);
            return rest;
        }
    }
    out.push('&');
    out.push_str(name);
    rest
}
