//! The table of architectures: one file and one row each.
//!
//! A file knows which metadata and tensors its architecture has; what they do is in the shared
//! blocks.

mod deepseek2;
mod gemma3;
mod gpt_oss;
mod llama;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3moe;

use fornax_gguf::Gguf;

use crate::keys::Keys;
use crate::{Config, LoadError};

macro_rules! architectures {
    ($($(#[doc = $doc:literal])+ $variant:ident: $name:literal in $module:ident;)*) => {
        /// A family of models that share their tensors' names and their arithmetic.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Architecture {
            $($(#[doc = $doc])+ $variant,)*
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

            /// Which models it covers, for people.
            pub fn covers(self) -> &'static str {
                match self {
                    $(Architecture::$variant => concat!($($doc),+).trim_ascii(),)*
                }
            }

            /// Reads the dimensions of a file of this architecture.
            pub(crate) fn config(self, file: &Gguf) -> Result<Config, LoadError> {
                let keys = Keys { file, architecture: self.name() };
                match self {
                    $(Architecture::$variant => $module::config(&keys),)*
                }
            }
        }
    };
}

architectures! {
    /// Llama 2 and 3, SmolLM, Mistral
    Llama: "llama" in llama;
    /// Qwen2 and Qwen2.5
    Qwen2: "qwen2" in qwen2;
    /// Qwen1.5 and Qwen2 with experts
    Qwen2Moe: "qwen2moe" in qwen2moe;
    /// Qwen3
    Qwen3: "qwen3" in qwen3;
    /// Qwen3 with experts
    Qwen3Moe: "qwen3moe" in qwen3moe;
    /// Gemma 3, text
    Gemma3: "gemma3" in gemma3;
    /// gpt-oss 20B and 120B
    GptOss: "gpt-oss" in gpt_oss;
    /// DeepSeek-V2, V3 and R1
    DeepSeek2: "deepseek2" in deepseek2;
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
