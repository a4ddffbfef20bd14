//! Chores of this repository, one file per command. Knows nothing but their names.

mod ci;
mod eval;
mod soak;
mod synth;
mod tables;
mod tidy;

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use clap::{Parser, Subcommand};

/// Chores of the Fornax repository.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ci(ci::Arguments),
    Eval(eval::Arguments),
    Soak(soak::Arguments),
    Synth(synth::Arguments),
    /// Write the README's table of what runs from the code.
    Tables,
    /// Check the rules of the repository that the compiler does not know.
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Ci(arguments) => ci::run(&arguments),
        Command::Eval(arguments) => eval::run(&arguments, root()),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Synth(arguments) => synth::run(&arguments),
        Command::Tables => tables::run(root()),
        Command::Tidy => tidy::run(root()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where stderr is closed as well, the exit code still tells.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository this program was built in.
fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask
        .parent()
        .expect("invariant: xtask is a folder of the repository")
}
