//! What `tokenizer.json` and its neighbours say, as GGUF tokenizer keys.
//!
//! Owns the two kinds of vocabulary that GGUF has for them: byte-level merges, and pieces with
//! scores (SentencePiece), of which a `tokenizer.json` keeps the merges. What neither kind can say
//! is refused by `tokenizer_rules`. Must not know how text is cut.

use serde_json::Value;

use super::document::{self, Document};
use super::special::{Special, added_ends};
use super::tokenizer_rules::{Kind, Rules};
use super::vocabulary::Vocabulary;
use super::{Read, refuse};
use crate::{Error, Metadata, Value as Stored};

/// The file of the tokenizer.
pub(super) const FILE: &str = "tokenizer.json";

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
    let model = tokenizer.object("model")?;
    let model = model.ok_or_else(|| {
        let problem = "it has no model";
        refuse(folder, FILE, problem, "download it again")
    })?;
    let vocabulary = Vocabulary::of(folder, &tokenizer, &model, rows)?;
    let mut set = |key: &str, value: Stored| {
        metadata.insert(&format!("tokenizer.{key}"), value);
    };
    let rules = Rules {
        folder,
        tokenizer: &tokenizer,
        model: &model,
        vocabulary: &vocabulary,
    };
    match rules.kind()? {
        Kind::ByteLevel { pre, ignore_merges } => {
            set("ggml.model", "gpt2".into());
            set("ggml.pre", pre.into());
            if let Some(ignore_merges) = ignore_merges {
                set("ggml.ignore_merges", ignore_merges.into());
            }
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
