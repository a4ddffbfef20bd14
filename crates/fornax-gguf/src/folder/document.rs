//! JSON files of a folder, with questions whose errors name file and key.
//!
//! Must not know what a key means.

use serde_json::Value;

use super::{Read, refuse};
use crate::Error;

/// A JSON object, or one inside it.
#[derive(Clone)]
pub(super) struct Document {
    folder: String,
    file: String,
    value: Value,
}

/// Reads a file that must be there.
pub(super) fn required(folder: &str, file: &str, read: &mut Read<'_>) -> Result<Document, Error> {
    optional(folder, file, read)?.ok_or_else(|| {
        refuse(
            folder,
            file,
            "the file is missing",
            "name a .gguf file, or a folder with config.json, tokenizer.json and safetensors",
        )
    })
}

/// Reads a file that may be absent.
pub(super) fn optional(
    folder: &str,
    file: &str,
    read: &mut Read<'_>,
) -> Result<Option<Document>, Error> {
    let Some(bytes) = read(file)? else {
        return Ok(None);
    };
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
        refuse(
            folder,
            file,
            format!("not valid JSON: {error}"),
            "download it again",
        )
    })?;
    Ok(Some(Document {
        folder: folder.to_owned(),
        file: file.to_owned(),
        value,
    }))
}

impl Document {
    /// The JSON itself.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The value of a key; `None` where it is absent or null.
    pub fn key(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|value| !value.is_null())
    }

    /// The object under a key, as a document of its own.
    pub fn object(&self, key: &str) -> Result<Option<Document>, Error> {
        let object = |value: &'_ Value| value.as_object().cloned();
        let object = self.question(key, "is not an object", object)?;
        Ok(object.map(|object| Document {
            folder: self.folder.clone(),
            file: self.file.clone(),
            value: Value::Object(object),
        }))
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.value
            .as_object()
            .is_none_or(|object| object.is_empty())
    }

    /// This object with what another says besides, or instead.
    pub fn overlaid(mut self, other: &Document) -> Document {
        if let (Some(mine), Some(theirs)) = (self.value.as_object_mut(), other.value.as_object()) {
            mine.extend(theirs.clone());
        }
        self
    }

    /// A count that must be there.
    pub fn size(&self, key: &str) -> Result<usize, Error> {
        self.optional_size(key)?
            .ok_or_else(|| self.refuse(key, "is missing"))
    }

    /// A count.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, Error> {
        let size = |value: &Value| u32::try_from(value.as_u64()?).ok();
        self.question(key, "is not a number from 0 to 4294967295", size)
            .map(|size| size.map(|size| size as usize))
    }

    /// A number.
    pub fn optional_number(&self, key: &str) -> Result<Option<f32>, Error> {
        let finite = |value: &Value| {
            let number = value.as_f64()? as f32;
            number.is_finite().then_some(number)
        };
        self.question(key, "is not a number", finite)
    }

    /// A truth value.
    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.question(key, "is not true or false", Value::as_bool)
    }

    /// A truth value with a usual one where it is absent; `null` is false, as in Python.
    pub fn truth(&self, key: &str, usual: bool) -> Result<bool, Error> {
        match self.value.get(key) {
            None => Ok(usual),
            Some(_) => Ok(self.optional_bool(key)?.unwrap_or(false)),
        }
    }

    /// A string.
    pub fn optional_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.question(key, "is not a string", Value::as_str)
    }

    fn question<'a, T>(
        &'a self,
        key: &str,
        problem: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.key(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(answer) => Ok(Some(answer)),
            None => Err(self.refuse(key, problem)),
        }
    }

    /// The error for a key.
    pub fn refuse(&self, key: &str, problem: &str) -> Error {
        refuse(
            &self.folder,
            &self.file,
            format!("{key} {problem}"),
            "check that the folder is complete and of a model that Fornax runs",
        )
    }
}
