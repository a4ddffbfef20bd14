//! Macros that ask for arguments without a name, which the engine does not collect: they are
//! refused. Knows just enough of Jinja's lexis to find them, and no values.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;

/// The line where a macro names `varargs` or `kwargs` without having it as a parameter or variable
/// of its own, and what is wrong there. What is no template at all is left to the engine.
pub(super) fn collecting(
    source: &str,
    syntax: SyntaxConfig,
    is_undeclared: impl Fn(&str) -> bool,
) -> Option<(usize, String)> {
    let (mut depth, mut begins, mut behind_dot) = (0_usize, false, false);
    let mut found = None;
    for token in tokenize(source, false, syntax) {
        let (token, span) = token.ok()?;
        // Behind it an `=` makes it the name of an argument.
        if let Some(found) = found.take()
            && !matches!(token, Token::Assign)
        {
            return Some(found);
        }
        match token {
            Token::Ident("macro" | "call") if begins => depth += 1,
            Token::Ident("endmacro" | "endcall") if begins => depth = depth.saturating_sub(1),
            Token::Ident(name @ ("varargs" | "kwargs"))
                if depth > 0 && !behind_dot && is_undeclared(name) =>
            {
                let problem = format!("{name} in a macro is not supported: give it parameters");
                found = Some((usize::from(span.start_line), problem));
            }
            _ => {}
        }
        begins = matches!(token, Token::BlockStart);
        behind_dot = matches!(token, Token::Dot);
    }
    None
}
