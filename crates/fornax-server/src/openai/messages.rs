//! The messages of a chat, in the form that chat templates read.

use fornax::Chat;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, typed};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// What a chat request says to the model.
pub struct Conversation(pub Chat);

impl Conversation {
    /// Takes `messages` and `chat_template_kwargs`.
    ///
    /// # Errors
    /// No message, or one that is not as it should be.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages: Vec<Value> = fields.required("messages")?;
        if messages.is_empty() {
            return Err(ApiError::field("messages", "`messages` is empty; give one"));
        }
        let mut chat = Chat::new();
        for (index, given) in messages.into_iter().enumerate() {
            chat = chat.message(message(&format!("messages[{index}]"), given)?);
        }
        let variables: Option<Map<String, Value>> = fields.optional("chat_template_kwargs")?;
        for (name, value) in variables.unwrap_or_default() {
            // These are fields of their own, with rules of their own.
            if ["messages", "tools", "add_generation_prompt"].contains(&name.as_str()) {
                let place = format!("chat_template_kwargs.{name}");
                let message = format!("`{place}` cannot be set; leave it out");
                return Err(ApiError::field(place, message));
            }
            chat = chat.variable(name, value);
        }
        Ok(Self(chat))
    }
}

/// One message, with its content as text.
fn message(place: &str, given: Value) -> Result<Value, ApiError> {
    let mut fields = Fields::new(place, given)?;
    let role: String = fields.required("role")?;
    if !ROLES.contains(&role.as_str()) {
        let place = fields.place_of("role");
        let message = format!(
            "`{place}` is `{role}`; it must be one of {}",
            ROLES.join(", ")
        );
        return Err(ApiError::field(place, message));
    }
    let calls: Option<Vec<Value>> = fields.optional("tool_calls")?;
    let calls = calls.filter(|calls| !calls.is_empty());
    let content = match fields.optional("content")? {
        Some(given) => Some(content(&fields.place_of("content"), given)?),
        None if role == "assistant" => None,
        None => fields.required("content").map(Some)?,
    };
    let mut message = Map::new();
    // A developer's message is what a system's used to be; templates know that name.
    let role = if role == "developer" {
        "system".to_owned()
    } else {
        role
    };
    message.insert("role".to_owned(), Value::String(role));
    let content = content.map_or(Value::Null, Value::String);
    message.insert("content".to_owned(), content);
    if let Some(calls) = calls {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    for name in ["name", "tool_call_id", "reasoning_content"] {
        if let Some(text) = fields.optional::<String>(name)? {
            message.insert(name.to_owned(), Value::String(text));
        }
    }
    fields.finish()?;
    Ok(Value::Object(message))
}

/// A text, or parts of type text, one a line.
fn content(place: &str, given: Value) -> Result<String, ApiError> {
    let parts: Vec<Value> = match given {
        Value::String(text) => return Ok(text),
        given => typed(place, given)?,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let mut fields = Fields::new(&format!("{place}[{index}]"), part)?;
        let kind: String = fields.required("type")?;
        if kind != "text" {
            let place = fields.place_of("type");
            let message = format!("`{place}` is `{kind}`; only `text` is read");
            return Err(ApiError::field(place, message));
        }
        texts.push(fields.required::<String>("text")?);
        fields.finish()?;
    }
    Ok(texts.join("\n"))
}
