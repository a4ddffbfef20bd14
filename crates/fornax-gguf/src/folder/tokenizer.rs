//! What `tokenizer.json` and its neighbours say, as GGUF tokenizer keys.
//!
//! Owns the two kinds of vocabulary that GGUF has for them: byte-level merges, and pieces with
//! scores (SentencePiece), of which a `tokenizer.json` keeps the merges. What neither kind can say
//! is refused by `tokenizer_rules`. Must not know how text is cut.

use serde_json::Value;

use super::document::{self, Document};
use super::post_processor::Ends;
use super::special::Special;
use super::tokenizer_rules::{Kind, Prefix, Rules};
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
        Kind::Pieces { prefix } => {
            set("ggml.model", "llama".into());
            set("ggml.pre", "default".into());
            set("ggml.scores", vocabulary.scores().into());
            // Scores say which merge goes first, not which there are: two tokens that make a third
            // need not be one of them.
            set("ggml.piece_merges", vocabulary.merges.clone().into());
            set("ggml.add_space_prefix", (prefix != Prefix::Never).into());
            if let Prefix::Scheme(scheme) = prefix {
                set("ggml.prepend_scheme", scheme.into());
            }
        }
    }
    if !vocabulary.normalized.is_empty() {
        set(
            "ggml.normalized_tokens",
            vocabulary.normalized.clone().into(),
        );
    }
    let around = Ends::of(folder, &tokenizer, rows)?;
    let (settings, generation) = (settings.as_ref(), generation.as_ref());
    let special = Special::of(&vocabulary, config, settings, generation, around)?;
    for &(name, id) in &special.ids {
        set(&format!("ggml.{name}_token_id"), id.into());
    }
    if !special.further_ends.is_empty() {
        set("ggml.eog_token_ids", special.further_ends.into());
    }
    set("ggml.add_bos_token", around.first.is_some().into());
    set("ggml.add_eos_token", around.last.is_some().into());
    for (key, template) in templates(folder, settings, read)? {
        set(key, template.into());
    }
    set("ggml.tokens", vocabulary.tokens.into());
    set("ggml.token_type", vocabulary.types.into());
    Ok(())
}

/// The chat templates and their keys: the one of its own file, or those of the settings, where there
/// may be several by name, as a list or as a dictionary.
fn templates(
    folder: &str,
    settings: Option<&Document>,
    read: &mut Read<'_>,
) -> Result<Vec<(&'static str, String)>, Error> {
    const FILE: &str = "chat_template.jinja";
    const DEFAULT: &str = "chat_template";
    if let Some(bytes) = read(FILE)? {
        let text = String::from_utf8(bytes.to_vec());
        let fault = |_| refuse(folder, FILE, "it is not UTF-8", "download it again");
        return text.map(|text| vec![(DEFAULT, text)]).map_err(fault);
    }
    let template = settings.and_then(|settings| settings.key(DEFAULT));
    let named = |wanted: &str| match template? {
        Value::Array(list) => {
            let name = |item: &&Value| item.get("name").and_then(Value::as_str) == Some(wanted);
            list.iter().find(name)?.get("template")?.as_str()
        }
        Value::Object(templates) => templates.get(wanted)?.as_str(),
        template => template.as_str().filter(|_| wanted == "default"),
    };
    let keys = [("default", DEFAULT), ("tool_use", "chat_template.tool_use")];
    let found = keys.map(|(name, key)| Some((key, named(name)?.to_owned())));
    Ok(found.into_iter().flatten().collect())
}
