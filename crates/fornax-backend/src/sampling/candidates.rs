//! The tokens that are still in, and the stages that drop some of them.
//!
//! Every stage ranks the tokens left (equal ranks by lower id) and keeps a prefix of that order.
//! Finding where the prefix ends takes linear time, and the candidates stay in id order.

use std::cmp::Ordering;

use super::softmax::{exp, exp_sum, first_above};
use crate::SampleParams;

/// Candidates of one row, with scratch that is reused from row to row.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Tokens left, by ascending id. `[tokens left]`
    left: Vec<Candidate>,
    /// `Σ exp(logit − max)` over the tokens left, and those that were passed over because they
    /// are too unlikely for the next stage to keep them.
    total: f64,
    /// The row's largest logit, before any token was dropped.
    max: f32,
    /// Scratch of a stage's search. Up to `[vocabulary]`
    ranked: Vec<Ranked>,
    /// Scratch of the draw. Up to `[vocabulary]`
    weights: Vec<f32>,
}

/// A token that is still in.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    token: u32,
    logit: f32,
    /// `exp(logit − max)`
    weight: f32,
}

/// A token's place in the order of a stage: low ranks are kept first.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    rank: f64,
    token: u32,
    weight: f32,
}

impl Ranked {
    fn compare(&self, other: &Self) -> Ordering {
        self.rank
            .total_cmp(&other.rank)
            .then(self.token.cmp(&other.token))
    }
}

impl Candidates {
    pub fn new(vocabulary: usize) -> Self {
        Self {
            left: Vec::with_capacity(vocabulary),
            total: 0.0,
            max: 0.0,
            ranked: Vec::with_capacity(vocabulary),
            weights: Vec::with_capacity(vocabulary),
        }
    }

    /// The `count` most likely tokens, most likely first; fewer if fewer are above −∞.
    pub fn most_likely(&mut self, logits: &[f32], count: usize) -> impl Iterator<Item = u32> {
        self.select_most_likely(logits, count);
        self.ranked.sort_unstable_by(Ranked::compare);
        self.ranked.iter().map(|ranked| ranked.token)
    }

    /// Draws from all tokens.
    pub fn draw_any(
        &mut self,
        logits: &[f32],
        max: f32,
        params: &SampleParams,
        uniform: f32,
    ) -> u32 {
        self.weights.clear();
        let weigh = |logit: &f32| exp((logit - max) / params.temperature);
        self.weights.extend(logits.iter().map(weigh));
        first_above(&self.weights, uniform) as u32
    }

    /// Starts a row with the tokens that top-k keeps.
    pub fn collect(&mut self, logits: &[f32], max: f32, params: &SampleParams) {
        self.left.clear();
        self.max = max;
        if params.top_k > 0 && params.top_k < logits.len() {
            self.select_most_likely(logits, params.top_k);
            let last = self.ranked.iter().copied().max_by(Ranked::compare);
            let last = last.expect("invariant: some logit is above minus infinity");
            self.keep(logits, |token, logit| {
                !by_logit(token, logit, 0.0).compare(&last).is_gt()
            });
            self.total = self.sum();
        } else {
            self.total = exp_sum(logits, max);
            let floor = max + self.least_weight(params, logits.len()).ln();
            self.keep(logits, |_, logit| logit >= floor);
        }
    }

    /// Keeps the tokens whose surprise is nearest the entropy until their probability reaches `p`.
    pub fn typical(&mut self, p: f32) {
        if p >= 1.0 {
            return;
        }
        let (log_total, max) = (self.total.ln(), f64::from(self.max));
        let surprise = |candidate: &Candidate| log_total + max - f64::from(candidate.logit);
        let expected = |candidate: &Candidate| f64::from(candidate.weight) * surprise(candidate);
        let entropy = self.left.iter().map(expected).sum::<f64>() / self.total;
        self.keep_mass(p, |candidate| (surprise(candidate) - entropy).abs());
        self.total = self.sum();
    }

    /// Keeps the most likely tokens until their probability reaches `p`.
    pub fn top_p(&mut self, p: f32) {
        if p < 1.0 {
            self.keep_mass(p, |candidate| 0.0 - f64::from(candidate.logit));
        }
    }

    /// Drops tokens less likely than `p` times the most likely one left.
    pub fn min_p(&mut self, p: f32) {
        let heaviest = |most: f32, candidate: &Candidate| most.max(candidate.weight);
        let floor = p * self.left.iter().fold(0.0, heaviest);
        self.left.retain(|candidate| candidate.weight >= floor);
    }

    /// The most likely token left, the lowest id among equals.
    pub fn first_largest(&self) -> u32 {
        let max = self.largest();
        let mut left = self.left.iter();
        let first = left.find(|candidate| candidate.logit == max);
        first.expect("invariant: no stage drops every token").token
    }

    /// Draws from the tokens left.
    pub fn draw(&mut self, temperature: f32, uniform: f32) -> u32 {
        let max = self.largest();
        let weigh = |candidate: &Candidate| exp((candidate.logit - max) / temperature);
        self.weights.clear();
        self.weights.extend(self.left.iter().map(weigh));
        self.left[first_above(&self.weights, uniform)].token
    }

    fn largest(&self) -> f32 {
        let logits = self.left.iter().map(|candidate| candidate.logit);
        logits.fold(f32::NEG_INFINITY, f32::max)
    }

    fn sum(&self) -> f64 {
        let weights = self.left.iter().map(|candidate| candidate.weight);
        weights.map(f64::from).sum()
    }

    /// Leaves the `count` most likely tokens in `ranked`, in any order.
    fn select_most_likely(&mut self, logits: &[f32], count: usize) {
        self.ranked.clear();
        let mut floor = f32::NEG_INFINITY;
        for (token, &logit) in logits.iter().enumerate() {
            // As likely as the floor is not enough: this token's id is higher.
            if logit <= floor {
                continue;
            }
            self.ranked.push(by_logit(token as u32, logit, 0.0));
            if self.ranked.len() >= 2 * count {
                let (_, last, _) = self
                    .ranked
                    .select_nth_unstable_by(count - 1, Ranked::compare);
                floor = -last.rank as f32;
                self.ranked.truncate(count);
            }
        }
        if self.ranked.len() > count {
            self.ranked
                .select_nth_unstable_by(count - 1, Ranked::compare);
            self.ranked.truncate(count);
        }
    }

    /// A weight below which the stages after top-k keep no token of all `count` ones.
    fn least_weight(&self, params: &SampleParams, count: usize) -> f32 {
        if params.typical_p < 1.0 {
            return 0.0;
        }
        if params.top_p < 1.0 {
            // Even all of them together are less than what the nucleus leaves out; half of it,
            // so that rounding cannot tip the scale.
            let rest = (1.0 - f64::from(params.top_p)) * self.total;
            return (0.5 * rest / count as f64).min(1.0) as f32;
        }
        0.5 * params.min_p
    }

    fn keep(&mut self, logits: &[f32], keep: impl Fn(u32, f32) -> bool) {
        for (token, &logit) in logits.iter().enumerate() {
            let token = token as u32;
            if logit > f32::NEG_INFINITY && keep(token, logit) {
                let weight = exp(logit - self.max);
                self.left.push(Candidate {
                    token,
                    logit,
                    weight,
                });
            }
        }
    }

    /// Keeps the lowest ranks until their weights reach `p` of the total.
    fn keep_mass(&mut self, p: f32, rank: impl Fn(&Candidate) -> f64) {
        let ranked = |candidate: &Candidate| Ranked {
            rank: rank(candidate),
            token: candidate.token,
            weight: candidate.weight,
        };
        self.ranked.clear();
        self.ranked.extend(self.left.iter().map(ranked));
        let last = last_to_reach(&mut self.ranked, f64::from(p) * self.total);
        self.left
            .retain(|candidate| !ranked(candidate).compare(&last).is_gt());
    }
}

fn by_logit(token: u32, logit: f32, weight: f32) -> Ranked {
    Ranked {
        // Not a negation: it would rank 0 and −0 apart.
        rank: 0.0 - f64::from(logit),
        token,
        weight,
    }
}

/// The last one needed for the weights, taken in order, to reach `target`: halves what is left
/// until one remains.
fn last_to_reach(ranked: &mut [Ranked], target: f64) -> Ranked {
    let mut left = ranked;
    let mut missing = target;
    while left.len() > 1 {
        let half = left.len() / 2;
        left.select_nth_unstable_by(half - 1, Ranked::compare);
        let (first, second) = left.split_at_mut(half);
        let mass: f64 = first.iter().map(|ranked| f64::from(ranked.weight)).sum();
        if mass >= missing {
            left = first;
        } else {
            missing -= mass;
            left = second;
        }
    }
    left[0]
}
