//! `fornax tokenize`: text to token ids.

use anyhow::Result;
use clap::Args;
use fornax::text::{Special, Tokenizer};
use serde_json::json;

use crate::model::ModelFile;
use crate::{input, output};

/// Turn text into token ids, separated by spaces
#[derive(Args)]
#[command(after_help = "\
Examples:
  fornax tokenize \"Once upon a time\"
  fornax tokenize --special \"<|im_start|>user\"
  fornax tokenize --model qwen3-0.6b.gguf --json - < book.txt")]
pub struct Arguments {
    #[command(flatten)]
    file: ModelFile,
    /// Parse special tokens in the text and add BOS and EOS as the model asks, unless it has them
    #[arg(long)]
    special: bool,
    /// One JSON object: ids, their texts, their count
    #[arg(long)]
    json: bool,
    /// The text; `-` or nothing reads stdin to its end, byte for byte
    text: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let text = match arguments.text.as_deref() {
        None | Some("-") => input::stdin_bytes()?,
        Some(text) => text.as_bytes().to_vec(),
    };
    let tokenizer = Tokenizer::from_gguf(&arguments.file.source().open()?)?;
    let tokens = match arguments.special {
        true => tokenizer.with_markers(tokenizer.encode_bytes(&text, Special::Parse)),
        false => tokenizer.encode_bytes(&text, Special::Plain),
    };
    if arguments.json {
        let piece = |token: &u32| {
            String::from_utf8_lossy(tokenizer.token_bytes(*token).unwrap_or_default()).into_owned()
        };
        let pieces: Vec<String> = tokens.iter().map(piece).collect();
        return output::json(&json!({
            "tokens": tokens,
            "pieces": pieces,
            "count": tokens.len(),
        }));
    }
    let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
    output::exact(format!("{}\n", ids.join(" ")).as_bytes())
}
