//! Everything that can go wrong between a file and an answer.

use fornax_engine::{Failure, LimitsError, RequestError};
use fornax_model::LoadError;

/// What went wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file holds no model that runs here.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Its vocabulary or chat template cannot be used.
    #[error(transparent)]
    Text(#[from] fornax_text::Error),
    /// A choice of the caller that cannot be met.
    #[error("{0}")]
    Options(String),
    /// The engine cannot be built with these sizes.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The request cannot be answered.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The answer broke off.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl From<fornax_gguf::Error> for Error {
    fn from(error: fornax_gguf::Error) -> Self {
        Error::Load(error.into())
    }
}
