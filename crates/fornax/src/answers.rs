//! Answers that come as a whole, for a task of any async runtime. Dropping the future cancels.

use fornax_engine::{EventKind, Pooling, Request, Token, TokenLogprob};

use crate::{Error, Model};

/// How likely a token of a prompt was after those before it.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLogprobs {
    /// The token that stands there.
    pub token: TokenLogprob,
    /// The most likely tokens in its place, most likely first.
    pub top: Vec<TokenLogprob>,
}

impl Model {
    /// Makes sure that these tokens can be computed as a whole, as for
    /// [`embed_tokens`](Self::embed_tokens) and [`prompt_logprobs`](Self::prompt_logprobs).
    ///
    /// # Errors
    /// No token, an unknown one, or more than the context or the KV cache holds.
    pub fn check_tokens(&self, tokens: &[Token]) -> Result<(), Error> {
        // To embed takes all of them; how they are pooled makes no difference.
        let request = Request::embed(tokens.to_vec(), Pooling::Mean);
        Ok(request.validate(&self.bounds())?)
    }

    /// One vector for these tokens, of length 1 in the Euclidean sense. `[width]` Calls `started`
    /// when their turn has come.
    ///
    /// # Errors
    /// No token, or more than the context holds.
    pub async fn embed_tokens(
        &self,
        tokens: Vec<Token>,
        pooling: Pooling,
        mut started: impl FnMut(),
    ) -> Result<Vec<f32>, Error> {
        let mut events = self.submit(Request::embed(tokens, pooling))?;
        let mut vector = Vec::new();
        while let Some(event) = events.next_event().await {
            match event {
                EventKind::Started => started(),
                EventKind::Pooled(values) => vector = values,
                EventKind::Failed(failure) => return Err(failure.into()),
                _ => {}
            }
        }
        normalise(&mut vector);
        Ok(vector)
    }

    /// How likely each token of a prompt was, from the second on: nothing stands before the
    /// first. Beside each the `top` most likely ones. `[n_tokens - 1]`
    ///
    /// # Errors
    /// No token, or more than the context holds.
    pub async fn prompt_logprobs(
        &self,
        tokens: Vec<Token>,
        top: usize,
    ) -> Result<Vec<PromptLogprobs>, Error> {
        let Some(last) = tokens.len().checked_sub(1).filter(|&last| last > 0) else {
            return Ok(Vec::new());
        };
        let mut events = self.submit(Request::score(tokens.clone(), 0..last))?;
        let mut scored = Vec::with_capacity(last);
        while let Some(event) = events.next_event().await {
            match event {
                EventKind::Logits { positions, values } => {
                    let width = values.len() / positions.len();
                    let rows = positions.zip(values.chunks_exact(width));
                    scored.extend(rows.map(|(at, logits)| logprobs(logits, tokens[at + 1], top)));
                }
                EventKind::Failed(failure) => return Err(failure.into()),
                _ => {}
            }
        }
        Ok(scored)
    }
}

/// Scales a vector to length 1.
pub(crate) fn normalise(vector: &mut [f32]) {
    let squares = vector.iter().map(|x| f64::from(*x).powi(2));
    let length = squares.sum::<f64>().sqrt();
    // A zero vector has no direction and stays as it is.
    if length > 0.0 {
        for x in vector {
            *x = (f64::from(*x) / length) as f32;
        }
    }
}

/// The log-probability of `token` under these logits, and those of the most likely tokens.
fn logprobs(logits: &[f32], token: Token, top: usize) -> PromptLogprobs {
    let greatest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shifted = |logit: f32| f64::from(logit) - f64::from(greatest);
    let log_sum = logits
        .iter()
        .map(|&logit| shifted(logit).exp())
        .sum::<f64>()
        .ln();
    let of = |token: Token| TokenLogprob {
        token,
        logprob: (shifted(logits[token as usize]) - log_sum) as f32,
    };
    let mut order: Vec<Token> = (0..logits.len() as Token).collect();
    let by_logit = |a: &Token, b: &Token| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    let top = top.min(order.len());
    if top > 0 {
        order.select_nth_unstable_by(top - 1, by_logit);
    }
    order.truncate(top);
    order.sort_unstable_by(by_logit);
    PromptLogprobs {
        token: of(token),
        top: order.into_iter().map(of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_a_row_are_those_of_its_softmax() {
        let told = logprobs(&[0.0, 3.0_f32.ln(), 0.0, 2.0_f32.ln()], 3, 3);
        let near = |told: &TokenLogprob, token, share: f32| {
            told.token == token && (told.logprob - share.ln()).abs() < 1e-6
        };
        assert!(near(&told.token, 3, 2.0 / 7.0), "{told:?}");
        assert_eq!(told.top.len(), 3);
        assert!(near(&told.top[0], 1, 3.0 / 7.0), "{told:?}");
        assert!(near(&told.top[1], 3, 2.0 / 7.0), "{told:?}");
        // Of two alike the first.
        assert!(near(&told.top[2], 0, 1.0 / 7.0), "{told:?}");
    }

    #[test]
    fn nothing_is_named_when_nothing_was_asked_for() {
        assert_eq!(logprobs(&[1.0, 2.0], 0, 0).top, []);
        assert_eq!(logprobs(&[1.0, 2.0], 0, 9).top.len(), 2);
    }

    #[test]
    fn a_zero_vector_stays_as_it_is() {
        let mut vector = [0.0, 0.0];
        normalise(&mut vector);
        assert_eq!(vector, [0.0, 0.0]);
        let mut vector = [3.0, 4.0];
        normalise(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
    }
}
