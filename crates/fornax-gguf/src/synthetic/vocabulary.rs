//! A vocabulary borrowed from another file, padded to a shape's size.
//!
//! Must not know how text becomes tokens.

use std::collections::HashSet;

use super::Shape;
use crate::{Array, Error, Gguf, GgufWriter, Value};

const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
/// The token types of GGUF that padding needs.
const NORMAL: i32 = 1;
/// The score of tokens that must never be chosen.
const WORST_SCORE: f32 = -1000.0;

/// Copies all `tokenizer.*` keys of `from`, padded with unused tokens to what `shape` has rows for,
/// and gives the number of tokens.
pub(super) fn copy(from: &Gguf, shape: &Shape, writer: &mut GgufWriter) -> Result<usize, Error> {
    let metadata = from.metadata();
    let own = metadata.strings(TOKENS)?.len();
    let size = shape.vocabulary.unwrap_or(own);
    if own == 0 || own > size {
        return Err(Error::Unwritable(format!(
            "{} has {own} tokens but {} has room for 1 to {size}; choose another vocabulary",
            from.source(),
            shape.name
        )));
    }
    let types = metadata.optional_i32s(TYPES)?;
    let scores = metadata.optional_f32s(SCORES)?;
    for (key, length) in [
        (TYPES, types.as_ref().map(Vec::len)),
        (SCORES, scores.map(<[f32]>::len)),
    ] {
        if let Some(length) = length.filter(|&length| length != own) {
            let source = from.source();
            return Err(Error::Unwritable(format!(
                "{source}: {key} has {length} entries for {own} tokens"
            )));
        }
    }
    for (key, value) in metadata
        .iter()
        .filter(|(key, _)| key.starts_with("tokenizer."))
    {
        match (key, value) {
            (TOKENS, Value::Array(Array::String(tokens))) => {
                writer.set(key, padded_tokens(tokens, size))?
            }
            (TYPES, _) => {}
            (SCORES, Value::Array(Array::F32(scores))) => {
                writer.set(key, padded(scores, size, WORST_SCORE))?
            }
            _ => writer.set(key, value.clone())?,
        }
    }
    if types.is_some() || own < size {
        let types = types.unwrap_or_else(|| vec![NORMAL; own]);
        // Random weights draw padding too, and a reader should see that something was drawn.
        writer.set(TYPES, padded(&types, size, NORMAL))?;
    }
    Ok(size)
}

fn padded<T: Copy>(items: &[T], size: usize, filler: T) -> Vec<T> {
    let mut items = items.to_vec();
    items.resize(size, filler);
    items
}

/// The tokens and `[PAD…]` for each index beyond them; where a token has that name already, the
/// name gets another closing bracket.
fn padded_tokens(tokens: &[String], size: usize) -> Vec<String> {
    let taken: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    let padding = (tokens.len()..size).map(|index| {
        let mut name = format!("[PAD{index}]");
        while taken.contains(name.as_str()) {
            name.push(']');
        }
        name
    });
    tokens.iter().cloned().chain(padding).collect()
}
