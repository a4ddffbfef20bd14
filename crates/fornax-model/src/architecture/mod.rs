//! The table of architectures: one file and one row each.
//!
//! A file knows which metadata and tensors its architecture has; what they do is in the shared
//! blocks.

mod llama;
mod qwen3;
mod qwen3moe;

use fornax_backend::Backend;
use fornax_gguf::Gguf;

use crate::block::Layer;
use crate::keys::Keys;
use crate::loader::Loader;
use crate::{Config, LoadError};

macro_rules! architectures {
    ($($(#[$doc:meta])* $variant:ident: $name:literal in $module:ident;)*) => {
        /// A family of models that share their tensors' names and their arithmetic.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Architecture {
            $($(#[$doc])* $variant,)*
        }

        impl Architecture {
            /// Every architecture that runs.
            pub const ALL: &[Architecture] = &[$(Architecture::$variant),*];

            /// What `general.architecture` calls it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Architecture::$variant => $name,)*
                }
            }

            /// Reads the dimensions of a file of this architecture.
            pub(crate) fn config(self, file: &Gguf) -> Result<Config, LoadError> {
                let keys = Keys { file, architecture: self.name() };
                match self {
                    $(Architecture::$variant => $module::config(&keys),)*
                }
            }

            /// Loads the weights of one block.
            pub(crate) fn layer<B: Backend>(
                self,
                loader: &mut Loader<'_, B>,
                config: &Config,
                index: usize,
            ) -> Result<Layer<B>, LoadError> {
                match self {
                    $(Architecture::$variant => $module::layer(loader, config, index),)*
                }
            }
        }
    };
}

architectures! {
    /// Llama 2 and 3, SmolLM and their kin.
    Llama: "llama" in llama;
    /// Qwen3, dense.
    Qwen3: "qwen3" in qwen3;
    /// Qwen3 with experts.
    Qwen3Moe: "qwen3moe" in qwen3moe;
}

impl Architecture {
    /// The architecture that a file says it is.
    ///
    /// # Errors
    /// No such metadata, or no such row.
    pub fn of(file: &Gguf) -> Result<Architecture, LoadError> {
        let name = file.metadata().str("general.architecture")?;
        let known = Self::ALL
            .iter()
            .find(|architecture| architecture.name() == name);
        known
            .copied()
            .ok_or_else(|| LoadError::UnknownArchitecture {
                file: file.source().to_owned(),
                name: name.to_owned(),
                supported: Self::ALL
                    .iter()
                    .map(|known| known.name())
                    .collect::<Vec<_>>()
                    .join(", "),
            })
    }
}
