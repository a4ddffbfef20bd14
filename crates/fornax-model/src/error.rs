//! Why a model could not be made ready, in words that say what to do.

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
        "{file}: tensor `{name}` is missing; the `{architecture}` architecture needs it with shape {shape:?}"
    )]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Who needs it.
        architecture: String,
        /// Row-major, outermost first.
        shape: Vec<usize>,
    },
    /// A tensor that does not fit the metadata.
    #[error(
        "{file}: tensor `{name}` has shape {found:?}, but the metadata asks for {expected:?}; the file is damaged or was converted wrongly"
    )]
    TensorShape {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Row-major, outermost first.
        found: Vec<usize>,
        /// Row-major, outermost first.
        expected: Vec<usize>,
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
