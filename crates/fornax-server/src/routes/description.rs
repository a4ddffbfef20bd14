//! `GET /openapi.json` and `/docs`: the protocol, for programs and for people.
//!
//! The description is a file beside this one, checked against the addresses and against the code
//! that reads requests. The page shows whatever the description says.

use axum::http::{HeaderName, header};
use axum::response::Html;

/// The description, as OpenAPI 3.1 has it.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Describes every address.
pub async fn openapi() -> ([(HeaderName, &'static str); 1], &'static str) {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI)
}

/// A page that shows the description, and loads nothing from anywhere else.
pub async fn page() -> Html<&'static str> {
    Html(include_str!("docs.html"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::openai::fields::{Fields, FromFields};
    use crate::routes;
    use crate::routes::chat::ChatRequest;
    use crate::routes::completions::CompletionRequest;
    use crate::routes::embeddings::EmbeddingsRequest;
    use crate::routes::tokenize::{DetokenizeRequest, TokenizeRequest};

    fn description() -> Value {
        serde_json::from_str(OPENAPI).unwrap()
    }

    fn names(object: &Value) -> BTreeSet<String> {
        object.as_object().unwrap().keys().cloned().collect()
    }

    #[test]
    fn every_address_is_described_and_no_other() {
        let described = description();
        let paths = described["paths"].as_object().unwrap();
        let described = paths.iter().flat_map(|(path, methods)| {
            let methods = names(methods).into_iter();
            methods.map(move |method| (method.to_uppercase(), path.replace("{id}", "{*id}")))
        });
        let served = routes::endpoints().into_iter();
        let served = served.map(|endpoint| (endpoint.method.to_string(), endpoint.path.to_owned()));
        assert_eq!(served.collect::<BTreeSet<_>>(), described.collect());
    }

    #[test]
    fn keys_are_asked_for_where_the_description_says_so() {
        let described = description();
        for endpoint in routes::endpoints() {
            let path = endpoint.path.replace("{*id}", "{id}");
            let (_, operation) = described["paths"][&path]
                .as_object()
                .unwrap()
                .iter()
                .next()
                .unwrap();
            let open = operation.get("security") == Some(&json!([]));
            assert_eq!(open, endpoint.open, "{path}");
        }
    }

    /// The fields that the code asks for are those of the schema.
    fn check_fields<T: FromFields>(schema: &str) {
        let schema = description()["components"]["schemas"][schema].clone();
        let mut fields = Fields::new("", schema["examples"][0].clone()).unwrap();
        assert!(T::from_fields(&mut fields).is_ok(), "{schema}");
        let asked: BTreeSet<String> = fields.asked.iter().cloned().collect();
        assert_eq!(asked, names(&schema["properties"]));
        assert!(fields.finish().is_ok());
        for required in schema["required"].as_array().unwrap() {
            let mut example = schema["examples"][0].clone();
            example
                .as_object_mut()
                .unwrap()
                .remove(required.as_str().unwrap());
            let mut fields = Fields::new("", example).unwrap();
            assert!(T::from_fields(&mut fields).is_err(), "{required}");
        }
    }

    #[test]
    fn requests_have_the_fields_that_are_described() {
        check_fields::<ChatRequest>("ChatRequest");
        check_fields::<CompletionRequest>("CompletionRequest");
        check_fields::<EmbeddingsRequest>("EmbeddingsRequest");
        check_fields::<TokenizeRequest>("TokenizeRequest");
        check_fields::<DetokenizeRequest>("DetokenizeRequest");
    }

    #[test]
    fn it_describes_this_version() {
        assert_eq!(description()["info"]["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn the_page_needs_nothing_but_this_server() {
        let page = include_str!("docs.html");
        assert!(!page.contains("://"), "an address of another server");
        assert!(page.contains("fetch('openapi.json')"));
    }
}
