//! The pre-tokenizers of DeepSeek: several patterns one after the other, each cutting what the
//! one before it left. A character that no pattern has stays with its neighbours of that kind.

use super::runs::{blank_lines, first, run, run_or_gap, run_where, spaced_run_or_gap, symbols};
use crate::unicode_class::Classes;

const LETTER_OR_MARK: Classes = Classes::LETTER.or(Classes::MARK);
const SYMBOL: Classes = Classes::PUNCTUATION.or(Classes::SYMBOL);
/// What the patterns of DeepSeek-V3 have no name for: controls, formats, unassigned, and numbers,
/// which stand apart by then.
const OTHER: Classes = LETTER_OR_MARK.or(SYMBOL).or(Classes::SPACE).not();

/// `[\r\n]`: each line end stands alone.
pub(super) fn line_ends(text: &str) -> usize {
    match text.starts_with(['\r', '\n']) {
        true => 1,
        false => run_where(text, |character| {
            crate::work::step();
            !matches!(character, '\r' | '\n')
        }),
    }
}

/// DeepSeek-LLM's words: `\s?[A-Za-zµ…]+`.
pub(super) fn cased_words(text: &str) -> usize {
    spaced_run_or_gap(text, is_cased_letter)
}

/// DeepSeek-LLM's punctuation: `\s?[!-/:-~！-／：-～‘-‟\u3000-。]+`.
pub(super) fn listed_punctuation(text: &str) -> usize {
    spaced_run_or_gap(text, |character| {
        crate::work::step();
        matches!(character, '!'..='/' | ':'..='~' | '！'..='／' | '：'..='～' | '‘'..='‟' | '\u{3000}'..='。')
    })
}

/// `\s+$`: the white space at the end.
pub(super) fn space_at_the_end(text: &str) -> usize {
    let kept = text.trim_end_matches(|character| Classes::SPACE.contain(character));
    match kept.len() {
        0 => text.len(),
        length => length,
    }
}

/// Chinese, Korean and what stands between them in Unicode: `[一-龥ࠀ-一가-\uD7FF]+`.
pub(super) fn eastern(text: &str) -> usize {
    run_or_gap(text, |character| {
        crate::work::step();
        matches!(character, '\u{800}'..='龥' | '가'..='\u{D7FF}')
    })
}

/// `\p{N}+`.
pub(super) fn whole_numbers(text: &str) -> usize {
    run_or_gap(text, |character| Classes::NUMBER.contain(character))
}

/// DeepSeek-Coder's words: `\s?\p{L}+`.
pub(super) fn words(text: &str) -> usize {
    spaced_run_or_gap(text, |character| Classes::LETTER.contain(character))
}

/// DeepSeek-Coder's punctuation: `\s?\p{P}+`.
pub(super) fn punctuation(text: &str) -> usize {
    spaced_run_or_gap(text, |character| Classes::PUNCTUATION.contain(character))
}

/// DeepSeek-V3's Chinese and Japanese: `[一-龥\u3040-ヿ]+`.
pub(super) fn han_and_kana(text: &str) -> usize {
    run_or_gap(text, |character| {
        crate::work::step();
        matches!(character, '一'..='龥' | '\u{3040}'..='ヿ')
    })
}

/// DeepSeek-V3's words and symbols, where Q is the punctuation of ASCII:
/// `Q[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(super) fn words_and_symbols(text: &str) -> usize {
    let head = first(text).expect("invariant: a piece is cut from text that is left");
    let length = head.len_utf8();
    let next = first(&text[length..]);
    if LETTER_OR_MARK.contain(head) {
        return run(text, LETTER_OR_MARK);
    }
    if SYMBOL.contain(head) {
        return match next {
            Some('A'..='Z' | 'a'..='z') if head.is_ascii() => {
                1 + run_where(&text[1..], |letter| letter.is_ascii_alphabetic())
            }
            _ => symbols(text, 0, SYMBOL, b"\r\n"),
        };
    }
    if !matches!(head, '\r' | '\n') && next.is_some_and(|next| LETTER_OR_MARK.contain(next)) {
        return length + run(&text[length..], LETTER_OR_MARK);
    }
    match next {
        Some(next) if head == ' ' && SYMBOL.contain(next) => symbols(text, 1, SYMBOL, b"\r\n"),
        _ if OTHER.contain(head) => others(text),
        _ => blank_lines(text),
    }
}

/// Characters that no alternative begins with, but for the last where a word follows, which then
/// begins with it.
fn others(text: &str) -> usize {
    let length = run(text, OTHER);
    match first(&text[length..]) {
        Some(next) if LETTER_OR_MARK.contain(next) => {
            let last = text[..length].chars().next_back();
            length - last.map_or(0, char::len_utf8)
        }
        _ => length,
    }
}

/// Letters with case, as Unicode had them when DeepSeek-LLM's pattern was written.
fn is_cased_letter(character: char) -> bool {
    crate::work::step();
    if character.is_ascii() {
        return character.is_ascii_alphabetic();
    }
    let code = u32::from(character);
    let at = CASED_LETTERS.partition_point(|&(_, last)| last < code);
    CASED_LETTERS
        .get(at)
        .is_some_and(|&(first, _)| first <= code)
}

/// First and last code point of each range, in order.
#[rustfmt::skip]
const CASED_LETTERS: [(u32, u32); 87] = [
    (0x41, 0x5A), (0x61, 0x7A), (0xB5, 0xB5), (0xC0, 0xD6), (0xD8, 0xF6), (0xF8, 0x1BA),
    (0x1BC, 0x1BF), (0x1C4, 0x293), (0x295, 0x2AF), (0x370, 0x373), (0x376, 0x376), (0x377, 0x377),
    (0x37B, 0x37D), (0x37F, 0x37F), (0x386, 0x386), (0x388, 0x38A), (0x38C, 0x38C), (0x38E, 0x3A1),
    (0x3A3, 0x3F5), (0x3F7, 0x481), (0x48A, 0x52F), (0x531, 0x556), (0x10A0, 0x10C5),
    (0x13A0, 0x13F5), (0x13F8, 0x13FD), (0x1C90, 0x1CBA), (0x1CBD, 0x1CBF), (0x1D00, 0x1D2B),
    (0x1D6B, 0x1D77), (0x1D79, 0x1D9A), (0x1E00, 0x1F15), (0x1F18, 0x1F1D), (0x1F20, 0x1F45),
    (0x1F48, 0x1F4D), (0x1F50, 0x1F57), (0x1F59, 0x1F59), (0x1F5B, 0x1F5B), (0x1F5D, 0x1F5D),
    (0x1F5F, 0x1F7D), (0x1F80, 0x1FB4), (0x1FB6, 0x1FBC), (0x1FBE, 0x1FBE), (0x1FC2, 0x1FC4),
    (0x1FC6, 0x1FCC), (0x1FD0, 0x1FD3), (0x1FD6, 0x1FDB), (0x1FE0, 0x1FEC), (0x1FF2, 0x1FF4),
    (0x1FF6, 0x1FFC), (0x2102, 0x2102), (0x2107, 0x2107), (0x210A, 0x2113), (0x2115, 0x2115),
    (0x2119, 0x211D), (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212A, 0x212D),
    (0x212F, 0x2134), (0x2139, 0x2139), (0x213C, 0x213F), (0x2145, 0x2149), (0x214E, 0x214E),
    (0x2183, 0x2183), (0x2184, 0x2184), (0x2C00, 0x2C7B), (0x2C7E, 0x2CE4), (0x2CEB, 0x2CEE),
    (0x2CF2, 0x2CF2), (0x2CF3, 0x2CF3), (0xA640, 0xA66D), (0xA680, 0xA69B), (0xA722, 0xA76F),
    (0xA771, 0xA787), (0xA78B, 0xA78E), (0xAB70, 0xABBF), (0xFB00, 0xFB06), (0xFB13, 0xFB17),
    (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0x10400, 0x1044F), (0x104B0, 0x104D3), (0x104D8, 0x104FB),
    (0x10C80, 0x10CB2), (0x10CC0, 0x10CF2), (0x118A0, 0x118DF), (0x1E900, 0x1E943),
];
