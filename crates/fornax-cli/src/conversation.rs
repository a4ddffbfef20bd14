//! A chat of several turns on a terminal.

use anyhow::Result;
use fornax::{Chat, Error, GenerateOptions, Model};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::answer::{Interrupt, answer};
use crate::cmd::run::report;

/// Talks until the person leaves by Ctrl-D.
pub fn hold(
    model: &Model,
    mut chat: Chat,
    options: &GenerateOptions,
    interrupt: &Interrupt,
    metrics: bool,
) -> Result<()> {
    eprintln!("{} · Ctrl-C stops an answer, Ctrl-D leaves", model.name());
    let mut editor = DefaultEditor::new()?;
    loop {
        let line = match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                eprintln!("(Ctrl-D leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // Without a history the arrow keys only move within the line: nothing to report.
        let _ = editor.add_history_entry(&line);
        let asked = chat.clone().user(line);
        let generation = match model.chat(&asked, options) {
            Ok(generation) => generation,
            Err(error @ (Error::Request(_) | Error::Text(_))) => {
                eprintln!("error: {error}\nThe message was left out of the conversation.");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let answer = answer(model, generation, interrupt, true)?;
        report(&answer, metrics);
        if answer.is_cancelled() {
            eprintln!("(stopped)");
        }
        chat = asked.assistant(answer.text);
    }
}
