//! `fornax convert`: a model folder as one GGUF file.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use fornax::gguf::{Gguf, Scheme, quantize::From};

use crate::model_writer;

/// Write a model folder (config.json, tokenizer.json, safetensors) as one GGUF file
#[derive(Args)]
#[command(after_help = "\
Examples:
  fornax convert Qwen3-0.6B qwen3-0.6b.gguf
  fornax convert Qwen3-0.6B qwen3-0.6b-q8_0.gguf --type Q8_0")]
pub struct Arguments {
    /// The folder
    folder: PathBuf,
    /// Where to write; replaced where it exists, once all is written
    output: PathBuf,
    /// The format or mix of the matrices [default: as they are]
    #[arg(long = "type", value_name = "TYPE", value_parser = model_writer::scheme)]
    scheme: Option<Scheme>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (folder, output) = (&arguments.folder, &arguments.output);
    if !folder.is_dir() {
        let name = folder.display();
        bail!("{name} is no folder; for a GGUF file there is: fornax quantize {name} OUT TYPE");
    }
    let model = Gguf::open(folder)?;
    model_writer::check(&model)?;
    let scheme = arguments.scheme.unwrap_or(Scheme::Keep);
    model_writer::write(&model, folder, output, scheme, From::Exact)
}
