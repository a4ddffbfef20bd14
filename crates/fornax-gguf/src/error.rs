//! What can be wrong with a GGUF file, in the form *what, where, what to do*.
//!
//! Owns the wording; must not know how a fault is found.

use std::{fmt, io, path::PathBuf};

use crate::DType;

/// Why a GGUF file could not be opened, read as asked, or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot open {}: {cause}; check the path and its permissions", path.display())]
    Open {
        /// The file that was asked for.
        path: PathBuf,
        /// The operating system's reason.
        cause: io::Error,
    },
    /// The file is of another kind, or of a version or byte order that is not read.
    #[error("{file}: {problem}; {advice}")]
    NotReadable {
        /// Path or name of the file.
        file: String,
        /// What it is instead.
        problem: String,
        /// What the user can do.
        advice: String,
    },
    /// The file contradicts itself or the format.
    #[error("{file}: at byte {offset}, {subject}: {problem}; {advice}")]
    Malformed {
        /// Path or name of the file.
        file: String,
        /// Where the fault lies, in bytes from the file's start.
        offset: u64,
        /// The key, tensor or header field that was being read.
        subject: String,
        /// What is wrong.
        problem: String,
        /// What the user can do.
        advice: &'static str,
    },
    /// A tensor is stored in a type that Fornax cannot read.
    #[error(
        "{file}: at byte {offset}, {tensor}: {type_name} (ggml type {number}) is not supported; \
         use a file whose tensors are {}",
        DType::list()
    )]
    UnsupportedType {
        /// Path or name of the file.
        file: String,
        /// Where the type number stands, in bytes from the file's start.
        offset: u64,
        /// The tensor, quoted.
        tensor: String,
        /// Name of the type in ggml, or that it has none.
        type_name: &'static str,
        /// Number of the type in ggml.
        number: u32,
    },
    /// A metadata key that is needed is absent.
    #[error(
        "{file}: metadata key {} is missing ({expected} expected); convert the \
         model again with a current converter",
        Quoted(key)
    )]
    MissingKey {
        /// Path or name of the file.
        file: String,
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A metadata key holds a value of another type, or one out of range.
    #[error(
        "{file}: metadata key {} is {found} where {expected} is expected; \
         convert the model again with a current converter",
        Quoted(key)
    )]
    WrongType {
        /// Path or name of the file.
        file: String,
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
        /// What it is, with its value where that is the trouble.
        found: String,
    },
    /// What was asked of the writer would not be a valid file.
    #[error("cannot write GGUF: {0}")]
    Unwritable(String),
    /// The operating system refused while writing.
    #[error("cannot write GGUF: {0}")]
    Write(io::Error),
}

/// Not as its source: the message has it already, and whoever prints the chain would repeat it.
impl From<io::Error> for Error {
    fn from(cause: io::Error) -> Self {
        Error::Write(cause)
    }
}

/// A name from a file, as an error shows it: in quotes, escaped, and cut where it is absurdly long.
pub(crate) struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LONGEST: usize = 96;
        match self.0.char_indices().nth(LONGEST) {
            None => write!(f, "{:?}", self.0),
            Some((end, _)) => write!(f, "{:?}…", &self.0[..end]),
        }
    }
}
