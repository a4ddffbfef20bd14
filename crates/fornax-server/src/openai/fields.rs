//! The fields of a JSON object, taken one by one by name, so that none is ignored and each
//! complaint names its field.

use std::future::ready;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::error::ApiError;
use super::json;
use super::no_op::is_no_op;
use crate::app::App;

/// Bytes of a body that is read on the spot; a larger one takes so long that it is read beside the
/// connections.
const QUICKLY_READ: usize = 64 << 10;

/// What is left of an object.
pub struct Fields {
    /// Where the object stands in the request, such as `messages[2].`.
    place: String,
    left: Map<String, Value>,
    /// Every name that was asked for, so that the description of the protocol is checked.
    #[cfg(test)]
    pub asked: Vec<String>,
}

impl Fields {
    /// The fields of the object at `place`, which is empty for the body itself.
    ///
    /// # Errors
    /// It is no object.
    pub fn new(place: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(left) => Ok(Self {
                place: match place {
                    "" => String::new(),
                    place => format!("{place}."),
                },
                left,
                #[cfg(test)]
                asked: Vec::new(),
            }),
            _ if place.is_empty() => Err(ApiError::bad_request("the body is not a JSON object")),
            _ => Err(ApiError::field(
                place,
                format!("`{place}` is not an object"),
            )),
        }
    }

    /// Takes a field; null is as good as absent.
    ///
    /// # Errors
    /// A value of another type, with its place.
    pub fn optional<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        #[cfg(test)]
        self.asked.push(name.to_owned());
        let value = self.left.remove(name).filter(|value| !value.is_null());
        let place = self.place_of(name);
        value.map(|value| typed(&place, value)).transpose()
    }

    /// Takes a field that must be there.
    ///
    /// # Errors
    /// It is absent, null or of another type.
    pub fn required<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let place = self.place_of(name);
        let missing = || ApiError::field(&place, format!("`{place}` is missing"));
        self.optional(name)?.ok_or_else(missing)
    }

    /// A field's name with the place of its object.
    pub fn place_of(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    /// Makes sure that whatever was not taken asks for nothing.
    ///
    /// # Errors
    /// A field that is not supported, and would have an effect.
    pub fn finish(self) -> Result<(), ApiError> {
        match self
            .left
            .iter()
            .find(|(name, value)| !is_no_op(name, value))
        {
            None => Ok(()),
            Some((name, _)) => {
                let place = self.place_of(name);
                let message = format!("`{place}` is not supported with this value; leave it out");
                Err(ApiError::field(place, message))
            }
        }
    }
}

/// A request that is read from the fields of its body.
pub trait FromFields: Sized {
    /// Takes every field that has a meaning here.
    ///
    /// # Errors
    /// The first field that is missing or wrong.
    fn from_fields(fields: &mut Fields) -> Result<Self, ApiError>;
}

/// The body of a request, read whole.
pub struct Body<T>(pub T);

impl<T: FromFields + Send + 'static> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let limit = app.config.timeouts.body;
        let announced = request.headers().get(CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > app.config.body_limit as u64) {
            // Told at once. Many clients listen only after they have sent all, so that is taken.
            let body = request.into_body().into_data_stream();
            tokio::spawn(timeout(limit, body.for_each(|_| ready(()))));
            return Err(ApiError::too_large());
        }
        let bytes = timeout(limit, Bytes::from_request(request, app)).await;
        let bytes = bytes.map_err(|_| ApiError::too_slow(limit))??;
        if bytes.len() > QUICKLY_READ {
            return app.beside(move |_| parse(&bytes)).await.map(Body);
        }
        parse(&bytes).map(Body)
    }
}

/// Reads a request from the bytes of its body.
///
/// # Errors
/// No JSON object, a key that is there twice, or a field that is missing, wrong or not supported.
pub fn parse<T: FromFields>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut fields = Fields::new("", json::read(bytes)?)?;
    let request = T::from_fields(&mut fields)?;
    fields.finish()?;
    Ok(request)
}

/// A value as the type that is wanted at this place.
pub fn typed<T: DeserializeOwned>(place: &str, value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let place = match error.path().to_string() {
            inner if inner == "." => place.to_owned(),
            inner if inner.starts_with('[') => format!("{place}{inner}"),
            inner => format!("{place}.{inner}"),
        };
        let message = format!("`{place}`: {}", in_words(&error.into_inner().to_string()));
        ApiError::field(place, message)
    })
}

/// What was expected, for those who do not know our types.
fn in_words(complaint: &str) -> String {
    let types = [
        ("expected usize", "expected a whole number, 0 or more"),
        ("expected u32", "expected a token id"),
        ("expected i64", "expected a whole number of 64 bits"),
        ("expected f32", "expected a number"),
        ("expected a sequence", "expected a list"),
    ];
    let of_type = types.iter().find(|(name, _)| complaint.ends_with(name));
    match of_type {
        Some((name, words)) => complaint.replace(name, words),
        None => complaint.to_owned(),
    }
}
