//! Run language models from a Rust program.
//!
//! The one place where text meets the engine: chat template → tokens → engine → text → stop.
//! Knows no HTTP and no command line.
//!
//! ```
//! use fornax::{Chat, Event, GenerateOptions, LoadOptions, Model};
//!
//! # fn main() -> Result<(), fornax::Error> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fornax-cli/model/fornax-mini.gguf");
//! let model = Model::load(path, &LoadOptions::default())?;
//!
//! // A conversation, rendered by the model's own template and answered as a stream.
//! let chat = Chat::new().user("What is 12 + 30?").think(false);
//! let options = GenerateOptions { temperature: Some(0.0), ..Default::default() };
//! let mut answer = String::new();
//! for event in model.chat(&chat, &options)? {
//!     match event? {
//!         Event::Delta(delta) => answer.push_str(&delta.text),
//!         Event::Finished(finished) => println!("{} tokens", finished.usage.generated),
//!     }
//! }
//! assert!(answer.contains("42"), "{answer}");
//!
//! // Plain completion of a text, several tokens at most.
//! let options = GenerateOptions { max_tokens: Some(8), seed: Some(7), ..Default::default() };
//! let text = model.generate("Once upon a time", &options)?.text()?;
//! assert!(!text.is_empty());
//! # Ok(())
//! # }
//! ```

mod answers;
mod backend;
mod chat;
mod error;
mod kv_size;
mod load;
mod measure;
mod model;
mod options;
mod stream;

pub use answers::PromptLogprobs;
pub use backend::{BackendChoice, LoadedRunner};
pub use chat::Chat;
pub use error::Error;
pub use fornax_backend::{KvType, Operation, Profile, Sketched, Spent};
pub use fornax_cpu::{Ceilings, Isa};
pub use fornax_cuda::Progress;
pub use fornax_engine as engine;
pub use fornax_engine::{
    CancelHandle, Failure, KvPolicy, Load, Pooling, PromptPace, RequestError, SamplingError,
    StepStats, Token, TokenLogprob, Usage,
};
pub use fornax_gguf as gguf;
pub use fornax_model::{
    Architecture, Block, Config, FeedForward, Memory, Mixture, WeightStorage, leaves_behind,
};
pub use fornax_text as text;
pub use load::{Source, StepSizes, load_profiled_runner, load_runner};
pub use measure::Forward;
pub use model::Model;
pub use options::{GenerateOptions, LoadOptions};
pub use stream::{Delta, Event, Finished, Generation, StopReason};
