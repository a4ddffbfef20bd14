//! Model files: what is in them and where, checked before use.
//!
//! Owns GGUF (reading through a memory map, writing as a stream, whole or split), safetensors
//! folders read as if they were GGUF, the element types and their block formats, quantising, and
//! models of synthetic weights. Must not know what a model does with its tensors, nor how text
//! becomes tokens.
//!
//! ```
//! use fornax_gguf::{DType, Gguf, GgufWriter};
//!
//! let mut writer = GgufWriter::new();
//! writer.set("general.architecture", "qwen3")?;
//! writer.declare("output_norm.weight", DType::F32, &[2])?;
//! let mut file = Vec::new();
//! let mut tensors = writer.start(&mut file)?;
//! tensors.tensor("output_norm.weight", &[0, 0, 128, 63, 0, 0, 0, 64])?;
//! tensors.finish()?;
//!
//! let gguf = Gguf::from_bytes("an example", file)?;
//! assert_eq!(gguf.metadata().str("general.architecture")?, "qwen3");
//! let norm = gguf.tensor("output_norm.weight").expect("written above");
//! assert_eq!(norm.decode(), [1.0, 2.0]);
//! # Ok::<(), fornax_gguf::Error>(())
//! ```

mod cursor;
mod dtype;
mod error;
mod file;
mod folder;
mod metadata;
mod pairs;
mod parse;
mod pieces;
pub mod quant;
pub mod quantize;
mod scheme;
mod split;
mod storage;
pub mod synthetic;
mod tensor;
mod value;
mod writer;

pub use dtype::{DType, ggml_type_name};
pub use error::Error;
pub use file::Gguf;
pub use metadata::Metadata;
pub use quant::BlockFormat;
pub use scheme::Scheme;
#[cfg(unix)]
pub use storage::end_where_a_file_shrinks;
pub use tensor::{Tensor, TensorView};
pub use value::{Array, Value};
pub use writer::{GgufWriter, TensorWriter};
