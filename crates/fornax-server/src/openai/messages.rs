//! The messages of a chat, in the form that chat templates read.

use fornax::Chat;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::Fields;
use super::no_op::is_no_op;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Fields that only messages of one role have, and which that is.
const FIELDS_OF_ROLES: [(&str, &str); 3] = [
    ("tool_calls", "assistant"),
    ("reasoning_content", "assistant"),
    ("tool_call_id", "tool"),
];

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
    for (name, owner) in FIELDS_OF_ROLES {
        if role != owner {
            check_absent(&mut fields, name, &role, owner)?;
        }
    }
    let calls: Option<Vec<Value>> = fields.optional("tool_calls")?;
    let calls = calls.filter(|calls| !calls.is_empty());
    for (index, call) in calls.iter().flatten().enumerate() {
        let place = format!("{}[{index}]", fields.place_of("tool_calls"));
        check_call(&place, call.clone())?;
    }
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

/// Makes sure that a message has no field of another role, which no template would look at.
fn check_absent(fields: &mut Fields, name: &str, role: &str, owner: &str) -> Result<(), ApiError> {
    let given: Option<Value> = fields.optional(name)?;
    // Clients with one form for all messages write empty texts.
    if given.is_none_or(|given| given == "" || is_no_op(name, &given)) {
        return Ok(());
    }
    let place = fields.place_of(name);
    let message = format!(
        "`{place}` belongs to messages of role `{owner}`, and this one's is `{role}`; leave it out"
    );
    Err(ApiError::field(place, message))
}

/// Makes sure that a call of a tool has what templates read, and nothing that they pass over.
fn check_call(place: &str, given: Value) -> Result<(), ApiError> {
    let mut fields = Fields::new(place, given)?;
    fields.optional::<String>("id")?;
    // Who puts a call together from the deltas of a stream has it.
    fields.optional::<usize>("index")?;
    let kind: Option<String> = fields.optional("type")?;
    if let Some(kind) = kind.filter(|kind| kind != "function") {
        let place = fields.place_of("type");
        let message = format!("`{place}` is `{kind}`; it must be `function`");
        return Err(ApiError::field(place, message));
    }
    let function = fields.required("function")?;
    let mut function = Fields::new(&fields.place_of("function"), function)?;
    function.required::<String>("name")?;
    let arguments: Value = function.required("arguments")?;
    if !arguments.is_string() && !arguments.is_object() {
        let place = function.place_of("arguments");
        let message = format!("`{place}` is neither an object nor the text of one");
        return Err(ApiError::field(place, message));
    }
    function.finish()?;
    fields.finish()
}

/// A text, or parts of type text, one a line.
fn content(place: &str, given: Value) -> Result<String, ApiError> {
    let parts = match given {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => {
            let message = format!("`{place}` is neither a text nor a list of parts");
            return Err(ApiError::field(place, message));
        }
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
