//! `fornax detokenize`: token ids to text.

use anyhow::{Context, Result};
use clap::Args;
use fornax::text::{ControlTokens, Tokenizer};
use serde_json::json;

use crate::model::ModelFile;
use crate::{input, output};

/// Turn token ids into text, byte for byte
#[derive(Args)]
#[command(after_help = "\
Examples:
  fornax detokenize 300 301 302
  fornax tokenize \"Once upon a time\" | fornax detokenize")]
pub struct Arguments {
    #[command(flatten)]
    file: ModelFile,
    /// Leave control tokens out of the text
    #[arg(long)]
    hide_control: bool,
    /// One JSON object with the text
    #[arg(long)]
    json: bool,
    /// Token ids; `-` or nothing reads them from stdin, separated by spaces or commas
    ids: Vec<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let words = match arguments.ids.as_slice() {
        [] => input::stdin_text()?,
        [dash] if dash == "-" => input::stdin_text()?,
        ids => ids.join(" "),
    };
    let ids = words
        .split([' ', ',', '\n', '\r', '\t'])
        .filter(|word| !word.is_empty());
    let ids = ids
        .map(|word| {
            word.parse()
                .with_context(|| format!("`{word}` is no token id"))
        })
        .collect::<Result<Vec<u32>>>()?;
    let tokenizer = Tokenizer::from_gguf(&arguments.file.source().open()?)?;
    let control = match arguments.hide_control {
        true => ControlTokens::Hide,
        false => ControlTokens::Show,
    };
    let bytes = tokenizer.decode(&ids, control)?;
    match arguments.json {
        true => output::json(&json!({ "text": String::from_utf8_lossy(&bytes) })),
        false => output::exact(&bytes),
    }
}
