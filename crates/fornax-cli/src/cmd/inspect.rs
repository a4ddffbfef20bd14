//! `fornax inspect`: what a model file holds and what running it takes.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use fornax::gguf::{Array, Gguf, Tensor, Value};
use fornax::{Config, FeedForward, Isa, KvType, Mixture, Source};
use serde_json::{Map, json};

use crate::{builtin, output};

/// Show what a model file holds: metadata, tensors, architecture, memory
#[derive(Args)]
#[command(after_help = "\
Examples:
  fornax inspect qwen3-0.6b-q8_0.gguf
  fornax inspect --json model.gguf | jq '.tensors[].name'")]
pub struct Arguments {
    /// A GGUF file, or a folder with safetensors; without it the model inside this program
    file: Option<PathBuf>,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let source = match &arguments.file {
        Some(path) => Source::File(path.clone()),
        None => builtin::source(),
    };
    let file = source.open()?;
    // A file whose architecture does not run here can still be looked at.
    let config = Config::checked(&file).map_err(|error| error.to_string());
    match arguments.json {
        true => output::json(&machine_form(&file, &config)),
        false => output::exact(person_form(&file, &config)?.as_bytes()),
    }
}

fn machine_form(file: &Gguf, config: &Result<Config, String>) -> serde_json::Value {
    let metadata: Map<_, _> = file
        .metadata()
        .iter()
        .map(|(key, value)| (key.to_owned(), json_value(value)))
        .collect();
    let tensors: Vec<_> = file
        .tensors()
        .map(|tensor| {
            json!({
                "name": tensor.name,
                "type": tensor.dtype.name(),
                "shape": tensor.shape,
                "bytes": tensor.len_bytes(),
            })
        })
        .collect();
    json!({
        "file": file.source(),
        "version": file.version(),
        "bytes": file.len_bytes(),
        "parameters": parameters(file),
        "instructions": instructions(),
        "model": match config {
            Ok(config) => model_json(file, config),
            Err(error) => json!({ "error": error }),
        },
        "metadata": metadata,
        "tensors": tensors,
    })
}

fn model_json(file: &Gguf, config: &Config) -> serde_json::Value {
    let memory = config.memory(file, KvType::F16);
    json!({
        "architecture": config.architecture.name(),
        "layers": config.layers(),
        "width": config.width,
        "context": config.context,
        "vocabulary": config.vocabulary,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "key_length": config.k_dim,
        "value_length": config.v_dim,
        "feed_forward": match feed_forward(config) {
            FeedForward::Dense { hidden } => json!({ "hidden": hidden }),
            FeedForward::Experts(Mixture { experts, used, hidden, .. }) => {
                json!({ "experts": experts, "used": used, "hidden": hidden })
            }
        },
        "memory": {
            "weights": memory.weights,
            "kv_per_token_f16": memory.kv_per_token,
            "full_context_f16": memory.at(config.context),
        },
    })
}

fn person_form(file: &Gguf, config: &Result<Config, String>) -> Result<String> {
    let mut text = String::new();
    writeln!(
        text,
        "{} (GGUF v{}, {})",
        file.source(),
        file.version(),
        bytes(file.len_bytes())
    )?;
    match config {
        Ok(config) => describe(&mut text, file, config)?,
        Err(error) => writeln!(text, "\nnot runnable here: {error}")?,
    }
    writeln!(text, "\nMetadata ({})", file.metadata().iter().len())?;
    for (key, value) in file.metadata().iter() {
        writeln!(text, "  {:<44} {}", output::harmless(key), short(value))?;
    }
    let tensors: Vec<Tensor<'_>> = file.tensors().collect();
    writeln!(
        text,
        "\nTensors ({}, shapes outermost first)",
        tensors.len()
    )?;
    for tensor in tensors {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let size = bytes(tensor.len_bytes() as u64);
        let (name, kind) = (output::harmless(tensor.name), tensor.dtype.name());
        writeln!(
            text,
            "  {name:<32} {:<20} {kind:<6} {size:>10}",
            shape.join(" × ")
        )?;
    }
    Ok(text)
}

fn describe(text: &mut String, file: &Gguf, config: &Config) -> Result<()> {
    let layers = config.layers();
    let Config {
        width,
        context,
        vocabulary,
        heads,
        kv_heads,
        k_dim,
        ..
    } = *config;
    let memory = config.memory(file, KvType::F16);
    writeln!(text, "\nArchitecture  {}", config.architecture.name())?;
    writeln!(text, "Parameters    {}", count(parameters(file)))?;
    writeln!(
        text,
        "Shape         {layers} layers, width {width}, {heads} heads ({kv_heads} KV) of {k_dim}, {}",
        match feed_forward(config) {
            FeedForward::Dense { hidden } => format!("MLP {hidden}"),
            FeedForward::Experts(Mixture {
                experts,
                used,
                hidden,
                ..
            }) => format!("{used} of {experts} experts of {hidden}"),
        }
    )?;
    writeln!(text, "Vocabulary    {vocabulary} tokens")?;
    writeln!(text, "Context       {context} tokens")?;
    let full = memory.at(context);
    writeln!(
        text,
        "Memory        {} weights + {} a token of KV (f16) = {} at full context",
        bytes(memory.weights),
        bytes(memory.kv_per_token),
        bytes(full)
    )?;
    writeln!(
        text,
        "Instructions  {} of this processor",
        instructions()[0]
    )?;
    Ok(())
}

/// That of the last block: some models begin with dense ones.
fn feed_forward(config: &Config) -> FeedForward {
    let last = config.blocks.last();
    last.expect("invariant: a model has a block").feed_forward
}

/// What the CPU backend can use here, the one that it takes first.
fn instructions() -> Vec<String> {
    Isa::available().map(|isa| isa.to_string()).collect()
}

fn parameters(file: &Gguf) -> u64 {
    file.tensors().map(|tensor| tensor.elements() as u64).sum()
}

fn json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(x) => json!(x),
        Value::I8(x) => json!(x),
        Value::U16(x) => json!(x),
        Value::I16(x) => json!(x),
        Value::U32(x) => json!(x),
        Value::I32(x) => json!(x),
        Value::U64(x) => json!(x),
        Value::I64(x) => json!(x),
        Value::F32(x) => json!(x),
        Value::F64(x) => json!(x),
        Value::Bool(x) => json!(x),
        Value::String(x) => json!(x),
        Value::Array(array) => json_array(array),
    }
}

fn json_array(array: &Array) -> serde_json::Value {
    match array {
        Array::U8(x) => json!(x),
        Array::I8(x) => json!(x),
        Array::U16(x) => json!(x),
        Array::I16(x) => json!(x),
        Array::U32(x) => json!(x),
        Array::I32(x) => json!(x),
        Array::U64(x) => json!(x),
        Array::I64(x) => json!(x),
        Array::F32(x) => json!(x),
        Array::F64(x) => json!(x),
        Array::Bool(x) => json!(x),
        Array::String(x) => json!(x),
        Array::Array(x) => x.iter().map(json_array).collect(),
    }
}

/// One line of a value: long texts and arrays are cut, with their length.
fn short(value: &Value) -> String {
    const WIDTH: usize = 60;
    match value {
        Value::Array(array) => format!("[{} × {}]", array.len(), array.element_name()),
        Value::String(text) => {
            let escaped: String = text.escape_debug().take(WIDTH).collect();
            match text.escape_debug().nth(WIDTH) {
                Some(_) => format!("{escaped}… ({} bytes)", text.len()),
                None => escaped,
            }
        }
        other => json_value(other).to_string(),
    }
}

fn bytes(bytes: u64) -> String {
    scaled(bytes, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

fn count(count: u64) -> String {
    scaled(count, 1000.0, &["", "K", "M", "B", "T"])
        .trim_end()
        .to_owned()
}

fn scaled(value: u64, step: f64, units: &[&str]) -> String {
    let (mut scaled, mut unit) = (value as f64, 0);
    while scaled >= step && unit + 1 < units.len() {
        scaled /= step;
        unit += 1;
    }
    match unit {
        0 => format!("{value} {}", units[0]),
        _ => format!("{scaled:.2} {}", units[unit]),
    }
}
