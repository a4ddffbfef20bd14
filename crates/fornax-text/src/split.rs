//! Pre-tokenization: cutting text into the pieces inside which BPE merges.
//! Knows Unicode classes, no vocabulary.
//!
//! The published definition of each pre-tokenizer is a regular expression; what
//! stands here are the same rules by hand, each in time linear in the text: a run
//! of characters is looked at a bounded number of times (the expressions, matched
//! by backtracking, are not). The tests compare both.

use crate::unicode_class::Class;

/// A named way of cutting text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PreTokenizer {
    /// GPT-2.
    Gpt2,
    /// Llama 3: words with their leading mark, numbers in threes.
    Llama3,
    /// Qwen 2, 2.5 and 3: as Llama 3, but every digit alone.
    Qwen2,
    /// SmolLM: every digit alone, then GPT-2 between the digits.
    SmolLm,
}

/// What a value of `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Scheme {
    /// How text is cut.
    pub pre_tokenizer: PreTokenizer,
    /// A piece that is a token as a whole is taken at once, without merging (`ignore_merges`).
    pub whole_pieces: bool,
    /// Whether a BOS is put in front where the file does not say it (`add_bos_token` is absent).
    pub bos_by_default: bool,
}

/// One row a name: to add a pre-tokenizer, add a row.
const NAMES: [(&str, Scheme); 6] = [
    ("gpt-2", plain(PreTokenizer::Gpt2)),
    ("llama-bpe", LLAMA3),
    ("llama3", LLAMA3),
    ("llama-v3", LLAMA3),
    ("qwen2", plain(PreTokenizer::Qwen2)),
    ("smollm", plain(PreTokenizer::SmolLm)),
];

/// The names follow llama.cpp, whose converter writes them. Llama 3 files that predate the
/// flag `add_bos_token` rely on their readers knowing that this tokenizer begins with a BOS.
const LLAMA3: Scheme = Scheme {
    pre_tokenizer: PreTokenizer::Llama3,
    whole_pieces: true,
    bos_by_default: true,
};

const fn plain(pre_tokenizer: PreTokenizer) -> Scheme {
    Scheme {
        pre_tokenizer,
        whole_pieces: false,
        bos_by_default: false,
    }
}

impl Scheme {
    /// The scheme that `tokenizer.ggml.pre` names.
    pub(crate) fn from_name(name: &str) -> Option<Scheme> {
        let row = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(row.1)
    }

    /// The names that are known, for an error message.
    pub(crate) fn names() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }
}

impl PreTokenizer {
    /// Cuts `text` into pieces, which joined again are `text`.
    pub(crate) fn pieces(self, text: &str) -> Pieces<'_> {
        let section_end = match self {
            PreTokenizer::SmolLm => 0,
            _ => text.len(),
        };
        Pieces {
            pre_tokenizer: self,
            text,
            at: 0,
            section_end,
        }
    }
}

/// The pieces of a text, in order; none is empty.
pub(crate) struct Pieces<'a> {
    pre_tokenizer: PreTokenizer,
    text: &'a str,
    /// Byte offset of the next piece.
    at: usize,
    /// Byte offset up to which rules may look: no piece crosses it.
    section_end: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.at == self.text.len() {
            return None;
        }
        if self.at == self.section_end {
            self.section_end += digit_or_digitless(&self.text[self.at..]);
        }
        let section = &self.text[self.at..self.section_end];
        let length = match self.pre_tokenizer {
            PreTokenizer::Gpt2 | PreTokenizer::SmolLm => gpt2(section),
            PreTokenizer::Llama3 => cl100k(section, 3),
            PreTokenizer::Qwen2 => cl100k(section, 1),
        };
        let piece = &section[..length];
        self.at += length;
        Some(piece)
    }
}

/// Length of the single digit that `text` begins with, else of everything before the first digit.
fn digit_or_digitless(text: &str) -> usize {
    match first(text) {
        Some((Class::Number, length)) => length,
        _ => run_where(text, |class| class != Class::Number),
    }
}

/// Length of the first piece by the pattern of GPT-2:
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2(text: &str) -> usize {
    if let Some(length) = contraction(text, |letter| letter) {
        return length;
    }
    let space = usize::from(text.starts_with(' '));
    match first(&text[space..]) {
        Some((class, _)) if class != Class::Space => space + run(&text[space..], class),
        _ => white_space(text),
    }
}

/// Length of the first piece by the pattern of Llama 3, where N = `digits` is 3; Qwen 2 writes
/// `\p{N}`, N = 1:
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn cl100k(text: &str, digits: usize) -> usize {
    if let Some(length) = contraction(text, fold_case) {
        return length;
    }
    let (class, length) = first(text).expect("invariant: a piece is cut from text that is left");
    let next = || first(&text[length..]).map(|(class, _)| class);
    match class {
        Class::Letter => run(text, Class::Letter),
        Class::Number => run(first_characters(text, digits), Class::Number),
        Class::Other if next() == Some(Class::Letter) => {
            length + run(&text[length..], Class::Letter)
        }
        Class::Other => symbols(text, 0),
        Class::Space if text.starts_with(['\r', '\n']) => blank_lines(text),
        Class::Space => match next() {
            Some(Class::Letter) => length + run(&text[length..], Class::Letter),
            Some(Class::Other) if text.starts_with(' ') => symbols(text, 1),
            _ => blank_lines(text),
        },
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d` after `fold` of each letter.
fn contraction(text: &str, fold: fn(char) -> char) -> Option<usize> {
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
fn fold_case(letter: char) -> char {
    match letter {
        'ſ' => 's',
        _ => letter.to_ascii_lowercase(),
    }
}

/// Length of `[^\s\p{L}\p{N}]+[\r\n]*` behind the first `skip` bytes, with these.
fn symbols(text: &str, skip: usize) -> usize {
    let end = skip + run(&text[skip..], Class::Other);
    let newlines = text.as_bytes()[end..]
        .iter()
        .take_while(|byte| matches!(byte, b'\r' | b'\n'))
        .inspect(|_| crate::work::step());
    end + newlines.count()
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`: white space up to its last line end, if it has one.
fn blank_lines(text: &str) -> usize {
    let white = &text[..run(text, Class::Space)];
    match white.rfind(['\r', '\n']) {
        Some(last) => last + 1,
        None => white_space(text),
    }
}

/// `\s+(?!\S)|\s+`: white space, but its last character is left to the word that follows.
fn white_space(text: &str) -> usize {
    let length = run(text, Class::Space);
    if length == text.len() {
        return length;
    }
    let last = text[..length].chars().next_back().map_or(0, char::len_utf8);
    if length > last { length - last } else { length }
}

/// Class and byte length of the first character.
fn first(text: &str) -> Option<(Class, usize)> {
    let character = text.chars().next()?;
    Some((Class::of(character), character.len_utf8()))
}

/// The first `count` characters of `text`, or all of it.
fn first_characters(text: &str, count: usize) -> &str {
    match text.char_indices().nth(count) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// Byte length of the characters of `class` at the start of `text`.
fn run(text: &str, class: Class) -> usize {
    run_where(text, |other| other == class)
}

fn run_where(text: &str, belongs: impl Fn(Class) -> bool) -> usize {
    text.char_indices()
        .find(|&(_, character)| !belongs(Class::of(character)))
        .map_or(text.len(), |(end, _)| end)
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
