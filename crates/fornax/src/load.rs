//! Where a model comes from.

use std::path::{Path, PathBuf};

use fornax_gguf::Gguf;

use crate::Error;

/// A GGUF file on disk or in the program.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, mapped into memory.
    File(PathBuf),
    /// Bytes inside the program.
    Static {
        /// What errors call it.
        name: &'static str,
        /// The file's content.
        bytes: &'static [u8],
    },
}

impl Source {
    /// Opens and checks the file.
    ///
    /// # Errors
    /// A file that cannot be read or is no valid GGUF file.
    pub fn open(&self) -> Result<Gguf, Error> {
        Ok(match self {
            Source::File(path) => Gguf::open(path)?,
            Source::Static { name, bytes } => Gguf::from_static(name, bytes)?,
        })
    }
}

impl From<&str> for Source {
    fn from(path: &str) -> Self {
        Source::File(path.into())
    }
}

impl From<&Path> for Source {
    fn from(path: &Path) -> Self {
        Source::File(path.to_owned())
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Source::File(path)
    }
}
