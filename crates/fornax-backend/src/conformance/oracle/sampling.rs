//! The sampling chain in `f64`: sorts everything, twice where that is clearer.

use std::cmp::Ordering;

use crate::SampleParams;

/// A draw, and how near it was to another one.
#[derive(Debug)]
pub(crate) struct Draw {
    /// `None` where there is nothing to draw from.
    pub token: Option<u32>,
    /// Log-probability of every token under the unmodified logits.
    pub logprobs: Vec<f64>,
    /// The most likely tokens.
    pub top: Vec<u32>,
    /// The least change of a logit or a part of the probability at which a stage or the draw
    /// would have decided otherwise. Exact ties don't count: their order is defined.
    pub margin: f64,
}

/// A token that is still in.
#[derive(Clone, Copy, Debug)]
struct Left {
    token: u32,
    logit: f64,
    probability: f64,
}

/// Draws the token at `position` of a sequence that has `tokens`, the first `prompt` as prompt.
pub(crate) fn sample(
    logits: &[f32],
    params: &SampleParams,
    tokens: &[u32],
    prompt: usize,
    position: usize,
    top: Option<usize>,
) -> Draw {
    let original: Vec<f64> = logits.iter().map(|logit| f64::from(*logit)).collect();
    let mut draw = Draw {
        token: None,
        logprobs: Vec::new(),
        top: Vec::new(),
        margin: f64::INFINITY,
    };
    let bad = |logit: &f64| logit.is_nan() || *logit == f64::INFINITY;
    if original.iter().any(bad) || original.iter().all(|logit| *logit == f64::NEG_INFINITY) {
        return draw;
    }
    let max = original.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = original.iter().map(|logit| (logit - max).exp()).sum();
    let logprob = |logit: &f64| logit - max - sum.ln();
    draw.logprobs = original.iter().map(logprob).collect();
    draw.top = start(&original)
        .iter()
        .take(top.unwrap_or(0))
        .map(|left| left.token)
        .collect();

    let changed = change(&original, params, tokens, prompt);
    let mut left = start(&changed);
    if params.top_k > 0 && params.top_k < left.len() {
        draw.near(
            left[params.top_k - 1].logit - left[params.top_k].logit,
            true,
        );
        left.truncate(params.top_k);
    }
    if params.typical_p < 1.0 {
        typical(&mut left, params.typical_p, &mut draw);
    }
    if params.top_p < 1.0 {
        rank(&mut left);
        reach(&mut left, params.top_p, &mut draw);
    }
    if params.min_p > 0.0 {
        normalise(&mut left);
        let most = left.iter().map(|left| left.probability).fold(0.0, f64::max);
        for left in &left {
            // As likely as the most likely one is exact in any arithmetic.
            if left.probability < most {
                draw.near(left.probability / most - f64::from(params.min_p), false);
            }
        }
        left.retain(|left| left.probability >= f64::from(params.min_p) * most);
    }
    rank(&mut left);
    draw.token = Some(match params.temperature == 0.0 {
        true => {
            if left.len() > 1 {
                draw.near(left[0].logit - left[1].logit, true);
            }
            left[0].token
        }
        false => pick(left, params, position, &mut draw),
    });
    draw
}

impl Draw {
    /// Notes a distance to another decision; an exact tie that ids decide is none.
    fn near(&mut self, distance: f64, ids_decide: bool) {
        if !(ids_decide && distance == 0.0) {
            self.margin = self.margin.min(distance.abs());
        }
    }
}

fn change(original: &[f64], params: &SampleParams, tokens: &[u32], prompt: usize) -> Vec<f64> {
    let mut changed = original.to_vec();
    for (token, bias) in &params.logit_bias {
        changed[*token as usize] += f64::from(*bias);
    }
    for (token, logit) in changed.iter_mut().enumerate() {
        let is = |seen: &&u32| **seen as usize == token;
        if tokens.iter().any(|seen| is(&seen)) {
            let penalty = f64::from(params.repetition_penalty);
            *logit = if *logit > 0.0 {
                *logit / penalty
            } else {
                *logit * penalty
            };
        }
        let answered = tokens[prompt..].iter().filter(is).count();
        if answered > 0 {
            *logit -= f64::from(params.presence_penalty);
            *logit -= f64::from(params.frequency_penalty) * answered as f64;
        }
    }
    changed
}

/// All tokens above −∞, most likely first.
fn start(logits: &[f64]) -> Vec<Left> {
    let mut left = Vec::new();
    for (token, &logit) in logits.iter().enumerate() {
        if logit > f64::NEG_INFINITY {
            let token = token as u32;
            left.push(Left {
                token,
                logit,
                probability: 0.0,
            });
        }
    }
    rank(&mut left);
    left
}

/// Most likely first, equal ones (0 and −0 too) by id.
fn rank(left: &mut [Left]) {
    left.sort_by_key(|left| left.token);
    left.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal));
}

fn normalise(left: &mut [Left]) {
    let max = left
        .iter()
        .map(|left| left.logit)
        .fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = left.iter().map(|left| (left.logit - max).exp()).sum();
    for left in left {
        left.probability = (left.logit - max).exp() / sum;
    }
}

fn typical(left: &mut Vec<Left>, p: f32, draw: &mut Draw) {
    normalise(left);
    let entropy: f64 = left
        .iter()
        .map(|left| -left.probability * left.probability.max(1e-300).ln())
        .sum();
    let deviation = |left: &Left| (-left.probability.max(1e-300).ln() - entropy).abs();
    left.sort_by(|a, b| {
        deviation(a)
            .total_cmp(&deviation(b))
            .then(a.token.cmp(&b.token))
    });
    let order = left.clone();
    reach(left, p, draw);
    if let Some(next) = order.get(left.len()) {
        let last = order[left.len() - 1];
        let ids_decide = next.logit == last.logit;
        draw.near(deviation(next) - deviation(&last), ids_decide);
    }
}

/// Keeps the first tokens in the order given, until their probability reaches `p`.
fn reach(left: &mut Vec<Left>, p: f32, draw: &mut Draw) {
    normalise(left);
    let mut sum = 0.0;
    for index in 0..left.len() {
        sum += left[index].probability;
        draw.near(sum - f64::from(p), false);
        if sum >= f64::from(p) {
            left.truncate(index + 1);
            return;
        }
    }
}

fn pick(mut left: Vec<Left>, params: &SampleParams, position: usize, draw: &mut Draw) -> u32 {
    for left in &mut left {
        left.logit /= f64::from(params.temperature);
    }
    normalise(&mut left);
    left.sort_by_key(|left| left.token);
    let uniform = nth_uniform(params.seed, position);
    let mut sum = 0.0;
    for left in &left {
        // Only a token that weighs something can be the other one.
        if left.probability > 0.0 && sum > 0.0 {
            draw.near(sum - uniform, false);
        }
        sum += left.probability;
        if sum > uniform {
            if sum < 1.0 - 1e-12 {
                draw.near(sum - uniform, false);
            }
            return left.token;
        }
    }
    left.last()
        .expect("invariant: no stage drops every token")
        .token
}

/// Steps SplitMix64 one by one: once from the seed for the start of a second generator, then
/// that one up to the position.
fn nth_uniform(seed: u64, position: usize) -> f64 {
    let next = |state: &mut u64| {
        *state = state.wrapping_add(0x9E3779B97F4A7C15);
        let mut word = *state;
        word ^= word >> 30;
        word = word.wrapping_mul(0xBF58476D1CE4E5B9);
        word ^= word >> 27;
        word = word.wrapping_mul(0x94D049BB133111EB);
        word ^= word >> 31;
        word
    };
    let mut state = seed;
    let mut state = next(&mut state);
    let mut word = 0;
    for _ in 0..=position {
        word = next(&mut state);
    }
    (word >> 40) as f64 / 16_777_216.0
}
