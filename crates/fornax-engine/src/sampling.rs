//! What a request may ask of sampling. The arithmetic lives behind the [`Runner`](crate::Runner).

use crate::Token;

/// How the next token is drawn from a row's logits.
///
/// The chain runs in this order: logit bias, repetition, presence and frequency penalties,
/// top-k, typical, top-p, min-p, temperature. The neutral value of each stage skips it.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probability reaches `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Drops tokens less likely than `min_p` times the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al. 2022, arXiv:2202.00666): keeps the tokens whose
    /// surprise is nearest the entropy until their probability reaches it; 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer
    /// (Keskar et al. 2019, arXiv:1909.05858); 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token of the answer so far.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time the answer has it so far.
    pub frequency_penalty: f32,
    /// Added to the logits of the named tokens.
    pub logit_bias: Vec<(Token, f32)>,
    /// With a token's position it alone decides the draw, so batching never changes a text.
    pub seed: u64,
}

impl SamplingParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }

    /// Checks every value against its range and every biased token against the vocabulary.
    pub fn validate(&self, vocabulary: usize) -> Result<(), SamplingError> {
        let at_least_zero = |x: f32| x.is_finite() && x >= 0.0;
        let fraction = |x: f32| (0.0..=1.0).contains(&x);
        let penalty = |x: f32| (-2.0..=2.0).contains(&x);
        let range = |name, value, ok, allowed| match ok {
            true => Ok(()),
            false => Err(SamplingError::Range {
                name,
                value,
                allowed,
            }),
        };
        range(
            "temperature",
            self.temperature,
            at_least_zero(self.temperature),
            "0 or more",
        )?;
        range(
            "top_p",
            self.top_p,
            fraction(self.top_p) && self.top_p > 0.0,
            "above 0, up to 1",
        )?;
        range("min_p", self.min_p, fraction(self.min_p), "0 to 1")?;
        let typical = fraction(self.typical_p) && self.typical_p > 0.0;
        range("typical_p", self.typical_p, typical, "above 0, up to 1")?;
        // Further away no logit would be a number.
        let repetition = (1e-6..=1e6).contains(&self.repetition_penalty);
        range(
            "repetition_penalty",
            self.repetition_penalty,
            repetition,
            "1e-6 to 1e6",
        )?;
        range(
            "presence_penalty",
            self.presence_penalty,
            penalty(self.presence_penalty),
            "-2 to 2",
        )?;
        range(
            "frequency_penalty",
            self.frequency_penalty,
            penalty(self.frequency_penalty),
            "-2 to 2",
        )?;
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocabulary {
                return Err(SamplingError::UnknownToken { token, vocabulary });
            }
            range(
                "logit_bias",
                bias,
                (-100.0..=100.0).contains(&bias),
                "-100 to 100",
            )?;
        }
        Ok(())
    }

    /// Whether the draw depends on which tokens came before.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// A sampling parameter outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A number that its stage cannot use.
    #[error("sampling parameter `{name}` is {value}; allowed: {allowed}")]
    Range {
        /// The parameter's name.
        name: &'static str,
        /// What was given.
        value: f32,
        /// What may be given.
        allowed: &'static str,
    },
    /// A biased token that the model does not have.
    #[error("`logit_bias` names token {token}, but the vocabulary has {vocabulary} tokens (0 to {})", vocabulary - 1)]
    UnknownToken {
        /// The token named.
        token: Token,
        /// Tokens of the model.
        vocabulary: usize,
    },
}
