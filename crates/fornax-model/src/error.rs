//! Why a model could not be made ready, in words that say what to do.

use std::fmt;

use fornax_backend::BackendError;

/// A file that holds no model that runs here, or a device that cannot hold it.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file itself is broken, or metadata is missing or of another type.
    #[error(transparent)]
    File(#[from] fornax_gguf::Error),
    /// An architecture without a row in the table.
    #[error(
        "{file}: architecture `{name}` is not supported (supported: {supported}); pick a model of one of these"
    )]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// What it says it is.
        name: String,
        /// What runs, separated by commas.
        supported: String,
    },
    /// Metadata that contradicts itself or asks for what is not built.
    #[error("{file}: metadata `{key}` is {value}: {problem}")]
    Metadata {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// A tensor the architecture needs.
    #[error(
        "{file}: tensor `{name}` is missing; the `{architecture}` architecture needs it, and {wanted}; download the rest of the model, or correct what asks for it"
    )]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Who needs it.
        architecture: String,
        /// What it ought to be.
        wanted: Box<Wanted>,
    },
    /// A tensor that does not fit the metadata.
    #[error(
        "{file}: tensor `{name}` has shape {found:?}, but {wanted}; one of both is wrong: correct it, or take the weights that belong to it"
    )]
    TensorShape {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Row-major, outermost first.
        found: Vec<usize>,
        /// What it ought to be.
        wanted: Box<Wanted>,
    },
    /// A tensor that would have to be ignored, and with it a part of the model.
    #[error(
        "{file}: tensor `{name}` has no place in the `{architecture}` architecture as built here, so the model would answer wrongly without it; this variant is not supported"
    )]
    UnusedTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Who has no use for it.
        architecture: String,
    },
    /// A choice of the caller that this model cannot meet.
    #[error("{0}")]
    Options(String),
    /// The device could not take it.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// The shape that a tensor must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Row-major, outermost first.
    pub shape: Vec<usize>,
    /// Where it is asked for, and by which keys.
    pub by: String,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is asked for in {}", self.shape, self.by)
    }
}
