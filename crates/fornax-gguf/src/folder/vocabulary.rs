//! The vocabulary of a `tokenizer.json`: tokens by id, their types, and merges.
//!
//! Must not know how text is cut, nor which tokens have a role.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::document::Document;
use super::refuse;
use super::tokenizer::FILE;
use crate::{Error, error::Quoted};

/// Token types of GGUF.
const NORMAL: i32 = 1;
pub(super) const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
/// That of a single byte.
pub(super) const BYTE: i32 = 6;

/// The tokens of a folder, and what GGUF knows of them.
pub(super) struct Vocabulary {
    /// By id, one for each row of the embedding.
    pub tokens: Vec<String>,
    /// What each is for, as GGUF numbers it. `[tokens]`
    pub types: Vec<i32>,
    pub ids: HashMap<String, u32>,
    /// Each as its two parts with a space between.
    pub merges: Vec<String>,
    /// Added tokens that are looked for in normalized text, which is what the other added tokens
    /// leave; none where there are no others.
    pub normalized: Vec<u32>,
}

impl Vocabulary {
    /// That of a tokenizer and the model in it, for an embedding of `rows` rows.
    pub fn of(
        folder: &str,
        tokenizer: &Document,
        model: &Document,
        rows: usize,
    ) -> Result<Self, Error> {
        let fault = |problem: String| {
            refuse(
                folder,
                FILE,
                problem,
                "only models of BPE with merges are read",
            )
        };
        let beyond = |problem: String| {
            let advice = "correct vocab_size in config.json, or take the tokenizer of this model";
            refuse(folder, FILE, problem, advice)
        };
        let kind = model.optional_str("type")?.unwrap_or("BPE");
        if kind != "BPE" {
            return Err(fault(format!("its model is {kind}")));
        }
        let entries = model.key("vocab").and_then(Value::as_object);
        let entries = entries.ok_or_else(|| fault("it has no vocabulary".to_owned()))?;
        let mut ids = HashMap::with_capacity(entries.len());
        for (token, id) in entries {
            ids.insert(token.clone(), id_of(token, id, rows).map_err(beyond)?);
        }
        let unknown = model.optional_str("unk_token")?;
        let unknown = unknown.and_then(|token| ids.get(token).copied());
        let added = tokenizer.key("added_tokens").and_then(Value::as_array);
        let (mut special, mut normalized) = (HashMap::new(), Vec::new());
        for token in added.into_iter().flatten() {
            let content = token.get("content").and_then(Value::as_str);
            let (Some(content), Some(id)) = (content, token.get("id")) else {
                return Err(fault("an added token has no content or id".to_owned()));
            };
            let id = id_of(content, id, rows).map_err(beyond)?;
            let is_special = token.get("special").and_then(Value::as_bool) == Some(true);
            special.insert(id, if is_special { CONTROL } else { USER_DEFINED });
            if token.get("normalized").and_then(Value::as_bool) == Some(true) {
                normalized.push(id);
            }
            ids.insert(content.to_owned(), id);
        }
        if normalized.len() == special.len() {
            normalized.clear();
        }
        let mut tokens: Vec<Option<String>> = vec![None; rows];
        for (token, &id) in &ids {
            if let Some(other) = tokens[id as usize].replace(token.clone()) {
                return Err(fault(format!(
                    "{token:?} and {other:?} both have the id {id}"
                )));
            }
        }
        let types = tokens.iter().enumerate().map(|(id, token)| {
            let id = id as u32;
            match token {
                None => UNUSED,
                Some(_) if unknown == Some(id) => UNKNOWN,
                Some(token) => special.get(&id).copied().unwrap_or(usual_type(token)),
            }
        });
        let types = types.collect();
        let taken: HashSet<&str> = ids.keys().map(String::as_str).collect();
        let name = |(id, token): (usize, Option<String>)| {
            token.unwrap_or_else(|| {
                let mut name = format!("[PAD{id}]");
                while taken.contains(name.as_str()) {
                    name.push(']');
                }
                name
            })
        };
        let tokens = tokens.into_iter().enumerate().map(name).collect();
        let merges = model.key("merges").and_then(Value::as_array);
        let merges = merges.into_iter().flatten().map(merge);
        let merges: Option<Vec<String>> = merges.collect();
        Ok(Self {
            tokens,
            types,
            ids,
            merges: merges.ok_or_else(|| fault("a merge is not two parts".to_owned()))?,
            normalized,
        })
    }

    /// Scores that make the same merges: the earlier a merge, the higher its piece.
    pub fn scores(&self) -> Vec<f32> {
        let mut scores = vec![-(self.merges.len() as f32); self.tokens.len()];
        for (rank, merge) in self.merges.iter().enumerate().rev() {
            if let Some(&id) = self.ids.get(&merge.replacen(' ', "", 1)) {
                scores[id as usize] = -(rank as f32);
            }
        }
        scores
    }
}

fn id_of(token: &str, id: &Value, rows: usize) -> Result<u32, String> {
    let number = id.as_u64().filter(|&id| id < rows as u64);
    let number = number.and_then(|id| u32::try_from(id).ok());
    number.ok_or_else(|| {
        format!(
            "token {} has the id {id}, which is not below the {rows} rows of the embedding \
             (vocab_size)",
            Quoted(token)
        )
    })
}

/// A merge is a string with a space, or a list of two.
fn merge(merge: &Value) -> Option<String> {
    match merge {
        Value::String(text) => text.contains(' ').then(|| text.clone()),
        Value::Array(parts) => match parts.as_slice() {
            [Value::String(left), Value::String(right)] => Some(format!("{left} {right}")),
            _ => None,
        },
        _ => None,
    }
}

/// The type of a token that is not an added one.
fn usual_type(token: &str) -> i32 {
    let hex = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    match hex {
        Some(hex) if hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok() => BYTE,
        _ => NORMAL,
    }
}
