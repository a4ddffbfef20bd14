//! What comes from stdin.

use std::io::{Read, stdin};

use anyhow::{Context, Result, anyhow};

/// All of stdin, byte for byte, which must be UTF-8.
pub fn stdin_text() -> Result<String> {
    let mut bytes = Vec::new();
    stdin()
        .lock()
        .read_to_end(&mut bytes)
        .context("stdin cannot be read")?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!("stdin is not UTF-8 at byte {at}; convert the text to UTF-8")
    })
}
