//! Metadata of one architecture: keys under its name, with errors that name them.

use std::fmt::Display;

use fornax_gguf::{Gguf, Metadata};

use crate::LoadError;

/// Reads `{architecture}.{key}` as sizes and factors.
pub(crate) struct Keys<'a> {
    /// The file read.
    pub file: &'a Gguf,
    /// Prefix of the keys: the value of `general.architecture`.
    pub architecture: &'a str,
}

impl<'a> Keys<'a> {
    /// A size that must be there and above 0.
    pub fn size(&self, key: &str) -> Result<usize, LoadError> {
        let key = self.full(key);
        let value = self.metadata().u32(&key)?;
        self.positive(&key, value)
    }

    /// A size that follows from others where it is absent, as the GGUF specification defines.
    pub fn size_or(&self, key: &str, derived: usize) -> Result<usize, LoadError> {
        let key = self.full(key);
        match self.metadata().optional_u32(&key)? {
            Some(value) => self.positive(&key, value),
            None => Ok(derived),
        }
    }

    /// A finite factor above 0 that must be there.
    pub fn factor(&self, key: &str) -> Result<f32, LoadError> {
        let key = self.full(key);
        let value = self.metadata().f32(&key)?;
        match value.is_finite() && value > 0.0 {
            true => Ok(value),
            false => Err(self.refuse(&key, value, "it must be a number above 0")),
        }
    }

    /// Refuses a file that has this key with any value but `neutral`.
    pub fn only_text(&self, key: &str, neutral: &str) -> Result<(), LoadError> {
        let key = self.full(key);
        match self.metadata().optional_str(&key)? {
            Some(value) if value != neutral => {
                Err(self.refuse(&key, format!("`{value}`"), "this is not supported"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a file whose value for this key is anything but 0.
    pub fn absent(&self, key: &str, problem: &str) -> Result<(), LoadError> {
        let key = self.full(key);
        match self.metadata().optional_u32(&key)? {
            None | Some(0) => Ok(()),
            Some(value) => Err(self.refuse(&key, value, problem)),
        }
    }

    /// The error for a value that cannot be used.
    pub fn refuse(&self, key: &str, value: impl Display, problem: &str) -> LoadError {
        LoadError::Metadata {
            file: self.file.source().to_owned(),
            key: key.to_owned(),
            value: value.to_string(),
            problem: problem.to_owned(),
        }
    }

    /// A key with the architecture's prefix.
    pub fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    fn positive(&self, key: &str, value: u32) -> Result<usize, LoadError> {
        match value {
            0 => Err(self.refuse(key, 0, "it must be above 0")),
            // Sizes are multiplied with each other: far above any model, far below overflow.
            1..=0xff_ffff => Ok(value as usize),
            _ => Err(self.refuse(key, value, "no model is that large; the file is damaged")),
        }
    }
}
