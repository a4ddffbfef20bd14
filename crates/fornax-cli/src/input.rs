//! What comes from stdin.

use std::io::{Read, stdin};

use anyhow::{Context, Result, anyhow};

/// All of stdin, byte for byte.
pub fn stdin_bytes() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stdin()
        .lock()
        .read_to_end(&mut bytes)
        .context("stdin cannot be read")?;
    Ok(bytes)
}

/// All of stdin, which must be UTF-8.
pub fn stdin_text() -> Result<String> {
    String::from_utf8(stdin_bytes()?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow!("stdin is not UTF-8 at byte {at}; convert the text to UTF-8")
    })
}
