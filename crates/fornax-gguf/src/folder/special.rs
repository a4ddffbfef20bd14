//! The tokens with a role: which begin and end a text, and which end an answer.
//!
//! Must not know how text is cut.

use std::collections::HashSet;

use serde_json::Value;

use super::document::Document;
use super::post_processor::Ends;
use super::vocabulary::{UNKNOWN, Vocabulary};
use crate::{Error, error::Quoted};

/// Tokens with a meaning.
pub(super) struct Special {
    /// Names as GGUF keys have them.
    pub ids: Vec<(&'static str, u32)>,
    /// Further tokens that end an answer, for which GGUF has no names.
    pub further_ends: Vec<u32>,
}

impl Special {
    /// Those that the settings name, else those that every text has around it, and else those that
    /// the configuration numbers.
    ///
    /// # Errors
    /// A name or number that is not in the vocabulary, and another token around every text than the
    /// one that is named for it.
    pub fn of(
        vocabulary: &Vocabulary,
        config: &Document,
        settings: Option<&Document>,
        generation: Option<&Document>,
        around: Ends,
    ) -> Result<Self, Error> {
        let rows = vocabulary.tokens.len();
        let mut ids = Vec::new();
        for (name, token, around) in [
            ("bos", "bos_token", around.first),
            ("eos", "eos_token", around.last),
            ("unknown", "unk_token", None),
            ("padding", "pad_token", None),
        ] {
            let key = format!("{token}_id");
            let numbers = numbers(config, &key, rows)?;
            if let Some(generation) = generation {
                self::numbers(generation, &key, rows)?;
            }
            let named = settings.and_then(|settings| named(settings, token));
            let known = named.and_then(|token| vocabulary.ids.get(token));
            // Of what has no token its model says what stands for it, whatever else is named.
            let unknown = match name {
                "unknown" => vocabulary.types.iter().position(|&kind| kind == UNKNOWN),
                _ => None,
            };
            let id = unknown.map(|id| id as u32).or(known.copied());
            let id = id.or(around).or(numbers.first().copied());
            match (id, named, settings) {
                (Some(id), named, Some(settings)) if around.is_some_and(|around| around != id) => {
                    let around = around.map(|around| &vocabulary.tokens[around as usize]);
                    let problem = format!(
                        "is {}, but the post_processor of tokenizer.json puts {} there, and GGUF \
                         has a key for one of them only",
                        Quoted(named.unwrap_or("")),
                        Quoted(around.map_or("", String::as_str)),
                    );
                    return Err(settings.refuse(token, &problem));
                }
                // Another end, or none, than the one that is named would be no answer's.
                (_, Some(text), Some(settings))
                    if known.is_none() && (name == "eos" || name == "bos") =>
                {
                    let problem = format!("is {}, which is not in the vocabulary", Quoted(text));
                    return Err(settings.refuse(token, &problem));
                }
                (Some(id), ..) => ids.push((name, id)),
                (None, ..) => {}
            }
        }
        let eos = ids
            .iter()
            .find(|(name, _)| *name == "eos")
            .map(|(_, id)| *id);
        let mut ends = Vec::new();
        for document in generation.into_iter().chain([config]) {
            ends.extend(numbers(document, "eos_token_id", rows)?);
        }
        // A list may be as long as the vocabulary, or longer.
        let mut seen: HashSet<u32> = eos.into_iter().collect();
        ends.retain(|&end| seen.insert(end));
        let further_ends = ends.split_off(ends.len().min(2));
        ids.extend(["eot", "eom"].into_iter().zip(ends));
        Ok(Self { ids, further_ends })
    }
}

/// The token that the settings name under a key.
fn named<'a>(settings: &'a Document, key: &str) -> Option<&'a str> {
    let value = settings.key(key)?;
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// The id under a key, or the ids.
fn numbers(document: &Document, key: &str, rows: usize) -> Result<Vec<u32>, Error> {
    let list = match document.key(key) {
        Some(Value::Array(list)) => list.iter().collect(),
        // What some models say for none, which GGUF says by silence.
        Some(value) if key == "pad_token_id" && value.as_i64() == Some(-1) => Vec::new(),
        other => other.into_iter().collect::<Vec<_>>(),
    };
    let number = |value: &Value| {
        let id = value.as_u64().filter(|&id| id < rows as u64);
        id.map(|id| id as u32).ok_or_else(|| {
            let problem = format!(
                "is {value}, which is no id below the {rows} of the vocabulary (vocab_size)"
            );
            document.refuse(key, &problem)
        })
    };
    list.into_iter().map(number).collect()
}
