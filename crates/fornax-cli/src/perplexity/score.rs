//! Sums of negative log-likelihoods, and the perplexity that they make.

/// The likelihood of tokens so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// Tokens scored.
    pub tokens: usize,
    /// Sum of their negative log-likelihoods.
    sum: f64,
    /// Sum of the squares of those.
    squares: f64,
}

impl Score {
    /// Scores a token by the logits before it. `[vocabulary]`
    pub fn add(&mut self, logits: &[f32], token: u32) {
        let surprise = -log_softmax(logits, token);
        self.tokens += 1;
        self.sum += surprise;
        self.squares += surprise * surprise;
    }

    /// Mean negative log-likelihood of a token, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / self.tokens as f64
    }

    /// The exponential of the mean.
    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// Standard error of the perplexity, if tokens were independent.
    pub fn error(&self) -> f64 {
        let count = self.tokens as f64;
        let variance = (self.squares / count - self.mean().powi(2)).max(0.0);
        (variance / (count - 1.0)).sqrt() * self.perplexity()
    }
}

/// Natural log of a token's probability.
fn log_softmax(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let above = |logit: f32| f64::from(logit - largest);
    let sum: f64 = logits.iter().map(|logit| above(*logit).exp()).sum();
    above(logits[token as usize]) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_as_perplexing_as_there_are_tokens() {
        let mut score = Score::default();
        for token in 0..5 {
            score.add(&[3.0; 7], token);
        }
        assert!((score.perplexity() - 7.0).abs() < 1e-9);
        assert!(score.error() < 1e-6);
    }

    #[test]
    fn the_mean_is_over_tokens_and_the_error_over_their_spread() {
        let mut score = Score::default();
        // Probabilities 1/4 and 3/4.
        let logits = [0.0, 3.0_f32.ln()];
        score.add(&logits, 0);
        score.add(&logits, 1);
        let (low, high) = (4.0_f64.ln(), (4.0_f64 / 3.0).ln());
        assert!((score.mean() - (low + high) / 2.0).abs() < 1e-6);
        let error = (low - high) / 2.0 * score.perplexity();
        assert!((score.error() - error).abs() < 1e-6);
    }
}
