//! What every correct engine answers with the fake runner.
//!
//! Owns the hash that stands for a model. Computes from whole token sequences and knows no page,
//! step or row, so that it cannot share a mistake with those who do.

use super::mix;
use crate::{Pooling, Token};

/// A sequence's state after these tokens; it depends on each of them and on their order.
pub(super) fn state_after(tokens: &[Token]) -> u64 {
    tokens
        .iter()
        .fold(0, |state, &token| next_state(state, token))
}

/// The token that every correct engine draws after `tokens`, the first `prompt` of which are
/// prompt.
pub fn expected_token(tokens: &[Token], prompt: usize, seed: u64, vocabulary: usize) -> Token {
    draw(state_after(tokens), prompt, seed, vocabulary)
}

/// The logits that every correct engine answers after `tokens`. `[vocabulary]`
pub fn expected_logits(tokens: &[Token], vocabulary: usize) -> Vec<f32> {
    logits(state_after(tokens), vocabulary)
}

/// The vector of these tokens. `[2]`
pub fn expected_pooled(tokens: &[Token], pooling: Pooling) -> Vec<f32> {
    let states = (1..=tokens.len()).map(|end| state_after(&tokens[..end]));
    pool(&states.collect::<Vec<_>>(), pooling)
}

pub(super) fn next_state(state: u64, token: Token) -> u64 {
    mix(state ^ mix(u64::from(token) + 1))
}

pub(super) fn draw(state: u64, prompt: usize, seed: u64, vocabulary: usize) -> Token {
    (mix(state ^ mix(seed) ^ prompt as u64) % vocabulary as u64) as Token
}

pub(super) fn logits(state: u64, vocabulary: usize) -> Vec<f32> {
    (0..vocabulary as u64)
        .map(|token| small(mix(state ^ token)))
        .collect()
}

pub(super) fn pool(states: &[u64], pooling: Pooling) -> Vec<f32> {
    let vector = |&state: &u64| [small(state), small(mix(state))];
    match pooling {
        Pooling::Last => states.last().map(vector).unwrap_or_default().to_vec(),
        Pooling::Mean => {
            let sum = states
                .iter()
                .map(vector)
                .fold([0.0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]);
            sum.iter().map(|x| x / states.len() as f32).collect()
        }
    }
}

/// The top bits, as a number that a float holds exactly.
fn small(bits: u64) -> f32 {
    (bits >> 50) as f32
}
