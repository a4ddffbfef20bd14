//! Source text taken apart into code, comments and strings, so that a rule sees what it is about.
//!
//! Both halves keep the length and the lines of the original: what belongs to the other is blank.
//! Understands Rust, and with it CUDA and Metal; knows no rule.

use std::iter::repeat_n;

/// A source file taken apart.
pub struct Source {
    /// Code; comments are blank, and so is what strings and characters hold.
    pub code: String,
    /// Comments, with their slashes.
    pub comments: String,
}

impl Source {
    /// Takes Rust, CUDA or Metal apart.
    pub fn new(text: &str) -> Source {
        let mut source = Source {
            code: String::with_capacity(text.len()),
            comments: String::with_capacity(text.len()),
        };
        let mut rest = text;
        while !rest.is_empty() {
            let (kind, len) = piece(rest, source.code.chars().next_back());
            source.push(kind, &rest[..len]);
            rest = &rest[len..];
        }
        source
    }

    fn push(&mut self, kind: Kind, piece: &str) {
        match kind {
            Kind::Code => {
                self.code.push_str(piece);
                self.comments.extend(blank(piece));
            }
            Kind::Comment => {
                self.code.extend(blank(piece));
                self.comments.push_str(piece);
            }
            Kind::Literal => {
                // The quotes stay, so that an attribute's value is still seen to be there.
                let held = piece.len().saturating_sub(2);
                self.code.push('"');
                self.code.extend(blank(piece).skip(1).take(held));
                self.code.extend((piece.len() > 1).then_some('"'));
                self.comments.extend(blank(piece));
            }
        }
    }
}

/// 1-based line of a byte offset.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// Offsets at which `word` stands by itself: no letter, digit or `_` beside it.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |&at| {
            !text[..at].ends_with(part) && !text[at + word.len()..].starts_with(part)
        })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Spaces for all but line ends, byte by byte.
fn blank(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(|c| {
        let stand_in = if c == '\n' { '\n' } else { ' ' };
        repeat_n(stand_in, c.len_utf8())
    })
}

/// What `rest` begins with, and how many bytes of it. `before` is the character ahead of it.
fn piece(rest: &str, before: Option<char>) -> (Kind, usize) {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if rest.starts_with("//") {
        (Kind::Comment, rest.find('\n').unwrap_or(rest.len()))
    } else if rest.starts_with("/*") {
        (Kind::Comment, block_comment(rest))
    } else if let Some(len) = (!in_word).then(|| raw_string(rest)).flatten() {
        (Kind::Literal, len)
    } else if rest.starts_with('"') {
        (Kind::Literal, quoted(rest, '"'))
    } else if let Some(len) = character(rest) {
        (Kind::Literal, len)
    } else {
        (Kind::Code, rest.chars().next().map_or(0, char::len_utf8))
    }
}

/// Length of a block comment; Rust's nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// Length of a raw string that starts here: `r"…"`, `br#"…"#`.
fn raw_string(rest: &str) -> Option<usize> {
    let start = rest.strip_prefix('b').unwrap_or(rest).strip_prefix('r')?;
    let held = start.trim_start_matches('#');
    let hashes = &start[..start.len() - held.len()];
    let held = held.strip_prefix('"')?;
    let close = format!("\"{hashes}");
    let len = held.find(&close).map_or(held.len(), |at| at + close.len());
    Some(rest.len() - held.len() + len)
}

/// Length up to and with the closing quote; a backslash takes the next character with it.
fn quoted(rest: &str, quote: char) -> usize {
    let mut characters = rest.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        if c == '\\' {
            characters.next();
        } else if c == quote {
            return at + quote.len_utf8();
        }
    }
    rest.len()
}

/// Length of a character literal; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let held = rest.strip_prefix('\'')?;
    let first = held.chars().next()?;
    let closes = held[first.len_utf8()..].starts_with('\'');
    (first == '\\' || closes).then(|| quoted(rest, '\''))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_comments_come_apart_and_keep_their_places() {
        let text = "let a = \"// no \\\" comment\"; // yes, \"one\"\nlet b = 1; /* a /* b */ c */ let c = 2;";
        let source = Source::new(text);
        assert_eq!(
            source.code,
            "let a = \"                \";              \nlet b = 1;                   let c = 2;"
        );
        assert_eq!(source.comments.trim_start(), {
            let blank = " ".repeat(11);
            format!("// yes, \"one\"\n{blank}/* a /* b */ c */           ")
        });
        assert_eq!(source.code.len(), text.len());
        assert_eq!(source.comments.len(), text.len());
    }

    #[test]
    fn raw_strings_characters_and_lifetimes_are_told_apart() {
        let text =
            "f(r#\"a \"b\" // c\"#, '\"', b'\\'', br\"\\\"); fn g<'a>(x: &'a str) {} // \u{e9}nd";
        let source = Source::new(text);
        let held: String = source.code.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            held,
            "f(\" \", \" \", b\" \", \" \"); fn g<'a>(x: &'a str) {}"
        );
        assert_eq!(source.comments.trim(), "// \u{e9}nd");
        assert_eq!(source.code.len(), text.len());
    }

    #[test]
    fn what_is_never_closed_reaches_to_the_end() {
        for text in ["\"abc", "/* abc", "r#\"abc\"", "'\\", "\""] {
            let source = Source::new(text);
            assert!(!source.code.contains("abc"), "{text}");
            assert_eq!(source.comments.len(), text.len(), "{text}");
        }
    }

    #[test]
    fn a_word_stands_by_itself() {
        let text = "safe unsafe unsafe_op unsafe";
        assert_eq!(words(text, "unsafe").collect::<Vec<_>>(), [5, 22]);
        assert_eq!(line_of("a\nb\nc", 4), 3);
    }
}
