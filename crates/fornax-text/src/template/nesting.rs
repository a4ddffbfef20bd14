//! How deep a template may nest: the engine reads, compiles and frees operators by recursion, and does
//! not count all of them. Knows tokens, not what they mean.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// Operators in one tag; each nests the engine's calls once more.
const MOST_OPERATORS: usize = 400;
/// `elif` in one template, which nest as well.
const MOST_ELIF: usize = 400;
const LONGEST_SOURCE: usize = 1 << 20;

/// Refuses what nests too deep.
///
/// # Errors
/// The template is longer than 1 MiB, has more than 400 operators in a tag or more than 400 `elif`,
/// or is none.
pub(super) fn check(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let too_much = |what: &str| Err(Error::new(ErrorKind::SyntaxError, what.to_owned()));
    if source.len() > LONGEST_SOURCE {
        return too_much("the template is longer than 1 MiB");
    }
    let (mut operators, mut elif) = (0, 0);
    for token in tokenize(source, false, syntax) {
        use Token as T;
        match token?.0 {
            T::VariableStart | T::BlockStart => operators = 0,
            T::Ident("elif") => elif += 1,
            T::Ident("not" | "and" | "or" | "in" | "is" | "if" | "else") => operators += 1,
            T::Plus | T::Minus | T::Mul | T::Div | T::FloorDiv | T::Pow | T::Mod => operators += 1,
            T::Tilde | T::Pipe | T::Dot => operators += 1,
            T::Eq | T::Ne | T::Gt | T::Gte | T::Lt | T::Lte => operators += 1,
            T::BracketOpen | T::ParenOpen | T::BraceOpen => operators += 1,
            _ => {}
        }
        if operators > MOST_OPERATORS {
            return too_much("more than 400 operators in one tag");
        }
        if elif > MOST_ELIF {
            return too_much("more than 400 elif in one template");
        }
    }
    Ok(())
}
