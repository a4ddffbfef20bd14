//! For tests: what a template or an expression comes to, beside a request that has a little of each.

use serde_json::json;

use crate::template::ChatTemplate;

/// What a template prints, or the error as text.
pub(super) fn template(source: &str) -> Result<String, String> {
    let request = json!({
        "messages": [{"role": "user", "content": "Hello"}],
        "empty": [],
        "t": "naïve 東京",
    });
    ChatTemplate::from_source("test.jinja", source, None)
        .and_then(|template| template.render(&request))
        .map_err(|error| error.to_string())
}

/// What an expression prints, or the error as text.
pub(super) fn expression(source: &str) -> Result<String, String> {
    template(&format!("{{{{ {source} }}}}"))
}
