//! What a caller may choose, and what holds where it does not.

use fornax_backend::KvType;
use fornax_cpu::{CpuOptions, Isa};
use fornax_cuda::Progress;
use fornax_engine::{KvPolicy, PromptPace, RequestError, SamplingParams, Token};
use fornax_gguf::Gguf;
use fornax_model::WeightStorage;
use fornax_text::StopStrings;

use crate::{BackendChoice, Error};

/// How a model is made ready.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where it computes.
    pub backend: BackendChoice,
    /// Threads of a CPU backend; `None` lets the backend choose.
    pub threads: Option<usize>,
    /// Instruction set of a CPU backend; `None` takes the best that the processor has.
    pub isa: Option<Isa>,
    /// How K and V are kept from step to step.
    pub kv: KvPolicy,
    /// Element type of K and V.
    pub kv_type: KvType,
    /// How weights are kept.
    pub weights: WeightStorage,
    /// Tokens of the longest sequence; `None` takes the model's own context, up to
    /// [`LoadOptions::DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Sequences that run at once.
    pub sequences: usize,
    /// Bytes of the KV cache. `None` gives every sequence room to fill its context, or takes three
    /// quarters of the memory that the weights leave where that is less and the system tells it; on
    /// a GPU it takes what the GPU has left, but for a margin.
    pub kv_memory: Option<u64>,
    /// Whether the memory of the KV cache is taken from the system while the model loads, as a server
    /// does, and not as the cache fills up. A GPU always does, the scalar backend never.
    pub commits_kv: bool,
    /// Whether a GPU keeps quantised matrices in bf16 too, so that prompts and large batches are
    /// multiplied without decoding them first.
    pub bf16_copies: bool,
    /// Whether what begins with tokens that were computed before takes their K and V from there;
    /// only [`KvPolicy::Paged`] can.
    pub prefix_cache: bool,
    /// How much of new prompts goes into a step in which an answer goes on, so that running answers
    /// keep their pace.
    pub prompt_pace: PromptPace,
    /// A Jinja chat template in place of the file's own.
    pub template: Option<String>,
    /// Told what takes long while a model is made ready.
    pub progress: Option<fn(Progress<'_>)>,
}

impl LoadOptions {
    /// The longest context that is taken unasked: pages are made for all of it.
    pub const DEFAULT_CONTEXT: usize = 8192;

    /// How a CPU backend is started.
    pub(crate) fn cpu(&self) -> CpuOptions {
        CpuOptions {
            threads: self.threads,
            isa: self.isa,
            commits_kv: self.commits_kv,
            ..CpuOptions::default()
        }
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            backend: BackendChoice::Auto,
            threads: None,
            isa: None,
            kv: KvPolicy::Paged,
            kv_type: KvType::F16,
            weights: WeightStorage::Native,
            context: None,
            sequences: 4,
            kv_memory: None,
            commits_kv: false,
            bf16_copies: true,
            prefix_cache: true,
            prompt_pace: PromptPace::Whole,
            template: None,
            progress: None,
        }
    }
}

/// How one answer is drawn and where it ends. `None` takes the value in the model's file, else
/// the value named here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateOptions {
    /// 0 takes the most likely token; else 0.7.
    pub temperature: Option<f32>,
    /// Most likely tokens kept, 0 for all; else all.
    pub top_k: Option<usize>,
    /// Nucleus probability kept; else 0.95.
    pub top_p: Option<f32>,
    /// Least probability kept, relative to the most likely token; else 0.
    pub min_p: Option<f32>,
    /// Locally typical probability kept; else 1.
    pub typical_p: Option<f32>,
    /// Factor against tokens of prompt and answer; else 1.
    pub repetition_penalty: Option<f32>,
    /// Subtracted for tokens that the answer has; else 0.
    pub presence_penalty: Option<f32>,
    /// Subtracted for each time the answer has a token; else 0.
    pub frequency_penalty: Option<f32>,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// The same seed gives the same text; `None` draws one.
    pub seed: Option<u64>,
    /// Tokens of the answer; `None` lets it fill the context.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer and are no part of it.
    pub stop: Vec<String>,
    /// Goes on past the model's own end of a turn.
    pub ignore_end: bool,
    /// Whether probabilities are told: that of each token drawn, and of so many of the most likely ones
    /// beside it. `None` is faster where only the most likely tokens can be drawn.
    pub logprobs: Option<usize>,
    /// Among answers that wait the greater goes first; 0 for most. A head start, not a class: a
    /// low one waits but never starves.
    pub priority: i8,
}

impl GenerateOptions {
    /// Makes sure of what no model can do, before one is loaded.
    ///
    /// # Errors
    /// A sampling parameter out of its range, a stop string that is empty.
    pub fn check(&self) -> Result<(), Error> {
        let sampling = self.sampling(&SamplingParams::greedy());
        // Which tokens there are, only a model knows.
        let drawn = sampling.validate(usize::MAX);
        drawn.map_err(RequestError::from)?;
        StopStrings::new(&self.stop)?;
        Ok(())
    }

    /// The sampling parameters, with the file's values and then ours where none was chosen.
    pub(crate) fn sampling(&self, defaults: &SamplingParams) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            typical_p: self.typical_p.unwrap_or(defaults.typical_p),
            repetition_penalty: self
                .repetition_penalty
                .unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(drawn_seed),
        }
    }
}

/// The sampling values that a file recommends under `general.sampling.*`, else ours.
///
/// # Errors
/// A value of the wrong type or out of its range.
pub(crate) fn file_defaults(file: &Gguf, vocabulary: usize) -> Result<SamplingParams, Error> {
    let metadata = file.metadata();
    let float = |key, otherwise| {
        let value = metadata.optional_f32(&format!("general.sampling.{key}"))?;
        Ok::<f32, Error>(value.unwrap_or(otherwise))
    };
    let top_k = metadata.optional_i64("general.sampling.top_k")?;
    let params = SamplingParams {
        temperature: float("temp", 0.7)?,
        top_p: float("top_p", 0.95)?,
        min_p: float("min_p", 0.0)?,
        repetition_penalty: float("penalty_repeat", 1.0)?,
        // Files write "all" as 0 or as a negative number.
        top_k: top_k.map_or(0, |k| usize::try_from(k).unwrap_or(0)),
        ..SamplingParams::greedy()
    };
    match params.validate(vocabulary) {
        Ok(()) => Ok(params),
        Err(error) => Err(Error::Options(format!(
            "{}: metadata `general.sampling.*`: {error}; the file is damaged",
            file.source()
        ))),
    }
}

/// A seed from the operating system's randomness, by way of the standard library's hash keys.
fn drawn_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one("seed")
}
