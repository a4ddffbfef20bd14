//! Flags that choose a model and how it is made ready.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use fornax::{
    BackendChoice, Isa, KvPolicy, KvType, LoadOptions, Model, PromptPace, Source, WeightStorage,
};

use crate::misuse::at_least_one;
use crate::model_name::ModelName;
use crate::{builtin, loading, size};

/// Which model.
#[derive(Args)]
pub struct ModelFile {
    /// A GGUF file, or a folder with safetensors; without it the small model inside this program
    ///
    /// `synthetic:SHAPE[:TYPE[:SEED]]` makes random weights in the shape of a published model
    /// instead, for benchmarks: synthetic:qwen3-0.6b:q8_0 is as large and as fast as the real one.
    #[arg(long, short, value_name = "FILE")]
    pub model: Option<ModelName>,
}

impl ModelFile {
    /// Where the model is.
    pub fn source(&self) -> Source {
        self.model
            .as_ref()
            .map_or_else(builtin::source, ModelName::source)
    }

    /// The file or folder that it is read from, if it is.
    pub fn path(&self) -> Option<&Path> {
        match &self.model {
            Some(ModelName::File(path)) => Some(path),
            Some(ModelName::Synthetic { .. }) | None => None,
        }
    }

    /// What clients of a server call the model: the file's name without its ending.
    pub fn served_name(&self) -> String {
        match &self.model {
            Some(name) => name.served_name(),
            None => builtin::SERVED_NAME.to_owned(),
        }
    }
}

/// How it is made ready.
#[derive(Args)]
#[command(next_help_heading = "Model")]
pub struct Load {
    #[command(flatten)]
    pub file: ModelFile,
    /// Longest conversation in tokens [default: the model's own, up to 8192]
    #[arg(long, value_name = "TOKENS", value_parser = at_least_one)]
    ctx: Option<usize>,
    #[command(flatten)]
    compute: Compute,
    /// A Jinja chat template in place of the model's own
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
}

/// Where and in which precision it computes.
#[derive(Args)]
#[command(next_help_heading = "Model")]
pub struct Compute {
    /// Where to compute
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = backends())]
    backend: String,
    /// CPU threads [default: the backend's choice]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    threads: Option<usize>,
    #[arg(long, value_name = "NAME", help = isa_help())]
    isa: Option<Isa>,
    /// How keys and values are kept from token to token
    #[arg(long, value_enum, default_value_t = Kv::Paged)]
    kv: Kv,
    /// Element type of keys and values
    #[arg(long, value_enum, default_value_t = KvElement::F16)]
    kv_type: KvElement,
    /// Size of the KV cache, such as 512MiB [default: room for every conversation at its longest,
    /// or three quarters of what the weights leave where that is less; on a GPU all that it has
    /// left but a tenth]; `serve` takes it at once, other commands as it fills up
    #[arg(long, value_name = "SIZE", value_parser = size::bytes)]
    kv_memory: Option<u64>,
    /// On a GPU, keep no copy of quantised weights in bf16: less memory, slower prompts
    #[arg(long)]
    no_bf16_copies: bool,
    /// Compute every prompt anew, even what begins like one before
    #[arg(long)]
    no_prefix_cache: bool,
    /// Multiply weights as the file has them, or decoded to f32
    #[arg(long, value_enum, default_value_t = Weights::Native)]
    weights: Weights,
}

/// The names of all backends.
pub fn backends() -> PossibleValuesParser {
    PossibleValuesParser::new(BackendChoice::ALL.iter().map(|(name, _)| *name))
}

/// Help of a flag that forces an instruction set, with those of this processor.
pub fn isa_help() -> String {
    let names: Vec<String> = Isa::available().map(|isa| isa.to_string()).collect();
    let names = names.join(", ");
    format!("Instructions of the CPU [default: the first of {names}]")
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kv {
    /// Nothing is kept: the whole sequence is computed anew for every token
    None,
    /// One contiguous piece for the whole context
    Basic,
    /// Pages, as the sequence grows
    Paged,
}

/// Element type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvElement {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8,
}

/// How weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Weights {
    F32,
    Native,
}

impl Kv {
    /// The library's form.
    pub fn policy(self) -> KvPolicy {
        match self {
            Kv::None => KvPolicy::None,
            Kv::Basic => KvPolicy::Basic,
            Kv::Paged => KvPolicy::Paged,
        }
    }
}

impl KvElement {
    /// The library's form.
    pub fn kv_type(self) -> KvType {
        match self {
            KvElement::F32 => KvType::F32,
            KvElement::F16 => KvType::F16,
            KvElement::Bf16 => KvType::Bf16,
            KvElement::Q8 => KvType::Q8_0,
        }
    }
}

impl Weights {
    /// The library's form.
    pub fn storage(self) -> WeightStorage {
        match self {
            Weights::F32 => WeightStorage::F32,
            Weights::Native => WeightStorage::Native,
        }
    }
}

/// What a flag calls one of its values.
pub fn flag_value(value: impl ValueEnum) -> String {
    let named = value.to_possible_value();
    let named = named.expect("invariant: no value is hidden");
    named.get_name().to_owned()
}

impl Load {
    /// Loads the model for up to `sequences` at once.
    pub fn load(&self, sequences: usize) -> Result<Model> {
        loading::finished(Model::load(self.file.source(), &self.options(sequences)?))
    }

    /// Loads the model for up to `sequences` at once, whose answers keep their pace while prompts
    /// arrive.
    pub fn load_for_many(&self, sequences: usize, prompt_pace: PromptPace) -> Result<Model> {
        let options = LoadOptions {
            prompt_pace,
            commits_kv: true,
            ..self.options(sequences)?
        };
        loading::finished(Model::load(self.file.source(), &options))
    }

    fn options(&self, sequences: usize) -> Result<LoadOptions> {
        let template = self.template.as_ref().map(|path| {
            let context = || {
                let path = path.display();
                format!("{path}: the template file cannot be read; name a Jinja file with --template, or leave it away to take the model's own")
            };
            std::fs::read_to_string(path).with_context(context)
        });
        Ok(LoadOptions {
            context: self.ctx,
            template: template.transpose()?,
            ..self.compute.options(sequences)?
        })
    }
}

impl Compute {
    /// Loads a model for up to `sequences` at once of up to `context` tokens.
    pub fn load(&self, source: Source, context: usize, sequences: usize) -> Result<Model> {
        let options = LoadOptions {
            context: Some(context),
            ..self.options(sequences)?
        };
        loading::finished(Model::load(source, &options))
    }

    fn options(&self, sequences: usize) -> Result<LoadOptions> {
        Ok(LoadOptions {
            backend: BackendChoice::from_str(&self.backend)?,
            threads: self.threads,
            isa: self.isa,
            kv: self.kv.policy(),
            kv_type: self.kv_type.kv_type(),
            weights: self.weights.storage(),
            sequences,
            kv_memory: self.kv_memory,
            bf16_copies: !self.no_bf16_copies,
            prefix_cache: !self.no_prefix_cache,
            progress: Some(loading::progress),
            ..LoadOptions::default()
        })
    }
}

/// How much of prompts goes beside answers: `2.5x`, a number of tokens, or 0 for no limit.
///
/// # Errors
/// Something else.
pub fn prompt_pace(text: &str) -> Result<PromptPace, String> {
    let wrong =
        || format!("`{text}` is no pace; write 2.5x, a number of tokens, or 0 for no limit");
    match text.strip_suffix('x') {
        Some(times) => match times.parse() {
            Ok(times) if times > 1.0 && times < f32::INFINITY => Ok(PromptPace::Slowdown(times)),
            _ => Err(format!(
                "`{text}` leaves prompts no time; write a number above 1, such as 2.5x"
            )),
        },
        None => match text.parse().map_err(|_| wrong())? {
            0 => Ok(PromptPace::Whole),
            tokens => Ok(PromptPace::Tokens(tokens)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_a_slowdown_or_a_number_of_tokens() {
        assert_eq!(prompt_pace("2.5x"), Ok(PromptPace::Slowdown(2.5)));
        assert_eq!(prompt_pace("64"), Ok(PromptPace::Tokens(64)));
        assert_eq!(prompt_pace("0"), Ok(PromptPace::Whole));
        for wrong in [
            "", "x", "1x", "-2x", "nanx", "infx", "1e400x", "fast", "-1", "2.5",
        ] {
            assert!(prompt_pace(wrong).is_err(), "{wrong}");
        }
    }
}
