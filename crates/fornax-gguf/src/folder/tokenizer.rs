//! What `tokenizer.json` and its neighbours say, as GGUF tokenizer keys.
//!
//! Owns the two kinds of vocabulary that GGUF has for them: byte-level merges, and pieces with
//! scores (SentencePiece), of which a `tokenizer.json` keeps the merges. Must not know how text is
//! cut.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::document::{self, Document};
use super::{Read, pre_tokenizer, refuse};
use crate::{Error, Metadata, Value as Stored};

const FILE: &str = "tokenizer.json";
/// Token types of GGUF.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;
/// What SentencePiece writes for a space.
const SPACE: &str = "▁";

/// Sets the tokenizer's keys for an embedding of `rows` rows.
pub(super) fn describe(
    folder: &str,
    config: &Document,
    rows: usize,
    read: &mut Read<'_>,
    metadata: &mut Metadata,
) -> Result<(), Error> {
    let tokenizer = document::required(folder, FILE, read)?;
    let settings = document::optional(folder, "tokenizer_config.json", read)?;
    let generation = document::optional(folder, "generation_config.json", read)?;
    let vocabulary = Vocabulary::of(folder, &tokenizer, rows)?;
    let mut set = |key: &str, value: Stored| {
        metadata.insert(&format!("tokenizer.{key}"), value);
    };
    match vocabulary.kind(folder, &tokenizer)? {
        Kind::ByteLevel { pre } => {
            set("ggml.model", "gpt2".into());
            set("ggml.pre", pre.into());
            set("ggml.merges", vocabulary.merges.clone().into());
        }
        Kind::Pieces { space_prefix } => {
            set("ggml.model", "llama".into());
            set("ggml.pre", "default".into());
            set("ggml.scores", vocabulary.scores().into());
            set("ggml.add_space_prefix", space_prefix.into());
        }
    }
    let special = Special::of(&vocabulary, config, settings.as_ref(), generation.as_ref())?;
    for &(name, id) in &special.ids {
        set(&format!("ggml.{name}_token_id"), id.into());
    }
    let [bos, eos] =
        ["bos", "eos"].map(|name| special.ids.iter().find(|(other, _)| *other == name));
    let ends = added_ends(tokenizer.value().get("post_processor"));
    for (name, id, end) in [("bos", bos, ends.0), ("eos", eos, ends.1)] {
        let key = format!("add_{name}_token");
        let said = settings
            .as_ref()
            .map(|settings| settings.optional_bool(&key));
        let adds = match said.transpose()?.flatten() {
            Some(adds) => adds,
            None => end.is_some() && end == id.map(|(_, id)| *id),
        };
        set(&format!("ggml.{key}"), (adds && id.is_some()).into());
    }
    if let Some(template) = template(folder, settings.as_ref(), read)? {
        set("chat_template", template.into());
    }
    set("ggml.tokens", vocabulary.tokens.into());
    set("ggml.token_type", vocabulary.types.into());
    Ok(())
}

enum Kind {
    ByteLevel { pre: &'static str },
    Pieces { space_prefix: bool },
}

struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    ids: HashMap<String, u32>,
    /// Each as its two parts with a space between.
    merges: Vec<String>,
}

impl Vocabulary {
    fn of(folder: &str, tokenizer: &Document, rows: usize) -> Result<Self, Error> {
        let fault = |problem: String| {
            refuse(
                folder,
                FILE,
                problem,
                "only models of BPE with merges are read",
            )
        };
        let model = tokenizer.object("model");
        let model = model.ok_or_else(|| fault("it has no model".to_owned()))?;
        let kind = model.optional_str("type")?.unwrap_or("BPE");
        if kind != "BPE" {
            return Err(fault(format!("its model is {kind}")));
        }
        let entries = model.key("vocab").and_then(Value::as_object);
        let entries = entries.ok_or_else(|| fault("it has no vocabulary".to_owned()))?;
        let mut ids = HashMap::with_capacity(entries.len());
        for (token, id) in entries {
            ids.insert(token.clone(), id_of(id, rows).map_err(fault)?);
        }
        let unknown = model.optional_str("unk_token")?;
        let unknown = unknown.and_then(|token| ids.get(token).copied());
        let added = tokenizer.key("added_tokens").and_then(Value::as_array);
        let mut special = HashMap::new();
        for token in added.into_iter().flatten() {
            let content = token.get("content").and_then(Value::as_str);
            let (Some(content), Some(id)) = (content, token.get("id")) else {
                return Err(fault("an added token has no content or id".to_owned()));
            };
            let id = id_of(id, rows).map_err(fault)?;
            let is_special = token.get("special").and_then(Value::as_bool) == Some(true);
            special.insert(id, if is_special { CONTROL } else { USER_DEFINED });
            ids.insert(content.to_owned(), id);
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
        })
    }

    fn kind(&self, folder: &str, tokenizer: &Document) -> Result<Kind, Error> {
        let model = tokenizer.object("model");
        let byte_fallback = model.map(|model| model.optional_bool("byte_fallback"));
        let pre = tokenizer
            .value()
            .get("pre_tokenizer")
            .unwrap_or(&Value::Null);
        if byte_fallback.transpose()?.flatten() == Some(true) {
            let space_prefix = prepends(tokenizer.value().get("normalizer")) || prepends(Some(pre));
            return Ok(Kind::Pieces { space_prefix });
        }
        let pre = pre_tokenizer::name(pre).map_err(|steps| {
            refuse(
                folder,
                FILE,
                format!("no known pre-tokenizer cuts like this one: {steps}"),
                "convert the model to GGUF with llama.cpp's converter, which may know it",
            )
        })?;
        Ok(Kind::ByteLevel { pre })
    }

    /// Scores that make the same merges: the earlier a merge, the higher its piece.
    fn scores(&self) -> Vec<f32> {
        let mut scores = vec![-(self.merges.len() as f32); self.tokens.len()];
        for (rank, merge) in self.merges.iter().enumerate().rev() {
            if let Some(&id) = self.ids.get(&merge.replacen(' ', "", 1)) {
                scores[id as usize] = -(rank as f32);
            }
        }
        scores
    }
}

fn id_of(id: &Value, rows: usize) -> Result<u32, String> {
    let id = id.as_u64().filter(|&id| id < rows as u64);
    let id = id.and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| format!("a token's id is not below the {rows} rows of the embedding"))
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

/// Whether a normaliser or pre-tokenizer puts a space before the text.
fn prepends(step: Option<&Value>) -> bool {
    let Some(step) = step else { return false };
    let text = |key: &str| step.get(key).and_then(Value::as_str);
    let list = |key: &str| step.get(key).and_then(Value::as_array);
    match text("type") {
        Some("Prepend") => text("prepend") == Some(SPACE),
        Some("Metaspace") => match text("prepend_scheme") {
            Some(scheme) => scheme != "never",
            None => step.get("add_prefix_space").and_then(Value::as_bool) == Some(true),
        },
        Some("Sequence") => {
            let steps = list("normalizers").or_else(|| list("pretokenizers"));
            steps.into_iter().flatten().any(|step| prepends(Some(step)))
        }
        _ => false,
    }
}

/// Tokens with a meaning.
struct Special {
    /// Names as GGUF keys have them.
    ids: Vec<(&'static str, u32)>,
}

impl Special {
    fn of(
        vocabulary: &Vocabulary,
        config: &Document,
        settings: Option<&Document>,
        generation: Option<&Document>,
    ) -> Result<Self, Error> {
        let rows = vocabulary.tokens.len() as u64;
        let numbers = |document: Option<&Document>, key: &str| -> Vec<u32> {
            let value = document.and_then(|document| document.key(key));
            let list = match value {
                Some(Value::Array(list)) => list.iter().collect(),
                other => other.into_iter().collect::<Vec<_>>(),
            };
            let ids = list.into_iter().filter_map(Value::as_u64);
            ids.filter(|&id| id < rows).map(|id| id as u32).collect()
        };
        let named = |key: &str| {
            let value = settings?.key(key)?;
            let token = value.as_str().or_else(|| value.get("content")?.as_str())?;
            vocabulary.ids.get(token).copied()
        };
        let mut ids = Vec::new();
        for (name, token) in [
            ("bos", "bos_token"),
            ("eos", "eos_token"),
            ("unknown", "unk_token"),
            ("padding", "pad_token"),
        ] {
            let number = || {
                numbers(Some(config), &format!("{token}_id"))
                    .first()
                    .copied()
            };
            if let Some(id) = named(token).or_else(number) {
                ids.push((name, id));
            }
        }
        let eos = ids
            .iter()
            .find(|(name, _)| *name == "eos")
            .map(|(_, id)| *id);
        let mut ends = numbers(generation, "eos_token_id");
        ends.extend(numbers(Some(config), "eos_token_id"));
        let mut others: Vec<u32> = Vec::new();
        for end in ends {
            if Some(end) != eos && !others.contains(&end) {
                others.push(end);
            }
        }
        if others.len() > 2 {
            let problem =
                "names more than three tokens that end an answer, more than GGUF has keys for";
            return Err(config.refuse("eos_token_id", problem));
        }
        ids.extend(["eot", "eom"].into_iter().zip(others));
        Ok(Self { ids })
    }
}

/// The ids that a post-processor puts before and behind a text.
fn added_ends(processor: Option<&Value>) -> (Option<u32>, Option<u32>) {
    let Some(processor) = processor else {
        return (None, None);
    };
    match processor.get("type").and_then(Value::as_str) {
        Some("Sequence") => {
            let list = processor.get("processors").and_then(Value::as_array);
            let mut ends = (None, None);
            for processor in list.into_iter().flatten() {
                let (first, last) = added_ends(Some(processor));
                ends = (ends.0.or(first), ends.1.or(last));
            }
            ends
        }
        Some("TemplateProcessing") => {
            let single = processor.get("single").and_then(Value::as_array);
            let id = |item: Option<&Value>| {
                let name = item?.get("SpecialToken")?.get("id")?.as_str()?;
                let token = processor.get("special_tokens")?.get(name)?;
                token.get("ids")?.get(0)?.as_u64()?.try_into().ok()
            };
            single.map_or((None, None), |items| (id(items.first()), id(items.last())))
        }
        _ => (None, None),
    }
}

/// The chat template: of its own file, or of the settings, where it may be one of several.
fn template(
    folder: &str,
    settings: Option<&Document>,
    read: &mut Read<'_>,
) -> Result<Option<String>, Error> {
    const FILE: &str = "chat_template.jinja";
    if let Some(bytes) = read(FILE)? {
        let text = String::from_utf8(bytes.to_vec());
        let fault = |_| refuse(folder, FILE, "it is not UTF-8", "download it again");
        return text.map(Some).map_err(fault);
    }
    let template = settings.and_then(|settings| settings.key("chat_template"));
    Ok(match template {
        Some(Value::Array(list)) => {
            let name = |item: &&Value| item.get("name").and_then(Value::as_str) == Some("default");
            let item = list.iter().find(name);
            item.and_then(|item| item.get("template")?.as_str())
                .map(str::to_owned)
        }
        Some(template) => template.as_str().map(str::to_owned),
        None => None,
    })
}
