//! The key-value pairs of a file, and typed questions to them.
//!
//! Owns which types answer which question; must not know what a key means.

use std::collections::HashMap;

use crate::{Array, Error, Value};

/// The metadata of a file, in its order.
///
/// Each question comes as `x(key)`, where absence is an error, and as `optional_x(key)`, where
/// absence is `None`. A value of the wrong type is an error in both.
#[derive(Debug)]
pub struct Metadata {
    /// Path or name of the file, for errors.
    file: String,
    entries: Vec<(String, Value)>,
    /// Key to index in `entries`.
    index: HashMap<String, usize>,
}

/// Declares the two forms of a question.
macro_rules! question {
    ($(
        $(#[$doc:meta])*
        $required:ident, $optional:ident: $answer:ty = $expected:literal, $read:expr;
    )+) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// Where the key is missing or of another type; the error names file and key.
        pub fn $required(&self, key: &str) -> Result<$answer, Error> {
            self.$optional(key)?.ok_or_else(|| self.missing(key, $expected))
        }

        $(#[$doc])*
        /// `None` where the key is missing.
        ///
        /// # Errors
        /// Where the key is of another type; the error names file and key.
        pub fn $optional(&self, key: &str) -> Result<Option<$answer>, Error> {
            self.question(key, $expected, $read)
        }
    )+};
}

impl Metadata {
    pub(crate) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            entries: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Adds an entry, unless the key is there already.
    pub(crate) fn insert(&mut self, key: &str, value: Value) -> bool {
        let absent = !self.index.contains_key(key);
        if absent {
            self.index.insert(key.to_owned(), self.entries.len());
            self.entries.push((key.to_owned(), value));
        }
        absent
    }

    /// All keys and values in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key, whatever its type.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&index| &self.entries[index].1)
    }

    question! {
        /// A number from 0 to 2³²−1, stored in any integer type.
        u32, optional_u32: u32 = "an integer from 0 to 4294967295",
            |value| value.integer()?.try_into().ok();
        /// A number from 0 to 2⁶⁴−1, stored in any integer type.
        u64, optional_u64: u64 = "an integer from 0 to 18446744073709551615",
            |value| value.integer()?.try_into().ok();
        /// A number from −2⁶³ to 2⁶³−1, stored in any integer type.
        i64, optional_i64: i64 = "an integer from -9223372036854775808 to 9223372036854775807",
            |value| value.integer()?.try_into().ok();
        /// A number, stored in single or double precision.
        f32, optional_f32: f32 = "a float", float;
        /// A truth value.
        bool, optional_bool: bool = "a bool", |value| match *value {
            Value::Bool(value) => Some(value),
            _ => None,
        };
        /// A string.
        str, optional_str: &str = "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        };
        /// An array of strings.
        strings, optional_strings: &[String] = "an array of strings", |value| match value {
            Value::Array(Array::String(items)) => Some(items.as_slice()),
            _ => None,
        };
        /// An array of single-precision numbers.
        f32s, optional_f32s: &[f32] = "an array of f32", |value| match value {
            Value::Array(Array::F32(items)) => Some(items.as_slice()),
            _ => None,
        };
        /// An array of numbers that fit an i32, stored in any integer type.
        i32s, optional_i32s: Vec<i32> = "an array of integers that fit i32", integers;
        /// An array of numbers that fit a u32, stored in any integer type.
        u32s, optional_u32s: Vec<u32> = "an array of integers that fit u32", integers;
    }

    fn question<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(answer) => Ok(Some(answer)),
            None => Err(self.wrong_type(key, expected, value)),
        }
    }

    fn missing(&self, key: &str, expected: &'static str) -> Error {
        Error::MissingKey {
            file: self.file.clone(),
            key: key.to_owned(),
            expected,
        }
    }

    fn wrong_type(&self, key: &str, expected: &'static str, value: &Value) -> Error {
        let found = match value.integer() {
            Some(integer) => format!("{} {integer}", value.type_name()),
            None => value.type_name(),
        };
        Error::WrongType {
            file: self.file.clone(),
            key: key.to_owned(),
            expected,
            found,
        }
    }
}

fn float(value: &Value) -> Option<f32> {
    match *value {
        Value::F32(value) => Some(value),
        Value::F64(value) => Some(value as f32),
        _ => None,
    }
}

fn integers<T: TryFrom<i128>>(value: &Value) -> Option<Vec<T>> {
    match value {
        Value::Array(array) => array.integers()?.map(|item| item.try_into().ok()).collect(),
        _ => None,
    }
}
