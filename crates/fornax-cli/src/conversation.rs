//! A chat of several turns on a terminal.

use std::io::{ErrorKind, IsTerminal, stdout};

use anyhow::Result;
use fornax::{Chat, Error, GenerateOptions, Model};
use rustyline::Editor;
use rustyline::config::{Behavior, Config};
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;

use crate::answer::{Interrupt, answer};
use crate::cmd::run::report;
use crate::output;

/// Share of the context that is kept free for an answer: one part in so many.
const ANSWER_SHARE: usize = 4;

/// Talks until the person leaves by Ctrl-D. `start` is what stands before the first turn.
pub fn hold(
    model: &Model,
    start: Chat,
    options: &GenerateOptions,
    interrupt: &Interrupt,
    metrics: bool,
) -> Result<()> {
    output::say(format_args!(
        "{} · Ctrl-C stops an answer, Ctrl-D leaves",
        output::harmless(model.name())
    ));
    let mut editor = editor()?;
    let mut turns: Vec<(String, String)> = Vec::new();
    loop {
        let line = match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => {
                output::say("(Ctrl-D leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                output::say("error: the line is not UTF-8\nIt was left out of the conversation.");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        // Without a history the arrow keys only move within the line: nothing to report.
        let _ = editor.add_history_entry(&line);
        let prompt = fitting(model, &start, &mut turns, &line);
        model.take_forwards();
        let generation = match prompt.and_then(|tokens| model.generate_tokens(tokens, options)) {
            Ok(generation) => generation,
            Err(error @ (Error::Request(_) | Error::Text(_))) => {
                output::say(format_args!(
                    "error: {error}\nThe message was left out of the conversation."
                ));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let answer = answer(model, generation, interrupt, true)?;
        report(model, &answer, metrics);
        turns.push((line, answer.text));
    }
}

/// The prompt of the next answer. The oldest turns are forgotten, and that is said, where they
/// would leave no room for it.
fn fitting(
    model: &Model,
    start: &Chat,
    turns: &mut Vec<(String, String)>,
    line: &str,
) -> Result<Vec<u32>, Error> {
    let room = model.context() - model.context() / ANSWER_SHARE;
    let mut forgotten = 0;
    loop {
        let said = turns.iter().fold(start.clone(), |chat, (user, assistant)| {
            chat.user(user).assistant(assistant)
        });
        let tokens = model.chat_tokens(&said.user(line))?;
        if tokens.len() <= room || turns.is_empty() {
            if forgotten > 0 {
                output::say(format_args!(
                    "note: the context is full; the oldest {forgotten} turns are forgotten"
                ));
            }
            return Ok(tokens);
        }
        turns.remove(0);
        forgotten += 1;
    }
}

/// Prompts and echo go to the terminal itself where stdout is a file or a pipe.
fn editor() -> Result<Editor<(), MemHistory>> {
    let behavior = match stdout().is_terminal() {
        true => Behavior::Stdio,
        false => Behavior::PreferTerm,
    };
    let config = Config::builder().behavior(behavior).build();
    Ok(Editor::with_history(config, MemHistory::new())?)
}
