//! Chores of this repository, one file per command. Knows nothing but their names.

mod synth;

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
    Synth(synth::Arguments),
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Synth(arguments) => synth::run(&arguments),
    }
}
