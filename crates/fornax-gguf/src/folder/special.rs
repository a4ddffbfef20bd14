//! The tokens with a role: which begin and end a text, and which end an answer.
//!
//! Must not know how text is cut.

use serde_json::Value;

use super::document::Document;
use super::vocabulary::Vocabulary;
use crate::{Error, error::Quoted};

/// Tokens with a meaning.
pub(super) struct Special {
    /// Names as GGUF keys have them.
    pub ids: Vec<(&'static str, u32)>,
}

impl Special {
    /// Those that the settings name, and else those that the configuration numbers.
    pub fn of(
        vocabulary: &Vocabulary,
        config: &Document,
        settings: Option<&Document>,
        generation: Option<&Document>,
    ) -> Result<Self, Error> {
        let rows = vocabulary.tokens.len();
        let mut ids = Vec::new();
        for (name, token) in [
            ("bos", "bos_token"),
            ("eos", "eos_token"),
            ("unknown", "unk_token"),
            ("padding", "pad_token"),
        ] {
            let key = format!("{token}_id");
            let numbers = numbers(config, &key, rows)?;
            if let Some(generation) = generation {
                self::numbers(generation, &key, rows)?;
            }
            let named = settings.and_then(|settings| named(settings, token));
            let known = named.and_then(|token| vocabulary.ids.get(token));
            match (known.or(numbers.first()), named, settings) {
                (Some(&id), ..) => ids.push((name, id)),
                // Without its end an answer would have none.
                (None, Some(text), Some(settings)) if name == "eos" || name == "bos" => {
                    let problem = format!("is {}, which is not in the vocabulary", Quoted(text));
                    return Err(settings.refuse(token, &problem));
                }
                _ => {}
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

/// The ids that a post-processor puts before and behind a text.
pub(super) fn added_ends(processor: Option<&Value>) -> (Option<u32>, Option<u32>) {
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
