//! `fornax detokenize`: token ids to text.

use anyhow::{Error, Result};
use clap::Args;
use fornax::text::{ControlTokens, Tokenizer};
use serde_json::json;

use crate::misuse::Misuse;
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
    let ids = match arguments.ids.as_slice() {
        [] => token_ids(&input::stdin_text()?).map_err(Error::msg)?,
        [dash] if dash == "-" => token_ids(&input::stdin_text()?).map_err(Error::msg)?,
        ids => token_ids(&ids.join(" ")).map_err(Misuse)?,
    };
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

/// The ids in a text, or what is none.
fn token_ids(text: &str) -> Result<Vec<u32>, String> {
    let words = text.split([' ', ',', '\n', '\r', '\t']);
    let words = words.filter(|word| !word.is_empty());
    let id = |word: &str| match word.parse() {
        Ok(id) => Ok(id),
        Err(error) => Err(format!("`{word}` is no token id: {error}")),
    };
    words.map(id).collect()
}
