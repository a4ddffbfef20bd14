//! Metadata of one architecture: keys under its name, with errors that name them.

use std::fmt::Display;

use fornax_gguf::{Array, Gguf, Metadata, Value};

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

    /// A finite factor above 0, `neutral` where it is absent.
    pub fn factor_or(&self, key: &str, neutral: f32) -> Result<f32, LoadError> {
        Ok(self.optional_factor(key)?.unwrap_or(neutral))
    }

    /// A finite factor above 0, where it is there.
    pub fn optional_factor(&self, key: &str) -> Result<Option<f32>, LoadError> {
        match self.metadata().optional_f32(&self.full(key))? {
            Some(_) => self.factor(key).map(Some),
            None => Ok(None),
        }
    }

    /// A text, where it is there.
    pub fn optional_text(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        Ok(self.metadata().optional_str(&self.full(key))?)
    }

    /// A truth value, false where it is absent.
    pub fn flag(&self, key: &str) -> Result<bool, LoadError> {
        let value = self.metadata().optional_bool(&self.full(key))?;
        Ok(value.unwrap_or(false))
    }

    /// A number that may be 0, which it is where it is absent.
    pub fn count(&self, key: &str) -> Result<usize, LoadError> {
        let full = self.full(key);
        match self.metadata().optional_u32(&full)? {
            None | Some(0) => Ok(0),
            Some(value) => self.positive(&full, value),
        }
    }

    /// Blocks of the model; each has tensors, so that a file cannot claim more than it holds.
    pub fn layers(&self) -> Result<usize, LoadError> {
        let layers = self.size("block_count")?;
        let tensors = self.file.tensors().count();
        match layers <= tensors {
            true => Ok(layers),
            false => {
                let problem = format!("the file has only {tensors} tensors; it is damaged");
                Err(self.refuse(&self.full("block_count"), layers, &problem))
            }
        }
    }

    /// Positions that a windowed block sees; `None` where no block has a window.
    pub fn window(&self) -> Result<Option<usize>, LoadError> {
        let window = self.count("attention.sliding_window")?;
        Ok((window > 0).then_some(window))
    }

    /// Refuses a window where none is known.
    pub fn no_window(&self) -> Result<(), LoadError> {
        let problem = "sliding windows are not supported in this architecture";
        self.absent("attention.sliding_window", problem)
    }

    /// Which of the blocks have a window: all but each `period`th, or what the file says.
    pub fn windowed(&self, layers: usize, period: usize) -> Result<Vec<bool>, LoadError> {
        let key = self.full("attention.sliding_window_pattern");
        let every = |period: usize| {
            (0..layers)
                .map(|layer| layer % period + 1 < period)
                .collect()
        };
        match self.metadata().value(&key) {
            None => Ok(every(period)),
            Some(Value::Array(Array::Bool(pattern))) if pattern.len() == layers => {
                Ok(pattern.clone())
            }
            Some(Value::Array(array)) => {
                let problem = format!("it must have a truth value for each of {layers} blocks");
                let found = format!("an array of {} {}", array.len(), array.element_name());
                Err(self.refuse(&key, found, &problem))
            }
            Some(_) => Ok(every(self.size("attention.sliding_window_pattern")?)),
        }
    }

    /// Refuses a file whose number for this key is anything but 0.
    pub fn absent(&self, key: &str, problem: &str) -> Result<(), LoadError> {
        let full = self.full(key);
        let found = match self.metadata().value(&full) {
            None => None,
            Some(Value::F32(_) | Value::F64(_)) => {
                let value = self.metadata().optional_f32(&full)?;
                value
                    .filter(|value| *value != 0.0)
                    .map(|value| value.to_string())
            }
            Some(_) => {
                let value = self.metadata().optional_u32(&full)?;
                value
                    .filter(|value| *value != 0)
                    .map(|value| value.to_string())
            }
        };
        match found {
            None => Ok(()),
            Some(value) => Err(self.refuse(&full, value, problem)),
        }
    }

    /// The error for a value that cannot be used.
    pub fn refuse(&self, key: &str, value: impl Display, problem: &str) -> LoadError {
        LoadError::Metadata {
            file: self.file.file_of_settings(),
            key: self.file.setting(key).to_owned(),
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
