//! Flags that choose how an answer is drawn and where it ends.

use anyhow::Result;
use clap::Args;
use fornax::{GenerateOptions, Token};

use crate::misuse::{Misuse, at_least_one};

/// How an answer is drawn. What is not given comes from the model's file, else from Fornax.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub struct Sampling {
    /// Most tokens of the answer [default: until the context is full]
    #[arg(long, short = 'n', value_name = "N", value_parser = at_least_one)]
    max_tokens: Option<usize>,
    /// 0 takes the most likely token [default: the model's, else 0.7]
    #[arg(long, short = 't', value_name = "X")]
    temperature: Option<f32>,
    /// Keep the K most likely tokens, 0 for all [default: the model's, else all]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Keep the most likely tokens up to this probability [default: the model's, else 0.95]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// Drop tokens below this share of the most likely one's probability
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Keep the most typical tokens up to this probability
    #[arg(long, value_name = "P")]
    typical_p: Option<f32>,
    /// Above 1: make tokens of prompt and answer less likely
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Make tokens of the answer less likely, -2 to 2
    #[arg(long, value_name = "X")]
    presence_penalty: Option<f32>,
    /// The same, for each time the answer has one
    #[arg(long, value_name = "X")]
    frequency_penalty: Option<f32>,
    /// Add to the logit of a token; may be repeated
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = bias)]
    logit_bias: Vec<(Token, f32)>,
    /// The same seed gives the same text
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on past the model's own end of the answer
    #[arg(long)]
    ignore_end: bool,
}

impl Sampling {
    /// The library's form of these flags.
    ///
    /// # Errors
    /// As [`checked`].
    pub fn options(&self) -> Result<GenerateOptions> {
        checked(GenerateOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ignore_end: self.ignore_end,
            logprobs: None,
            priority: 0,
        })
    }
}

/// Options that some model can follow, known before one is loaded.
///
/// # Errors
/// A [`Misuse`]: a value out of its range.
pub fn checked(options: GenerateOptions) -> Result<GenerateOptions> {
    match options.check() {
        Ok(()) => Ok(options),
        Err(error) => Err(Misuse(error.to_string()).into()),
    }
}

fn bias(text: &str) -> Result<(Token, f32), String> {
    let (token, bias) = text
        .split_once('=')
        .ok_or("write TOKEN=BIAS, such as 42=-1.5")?;
    let token = token
        .parse()
        .map_err(|_| format!("`{token}` is no token id"))?;
    let bias = bias.parse().map_err(|_| format!("`{bias}` is no number"))?;
    Ok((token, bias))
}
