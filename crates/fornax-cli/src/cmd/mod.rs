//! One file per command; each turns its arguments into library calls.

pub mod bench;
pub mod convert;
pub mod detokenize;
pub mod inspect;
pub mod perplexity;
pub mod quantize;
pub mod run;
pub mod serve;
pub mod template;
pub mod tokenize;
