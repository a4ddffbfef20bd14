//! A command line that can never work, whatever the model, the files and the machine: where options
//! contradict one another, or have a value that no parser of one option refuses.
//!
//! Must not be used for what a file, a model or a machine does not allow: that is a failure.

use std::fmt;

/// What is wrong with the command line. The program says it and ends with exit code 2, as it does for
/// what clap refuses.
#[derive(Debug)]
pub struct Misuse(pub String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// Returns from a function with a [`Misuse`], said as by `format!`.
macro_rules! misuse {
    ($($said:tt)+) => {
        return Err(anyhow::Error::new($crate::misuse::Misuse(format!($($said)+))))
    };
}
pub(crate) use misuse;

/// A number of things of which there must be one.
///
/// # Errors
/// Something else.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| format!("give a whole number from 1 to {}", usize::MAX))
}

/// Milliseconds that an answer may take.
///
/// # Errors
/// Something else.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "give milliseconds, more than 0".to_owned())
}
