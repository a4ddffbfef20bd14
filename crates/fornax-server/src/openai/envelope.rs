//! What is around the choices of an answer.

use serde_json::{Value, json};

use super::usage::Usage;
use crate::app::{App, unix_seconds};
use crate::journal::RequestId;

/// The fields that every chunk of an answer repeats.
pub struct Envelope {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Envelope {
    /// The envelope of an answer that begins now.
    pub fn new(app: &App, request: &RequestId, prefix: &str, object: &'static str) -> Self {
        Self {
            id: format!("{prefix}-{}", request.0),
            object,
            created: unix_seconds(),
            model: app.config.model_name.clone(),
        }
    }

    /// An answer as a whole.
    pub fn whole(&self, choices: Vec<Value>, usage: Usage) -> Value {
        let mut whole = self.around(choices);
        whole["usage"] = json!(usage);
        whole
    }

    /// A piece of a streamed answer; with a null usage where a later chunk will tell it.
    pub fn chunk(&self, choices: Vec<Value>, usage_follows: bool) -> Value {
        let mut chunk = self.around(choices);
        if usage_follows {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// The chunk that tells the usage of a streamed answer.
    pub fn usage(&self, usage: Usage) -> Value {
        self.whole(Vec::new(), usage)
    }

    fn around(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}
