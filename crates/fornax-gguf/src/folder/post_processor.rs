//! What a `tokenizer.json` puts around every text, as far as GGUF can say it: BOS before it, EOS
//! behind it, both or neither.
//!
//! The post-processor alone decides. `add_bos_token` and `add_eos_token` of `tokenizer_config.json`
//! do not count beside a `tokenizer.json`, as in `transformers` 5. Must not know how text is cut.

use serde_json::Value;

use super::document::Document;
use super::refuse;
use super::tokenizer::FILE;
use crate::{Error, error::Quoted};

/// Ids of the tokens around a text.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Ends {
    pub first: Option<u32>,
    pub last: Option<u32>,
}

impl Ends {
    /// Those of a tokenizer with so many tokens.
    ///
    /// # Errors
    /// More than a token on a side, or a kind of post-processor that is not known.
    pub fn of(folder: &str, tokenizer: &Document, tokens: usize) -> Result<Self, Error> {
        let none = Value::Null;
        let processor = tokenizer.key("post_processor").unwrap_or(&none);
        of(processor, tokens).map_err(|problem| {
            let problem = format!("its post_processor {problem}");
            refuse(folder, FILE, problem, "use a model with another tokenizer")
        })
    }
}

/// The ends, or what is not supported.
fn of(processor: &Value, tokens: usize) -> Result<Ends, String> {
    if processor.is_null() {
        return Ok(Ends::default());
    }
    let kind = processor.get("type").and_then(Value::as_str);
    match kind.unwrap_or("of no type") {
        // It moves offsets, not tokens.
        "ByteLevel" => Ok(Ends::default()),
        "Sequence" => {
            let list = processor.get("processors").and_then(Value::as_array);
            let mut ends = Ends::default();
            for processor in list.into_iter().flatten() {
                let more = of(processor, tokens)?;
                if ends != Ends::default() && more != Ends::default() {
                    return Err("puts tokens around a text more than once".to_owned());
                }
                ends = if more == Ends::default() { ends } else { more };
            }
            Ok(ends)
        }
        "TemplateProcessing" => of_template(processor, tokens),
        "BertProcessing" | "RobertaProcessing" => {
            let token = |key: &str| {
                let id = processor.get(key).and_then(|token| token.get(1));
                id_of(id, tokens).ok_or_else(|| format!("has no token as {key}"))
            };
            let (first, last) = (token("cls")?, token("sep")?);
            let [first, last] = [first, last].map(Some);
            Ok(Ends { first, last })
        }
        other => Err(format!("is {}, which is not known", Quoted(other))),
    }
}

/// Those of a template: the text with at most one token on each side.
fn of_template(processor: &Value, tokens: usize) -> Result<Ends, String> {
    let single = processor.get("single").and_then(Value::as_array);
    let pieces = single.ok_or("has no template for one text")?;
    let is_text = |piece: &Value| {
        let name = piece.get("Sequence").and_then(|piece| piece.get("id"));
        name.and_then(Value::as_str) == Some("A")
    };
    let token = |piece: &Value| {
        let name = piece.get("SpecialToken").and_then(|piece| piece.get("id"));
        let name = name.and_then(Value::as_str).unwrap_or("");
        let special = processor.get("special_tokens");
        let ids = special.and_then(|special| special.get(name)?.get("ids")?.as_array());
        let id = match ids.map(Vec::as_slice) {
            Some([id]) => id_of(Some(id), tokens),
            _ => None,
        };
        let fault = || format!("names {}, which is not one token", Quoted(name));
        id.map(Some).ok_or_else(fault)
    };
    let (first, last) = match pieces.as_slice() {
        [text] if is_text(text) => (None, None),
        [first, text] if is_text(text) => (token(first)?, None),
        [text, last] if is_text(text) => (None, token(last)?),
        [first, text, last] if is_text(text) => (token(first)?, token(last)?),
        _ => {
            let problem = "puts something else around a text than one token on a side, \
                           which GGUF has no keys for";
            return Err(problem.to_owned());
        }
    };
    Ok(Ends { first, last })
}

fn id_of(id: Option<&Value>, tokens: usize) -> Option<u32> {
    let id = id?.as_u64().filter(|&id| id < tokens as u64)?;
    u32::try_from(id).ok()
}
