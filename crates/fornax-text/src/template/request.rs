//! From a chat request to the variables of a template. Knows the form of OpenAI's
//! messages, not how they arrived.

use serde_json::{Map, Value as Json};

use crate::error::Error;

/// The variables that a template gets for `request`: its own, over the texts of the `markers`,
/// over what `transformers` passes where nothing is said.
///
/// # Errors
/// A request that is not an object with a list of messages, each with a role.
pub(crate) fn variables(
    request: &Json,
    markers: &Map<String, Json>,
) -> Result<Map<String, Json>, Error> {
    let given = request
        .as_object()
        .ok_or_else(|| wrong("the request", "is not an object; give {\"messages\": […]}"))?;
    let mut variables = markers.clone();
    variables.insert("tools".to_owned(), Json::Null);
    variables.insert("documents".to_owned(), Json::Null);
    variables.insert("add_generation_prompt".to_owned(), Json::Bool(false));
    variables.extend(given.clone());
    let messages = variables.get("messages").and_then(Json::as_array);
    let messages = messages.ok_or_else(|| {
        wrong(
            "messages",
            "is not a list; give [{\"role\": \"user\", \"content\": \"…\"}]",
        )
    })?;
    for (index, message) in messages.iter().enumerate() {
        check(message, index)?;
    }
    Ok(variables)
}

/// Brings the messages of a request from the form of OpenAI's wire into the one that templates
/// expect, as vLLM does: a tool call's `arguments` that are the text of a JSON object become that
/// object, and the content of a message that has tool calls but no content becomes "".
pub fn from_wire(request: &mut Json) {
    let messages = request.get_mut("messages").and_then(Json::as_array_mut);
    for message in messages.into_iter().flatten() {
        let Some(Json::Array(calls)) = message.get_mut("tool_calls") else {
            continue;
        };
        for call in calls.iter_mut() {
            parse_arguments(call);
        }
        if !calls.is_empty() && message.get("content").is_none_or(Json::is_null) {
            message["content"] = Json::String(String::new());
        }
    }
}

fn check(message: &Json, index: usize) -> Result<(), Error> {
    let place = format!("messages[{index}]");
    if !message.is_object() {
        return Err(wrong(&place, "is not an object with a role and content"));
    }
    match message.get("role").is_some_and(Json::is_string) {
        true => Ok(()),
        false => Err(wrong(
            &format!("{place}.role"),
            "is not a text such as \"user\"",
        )),
    }
}

/// Arguments that are the text of a JSON object become that object; others stay as they are.
fn parse_arguments(call: &mut Json) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else {
        return;
    };
    if let Some(text) = arguments.as_str()
        && let Ok(object @ Json::Object(_)) = serde_json::from_str(text)
    {
        *arguments = object;
    }
}

fn wrong(place: &str, problem: &str) -> Error {
    Error::Request {
        place: place.to_owned(),
        problem: problem.to_owned(),
    }
}
