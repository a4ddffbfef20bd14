//! How deep a template may nest: the engine reads, compiles and frees operators by recursion, and does
//! not count all of them; and how wide it may be, for the engine counts columns and arguments in
//! 16 bits. Knows tokens, not what they mean.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// Operators in one tag; each nests the engine's calls once more.
const MOST_OPERATORS: usize = 400;
/// `elif` in one template, which nest as well.
const MOST_ELIF: usize = 400;
/// Commas in one tag: arguments, items.
const MOST_COMMAS: usize = 10_000;
const LONGEST_SOURCE: usize = 1 << 20;
/// Characters of a line.
const LONGEST_LINE: usize = 65_000;

/// The line of `source` at which it becomes more than the engine's stack bears, and what is too much
/// there. What is no template at all is left to the engine.
pub(super) fn too_deep(source: &str, syntax: SyntaxConfig) -> Option<(usize, &'static str)> {
    if source.len() > LONGEST_SOURCE {
        return Some((1, "the template is longer than 1 MiB"));
    }
    for (line, text) in (1..).zip(source.split('\n')) {
        if text.len() > LONGEST_LINE && text.chars().count() > LONGEST_LINE {
            return Some((line, "the line is longer than 65,000 characters"));
        }
    }
    let (mut operators, mut commas, mut elif) = (0, 0, 0);
    for token in tokenize(source, false, syntax) {
        let (token, span) = token.ok()?;
        use Token as T;
        match token {
            T::VariableStart | T::BlockStart => (operators, commas) = (0, 0),
            T::Comma => commas += 1,
            T::Ident("elif") => elif += 1,
            T::Ident("not" | "and" | "or" | "in" | "is" | "if" | "else") => operators += 1,
            T::Plus | T::Minus | T::Mul | T::Div | T::FloorDiv | T::Pow | T::Mod => operators += 1,
            T::Tilde | T::Pipe | T::Dot => operators += 1,
            T::Eq | T::Ne | T::Gt | T::Gte | T::Lt | T::Lte => operators += 1,
            T::BracketOpen | T::ParenOpen | T::BraceOpen => operators += 1,
            _ => {}
        }
        let line = usize::from(span.start_line);
        if operators > MOST_OPERATORS {
            return Some((line, "there are more than 400 operators in one tag"));
        }
        if commas > MOST_COMMAS {
            return Some((line, "there are more than 10,000 commas in one tag"));
        }
        if elif > MOST_ELIF {
            return Some((line, "there are more than 400 elif"));
        }
    }
    None
}
