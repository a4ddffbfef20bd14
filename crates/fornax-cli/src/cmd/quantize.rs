//! `fornax quantize`: a model in smaller formats.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use fornax::gguf::{Gguf, Scheme, quantize::From};

use crate::model_writer;

/// Write a model with its weights in another format
#[derive(Args)]
#[command(after_help = "\
Types: F32 and F16 and BF16 keep numbers; Q8_0, Q6_K, Q5_K_M and Q4_K_M are what most people
want, from nearly exact to small. The mixes (_M) give more bits to the weights that matter most.

Examples:
  fornax quantize qwen3-0.6b-f16.gguf qwen3-0.6b-q4_k_m.gguf Q4_K_M
  fornax quantize q8.gguf q4.gguf Q4_K_M --requantize")]
pub struct Arguments {
    /// A GGUF file, the first part of a split one, or a model folder
    input: PathBuf,
    /// Where to write; replaced where it exists, once all is written
    output: PathBuf,
    /// The format or mix
    #[arg(value_name = "TYPE", value_parser = model_writer::scheme)]
    scheme: Scheme,
    /// Also from weights that are quantised already: their errors add up
    #[arg(long)]
    requantize: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let model = Gguf::open(&arguments.input)?;
    if arguments.input.is_dir() {
        model_writer::check(&model)?;
    }
    let from = match arguments.requantize {
        true => From::Anything,
        false => From::Exact,
    };
    let (input, output) = (&arguments.input, &arguments.output);
    model_writer::write(&model, input, output, arguments.scheme, from)
}
