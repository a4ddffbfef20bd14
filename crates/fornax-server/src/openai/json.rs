//! JSON in which no object has a key twice: of two values one would be passed over.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::error::ApiError;

/// Reads the body of a request.
///
/// # Errors
/// No JSON, or a key that an object has twice.
pub fn read(bytes: &[u8]) -> Result<Value, ApiError> {
    let twice = RefCell::new(None);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Unique { twice: &twice }.deserialize(&mut reader);
    let value = value.and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| match twice.take() {
        Some(key) => {
            let (line, column) = (error.line(), error.column());
            let message = format!(
                "the body has the key `{key}` twice in one object, at line {line} column {column}; keep one"
            );
            ApiError::field(key, message)
        }
        None => ApiError::bad_request(format!("the body is not JSON: {error}")),
    })
}

/// Reads a value.
#[derive(Clone, Copy)]
struct Unique<'a> {
    /// The key that an object had twice.
    twice: &'a RefCell<Option<String>>,
}

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = given.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut given: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = given.next_key::<String>()? {
            if fields.contains_key(&key) {
                self.twice.replace(Some(key));
                return Err(A::Error::custom("a key twice"));
            }
            fields.insert(key, given.next_value_seed(self)?);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_stands_there() {
        let text =
            r#" {"a": [null, true, -1, 18446744073709551615, 1.5e3, "\u00e9\n"], "b": {"a": {}}} "#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(read(text.as_bytes()), Ok(expected));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let deep = "[".repeat(100_000);
        for text in ["", "{", "{} {}", "[1,]", "1e999", "\"\\ud800\"", &deep] {
            let error = read(text.as_bytes()).unwrap_err().body();
            let message = error["error"]["message"].as_str().unwrap();
            assert!(message.contains("not JSON"), "{message}");
        }
    }

    #[test]
    fn a_key_stands_once_in_each_object() {
        for (text, key) in [
            (r#"{"a": 1, "b": 2, "a": 1}"#, "a"),
            (r#"{"a": [{"b": 1, "\u0062": 2}]}"#, "b"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().body();
            assert_eq!(error["error"]["param"], key, "{error}");
        }
    }
}
