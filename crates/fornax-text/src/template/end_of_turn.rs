//! Finds out how a template ends an assistant's turn, by asking the template:
//! no list of names like `<|im_end|>`.

use serde_json::{Value as Json, json};

use super::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// Words that no template writes by itself, and none trims or rewrites.
const QUESTION: &str = "fornaxprobequestion";
const ANSWER: &str = "fornaxprobeanswer";

/// The control token that stands behind the answer when a conversation that ends with an
/// assistant's message is rendered; white space between them does not count (Llama 2 writes
/// `answer </s>`).
///
/// `None` where the template writes none, or renders none of the simple conversations that are
/// tried: such a template ends its turns by EOS alone, or fails on the user's request too, with
/// an error that the user sees.
pub(crate) fn find(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    let rendered = conversations()
        .into_iter()
        .filter_map(|request| template.render(&request).ok())
        .find(|text| text.contains(ANSWER))?;
    let (_, behind) = rendered.rsplit_once(ANSWER)?;
    let behind = behind.trim_start().as_bytes();
    let ends = tokenizer.control_tokens();
    let (token, _) = ends
        .filter(|(_, text)| behind.starts_with(text))
        .max_by_key(|(_, text)| text.len())?;
    Some(token)
}

/// The simplest conversation, and the same for templates that insist on a system message or on
/// content in parts.
fn conversations() -> [Json; 3] {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let parts = |role: &str, content: &str| json!({"role": role, "content": [{"type": "text", "text": content}]});
    let (question, answer) = (message("user", QUESTION), message("assistant", ANSWER));
    [
        json!({"messages": [question, answer]}),
        json!({"messages": [message("system", QUESTION), question, answer]}),
        json!({"messages": [parts("user", QUESTION), parts("assistant", ANSWER)]}),
    ]
}
