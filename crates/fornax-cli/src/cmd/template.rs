//! `fornax template`: the prompt that a chat request becomes.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use fornax::text::{ChatTemplate, Tokenizer};
use serde_json::Value;

use crate::misuse::misuse;
use crate::model::ModelFile;
use crate::{input, output};

/// Print the prompt that a chat request renders to, byte for byte
#[derive(Args)]
#[command(after_help = "\
The request is a JSON object with `messages` and, where the template uses them, `tools`,
`documents`, `add_generation_prompt` and any further variable.

Examples:
  fornax template request.json
  fornax template --set enable_thinking=false --set add_generation_prompt=true request.json
  fornax template --template chat.jinja - < request.json")]
pub struct Arguments {
    #[command(flatten)]
    file: ModelFile,
    /// A Jinja template in place of the model's; special tokens are then empty unless --model
    /// names a vocabulary too
    #[arg(long, value_name = "FILE.jinja")]
    template: Option<PathBuf>,
    /// Set a field of the request; may be repeated
    #[arg(long = "set", value_name = "KEY=JSON")]
    variables: Vec<String>,
    /// The prompt as one JSON string
    #[arg(long)]
    json: bool,
    /// The request; `-` reads stdin
    request: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut request = request(&arguments.request)?;
    let fields = request
        .as_object_mut()
        .ok_or_else(|| anyhow!("the request is no JSON object; give one with `messages`"))?;
    for variable in &arguments.variables {
        let (key, value) = assignment(variable)?;
        fields.insert(key, value);
    }
    let prompt = template(arguments)?.render(&request)?;
    match arguments.json {
        true => output::json(&prompt),
        false => output::exact(prompt.as_bytes()),
    }
}

fn template(arguments: &Arguments) -> Result<ChatTemplate> {
    let Some(path) = &arguments.template else {
        let file = arguments.file.source().open()?;
        let tokenizer = Tokenizer::from_gguf(&file)?;
        return Ok(ChatTemplate::from_gguf(&file, &tokenizer)?);
    };
    let name = path.display().to_string();
    let source = std::fs::read_to_string(path)
        .with_context(|| {
            format!("{name}: the template cannot be read; name a Jinja file with --template, or leave it away to take the model's own")
        })?;
    // The built-in model's tokens would be wrong in another model's template.
    let tokenizer = match &arguments.file.model {
        Some(_) => Some(Tokenizer::from_gguf(&arguments.file.source().open()?)?),
        None => None,
    };
    Ok(ChatTemplate::from_source(
        &name,
        &source,
        tokenizer.as_ref(),
    )?)
}

fn request(path: &PathBuf) -> Result<Value> {
    let (name, text) = match path.to_str() {
        Some("-") => ("stdin".to_owned(), input::stdin_text()?),
        _ => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .with_context(|| {
                    format!("{name}: the request cannot be read; name a JSON file with `messages`, or `-` to read stdin")
                })?;
            (name, text)
        }
    };
    serde_json::from_str(&text).with_context(|| format!("{name}: the request is no valid JSON"))
}

fn assignment(text: &str) -> Result<(String, Value)> {
    let Some((key, json)) = text.split_once('=') else {
        misuse!("--set {text}: write KEY=JSON, such as enable_thinking=false");
    };
    match serde_json::from_str(json) {
        Ok(value) => Ok((key.to_owned(), value)),
        Err(error) => {
            misuse!("--set {text}: `{json}` is no JSON (a text needs quotes: '\"…\"'): {error}")
        }
    }
}
