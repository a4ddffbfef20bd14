//! Text in, tokens out and back.
//!
//! Owns vocabularies, tokenizers, the incremental way back from tokens to text,
//! stop strings and chat templates. Must not know tensors, HTTP or the engine.
//!
//! ```text
//! request ─ ChatTemplate::render ─▶ prompt ─ Tokenizer::encode, with_markers ─▶ tokens
//! tokens ─ Detokenizer::push ─▶ text that is certain ─ StopStrings::push ─▶ text to show
//! ```

mod added;
mod bpe;
mod byte_alphabet;
mod detokenizer;
mod encoding;
mod error;
mod listed_merges;
mod memo;
mod merge;
#[cfg(test)]
mod sample;
mod space_prefix;
mod split;
mod spm;
mod stop;
mod template;
mod tokenizer;
mod unicode_class;
mod vocabulary;
mod work;

pub use detokenizer::{Detokenizer, Utf8Stream};
pub use error::Error;
pub use stop::{StopStrings, Stopped};
pub use template::{ChatTemplate, Clock, from_wire};
pub use tokenizer::{ControlTokens, Special, Tokenizer};
pub use vocabulary::TokenKind;
