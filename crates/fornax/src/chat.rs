//! A conversation as the model's template wants it: the fields of an OpenAI chat request.

use serde_json::{Map, Value, json};

/// Messages, tools and template variables of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    request: Map<String, Value>,
}

impl Chat {
    /// No message yet.
    pub fn new() -> Self {
        let mut request = Map::new();
        request.insert("messages".to_owned(), json!([]));
        request.insert("add_generation_prompt".to_owned(), json!(true));
        Self { request }
    }

    /// Adds what the model is to be.
    pub fn system(self, content: impl Into<String>) -> Self {
        self.text("system", content.into())
    }

    /// Adds what the person says.
    pub fn user(self, content: impl Into<String>) -> Self {
        self.text("user", content.into())
    }

    /// Adds what the model answered before.
    pub fn assistant(self, content: impl Into<String>) -> Self {
        self.text("assistant", content.into())
    }

    /// Adds a message in the form of the OpenAI protocol: tool calls, tool results.
    pub fn message(mut self, message: Value) -> Self {
        self.messages().push(message);
        self
    }

    /// Offers tools, each a function in the form of the OpenAI protocol.
    pub fn tools(self, tools: Vec<Value>) -> Self {
        self.variable("tools", Value::Array(tools))
    }

    /// Asks for a thought before the answer, or for none; unsaid, the template decides.
    pub fn think(self, think: bool) -> Self {
        self.variable("enable_thinking", Value::Bool(think))
    }

    /// Sets a variable of the template.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.request.insert(name.into(), value.into());
        self
    }

    /// The whole request, as the template is given it.
    pub fn request(&self) -> Value {
        Value::Object(self.request.clone())
    }

    fn text(self, role: &str, content: String) -> Self {
        self.message(json!({"role": role, "content": content}))
    }

    fn messages(&mut self) -> &mut Vec<Value> {
        let messages = self
            .request
            .get_mut("messages")
            .and_then(Value::as_array_mut);
        messages.expect("invariant: `new` makes an array of messages")
    }
}

impl Default for Chat {
    fn default() -> Self {
        Self::new()
    }
}
