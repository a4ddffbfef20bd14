//! `fornax run`: one answer, or a conversation on a terminal.

use std::io::{IsTerminal, stdin};

use anyhow::{Result, bail};
use clap::Args;
use fornax::text::Special;
use fornax::{Chat, GenerateOptions, Generation, Model};

use crate::answer::{Answer, Interrupt, answer};
use crate::misuse::misuse;
use crate::model::Load;
use crate::sampling::Sampling;
use crate::{conversation, input, output};

/// Answer a prompt, or chat on a terminal
#[derive(Args)]
#[command(after_help = "\
Without a prompt the text comes from stdin; on a terminal it is a chat, in which Ctrl-C stops an
answer and Ctrl-D leaves. Only the model's text goes to stdout.

Examples:
  fornax run \"Tell me a story about a fox\"
  fornax run --temperature 0 --no-think \"What is 12 + 30?\"
  fornax run --raw --max-tokens 100 \"Once upon a time\"
  fornax template request.json | fornax run --raw --special -
  cat notes.txt | fornax run --model qwen3-0.6b-q8_0.gguf --system \"Summarise the text.\"")]
pub struct Arguments {
    /// The prompt; `-` reads stdin
    prompt: Option<String>,
    /// Continue the plain text, without a chat template
    #[arg(long)]
    raw: bool,
    /// With --raw: special tokens that the text spells out are special tokens
    #[arg(long, requires = "raw")]
    special: bool,
    /// What the model is to be
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Ask for a thought before the answer [default: the template's choice]
    #[arg(long, overrides_with = "no_think", conflicts_with = "raw")]
    think: bool,
    /// Ask for an answer without a thought
    #[arg(long, overrides_with = "think", conflicts_with = "raw")]
    no_think: bool,
    /// Print speeds and the time of each forward to stderr
    #[arg(long)]
    metrics: bool,
    /// One JSON object at the end instead of streamed text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: Load,
    #[command(flatten)]
    sampling: Sampling,
}

/// Said of a prompt without a word.
const EMPTY: &str = "the prompt is empty; give one, or pipe one in";

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let options = arguments.sampling.options()?;
    let prompt = match arguments.prompt.as_deref() {
        Some("-") => Some(input::stdin_text()?),
        Some(prompt) if prompt.trim().is_empty() => {
            misuse!("{EMPTY}")
        }
        Some(prompt) => Some(prompt.to_owned()),
        None if stdin().is_terminal() => None,
        None => Some(input::stdin_text()?),
    };
    if prompt.is_none() && (arguments.raw || arguments.json) {
        misuse!("--raw and --json need a prompt: give one, or pipe it in");
    }
    if prompt
        .as_deref()
        .is_some_and(|prompt| prompt.trim().is_empty())
    {
        bail!("{EMPTY}");
    }
    let model = arguments.load.load(1)?;
    let chat = first_chat(arguments);
    if arguments.think || arguments.no_think {
        model.require_thinking_switch()?;
    }
    let interrupt = Interrupt::install()?;
    let Some(prompt) = prompt else {
        return conversation::hold(&model, chat, &options, &interrupt, arguments.metrics);
    };
    let generation = match arguments.raw {
        true => raw(&model, &prompt, arguments.special, &options)?,
        false => model.chat(&chat.user(without_last_newline(&prompt)), &options)?,
    };
    let answer = answer(&model, generation, &interrupt, !arguments.json)?;
    if arguments.json {
        output::json(&answer.json())?;
    }
    report(&model, &answer, arguments.metrics);
    Ok(())
}

/// Says on stderr what the text itself does not show.
pub fn report(model: &Model, answer: &Answer, metrics: bool) {
    // Both may go to one log or, behind a pipe, to one terminal. Stdout keeps the bare text, so it is
    // stderr that ends its line.
    if answer.line_is_open && (metrics || answer.note().is_some()) {
        output::say("");
    }
    if let Some(note) = answer.note() {
        output::say(format_args!("note: {note}"));
    }
    if metrics {
        output::say(format_args!("backend      {}", model.backend()));
        output::say(answer.metrics.text().trim_end());
    }
}

fn raw(
    model: &Model,
    prompt: &str,
    special: bool,
    options: &GenerateOptions,
) -> Result<Generation> {
    if !special {
        return Ok(model.generate(prompt, options)?);
    }
    let tokens = model.tokenizer().encode(prompt, Special::Parse);
    let tokens = model.tokenizer().with_markers(tokens);
    Ok(model.generate_tokens(tokens, options)?)
}

fn first_chat(arguments: &Arguments) -> Chat {
    let mut chat = Chat::new();
    if arguments.think || arguments.no_think {
        chat = chat.think(arguments.think);
    }
    match &arguments.system {
        Some(system) => chat.system(system),
        None => chat,
    }
}

/// A shell's pipe ends in a newline that nobody wrote as part of a message.
fn without_last_newline(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}
