//! The `fornax` command line: arguments become a configuration once, then one file per command.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod answer;
mod bench;
mod builtin;
mod cmd;
mod conversation;
mod input;
mod loading;
mod metrics;
mod misuse;
mod model;
mod model_name;
mod model_writer;
mod output;
mod output_file;
mod perplexity;
mod sampling;
mod size;

use std::io::{ErrorKind, Write, stdout};
use std::process::ExitCode;

use clap::{Arg, Command as Parsed, CommandFactory, FromArgMatches, Parser, Subcommand};

/// Run language models from GGUF files.
#[derive(Parser)]
#[command(name = "fornax", version, max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 done, 1 it failed (the reason is on stderr), 2 the command line is wrong.

Examples:
  fornax run \"Tell me a story about a fox\"
  fornax run --model qwen3-0.6b-q8_0.gguf \"Why is the sky blue?\"
  fornax serve --port 8080
  fornax inspect qwen3-0.6b-q8_0.gguf")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<cmd::run::Arguments>),
    Serve(Box<cmd::serve::Arguments>),
    Bench(Box<cmd::bench::Arguments>),
    Perplexity(cmd::perplexity::Arguments),
    Inspect(cmd::inspect::Arguments),
    Tokenize(cmd::tokenize::Arguments),
    Detokenize(cmd::detokenize::Arguments),
    Template(cmd::template::Arguments),
    Convert(cmd::convert::Arguments),
    Quantize(cmd::quantize::Arguments),
}

/// The exit code of clap where a command line is wrong.
const MISUSE: u8 = 2;

fn main() -> ExitCode {
    fornax::gguf::end_where_a_file_shrinks();
    let outcome = match arguments().command {
        Command::Run(arguments) => cmd::run::run(&arguments),
        Command::Serve(arguments) => cmd::serve::run(&arguments),
        Command::Bench(arguments) => cmd::bench::run(&arguments),
        Command::Perplexity(arguments) => cmd::perplexity::run(&arguments),
        Command::Inspect(arguments) => cmd::inspect::run(&arguments),
        Command::Tokenize(arguments) => cmd::tokenize::run(&arguments),
        Command::Detokenize(arguments) => cmd::detokenize::run(&arguments),
        Command::Template(arguments) => cmd::template::run(&arguments),
        Command::Convert(arguments) => cmd::convert::run(&arguments),
        Command::Quantize(arguments) => cmd::quantize::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::say(format_args!("error: {}", output::harmless(&told(&error))));
            match error.is::<misuse::Misuse>() {
                true => ExitCode::from(MISUSE),
                false => ExitCode::FAILURE,
            }
        }
    }
}

/// The command line, or the end of the program where it is wrong.
fn arguments() -> Arguments {
    let words = cmd::bench::long_options(std::env::args_os());
    let matches = numbers_may_be_negative(Arguments::command()).try_get_matches_from(words);
    matches
        .and_then(|matches| Arguments::from_arg_matches(&matches))
        .unwrap_or_else(|error| end(&error))
}

/// Says what is wrong with the command line, or the help that it asks for.
fn end(said: &clap::Error) -> ! {
    let printed = said.print().and_then(|()| stdout().flush());
    let code = match printed {
        Err(error) if !said.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            output::say(format_args!("error: {}: {error}", output::UNWRITABLE));
            1
        }
        _ => said.exit_code(),
    };
    std::process::exit(code)
}

/// Lets every option take `-1` as its value, so that what is wrong with it is said: by default it is an
/// option that nobody knows.
fn numbers_may_be_negative(command: Parsed) -> Parsed {
    let named = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command
        .mut_args(named)
        .mut_subcommands(numbers_may_be_negative)
}

/// What went wrong, with the flags that help where the library cannot know them.
fn told(error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(fornax::Error::Text(fornax::text::Error::NoChatTemplate { file })) => format!(
            "{file}: no chat template (metadata key tokenizer.chat_template); give one with --template FILE, or complete plain text with fornax run --raw"
        ),
        _ => format!("{error:#}"),
    }
}
