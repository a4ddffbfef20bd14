//! What goes to stdout: exact bytes, or one JSON value; what goes to stderr; and what a terminal may be given.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

/// What is said where stdout takes nothing.
pub const UNWRITABLE: &str = "stdout cannot be written to; send the output elsewhere";

/// Writes exactly these bytes and nothing more.
pub fn exact(bytes: &[u8]) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(bytes).and_then(|()| stdout.flush());
    written.context(UNWRITABLE)
}

/// Writes one JSON value on a line of its own.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    exact(text.as_bytes())
}

/// Says a line on stderr. That nobody reads there any more is no reason to stop.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// A text of somebody else's for a terminal: what would steer it is written as an escape.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => out.push(character),
            steering if steering.is_control() => out.extend(steering.escape_debug()),
            other => out.push(other),
        }
    }
    out
}

/// Whether the reader of stdout went away, as `head` does: no failure of ours.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_a_terminal() {
        let text = "é\n\ta\u{1b}[31m\u{7}\r\u{9b}2J";
        assert_eq!(harmless(text), "é\n\ta\\u{1b}[31m\\u{7}\\r\\u{9b}2J");
    }
}
