//! Language models over a [`Backend`](fornax_backend::Backend): from a GGUF file to a
//! [`Runner`](fornax_engine::Runner).
//!
//! Owns configurations read from metadata, weights found by name, the blocks a decoder is made
//! of, one file per architecture, and [`ModelRunner`], the only point where engine, model and
//! backend meet. Knows no text and no HTTP.

mod activations;
mod architecture;
mod block;
mod config;
mod decoder;
mod error;
mod keys;
mod loader;
mod rope;
mod runner;
mod step;

pub use architecture::Architecture;
pub use config::{Block, Config, FeedForward, Latent, Memory, Mixture, Norms, SharedExpert};
pub use decoder::leaves_behind;
pub use error::{LoadError, Wanted};
pub use loader::{Joined, WeightStorage};
pub use rope::{Rope, Scaling, Yarn};
pub use runner::{ModelRunner, RunnerOptions};
