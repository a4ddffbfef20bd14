//! The sampling chain on the host: from a row of logits to a token.
//!
//! Owns what every backend must compute when it samples, stage by stage, and the state that a
//! slot carries from token to token. Knows no device: a backend whose logits are in host memory
//! calls it, one that samples on its device computes the same.
//!
//! # The draw
//! Tokens with a logit of −∞ are out from the beginning. What the stages leave is weighed by
//! `w = exp((logit − largest logit left) / temperature)`; running through the tokens left **in
//! the order of their ids**, the first whose running sum exceeds `u · Σw` is drawn, where `u` is
//! [`uniform`] of the seed and the token's position. Id order needs no sort, and two backends
//! whose logits differ in the last bits still walk the same way.

mod candidates;
mod seen;
mod softmax;
#[cfg(test)]
mod tests;

use candidates::Candidates;
use seen::SeenTokens;

use crate::{MAX_TOP, Sample, SampleParams, SampleRow};

/// The uniform number in `[0, 1)` that decides the draw of the token at `position`: a multiple
/// of 2⁻²⁴, so that a device without `f64` has the same one.
///
/// It is the top 24 bits of output number `position` (from 0) of the generator SplitMix64 (Steele,
/// Lea & Flood 2014) whose state starts at the first SplitMix64 output for state `seed`.
pub fn uniform(seed: u64, position: usize) -> f32 {
    let start = mix(seed.wrapping_add(GOLDEN_GAMMA));
    let steps = (position as u64).wrapping_add(1);
    let word = mix(start.wrapping_add(steps.wrapping_mul(GOLDEN_GAMMA)));
    (word >> 40) as f32 / (1 << 24) as f32
}

/// SplitMix64's increment: 2⁶⁴ divided by the golden ratio, made odd.
const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's output function.
fn mix(state: u64) -> u64 {
    let word = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// Sampler state of some slots, and scratch so that drawing allocates nothing but the list of
/// most likely tokens where one is asked for.
#[derive(Debug)]
pub struct HostSampler {
    vocabulary: usize,
    /// `[slots]`
    slots: Vec<Slot>,
    candidates: Candidates,
    /// Tokens whose logit was changed, with the model's own.
    changed: Vec<(u32, f32)>,
}

/// One sequence's sampler state.
#[derive(Clone, Debug)]
struct Slot {
    params: SampleParams,
    /// Kept only while a penalty asks for it.
    seen: SeenTokens,
}

/// What the chain needs to know of a row of logits before it changes any. It takes two passes over a
/// vocabulary and no state: rows can be summarised side by side.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The largest logit.
    largest: f32,
    /// The first token that has it.
    first: usize,
    /// `ln Σ e^(logit − largest)`, where probabilities are wanted.
    log_sum: Option<f64>,
}

impl Summary {
    /// What `row` needs of its logits. `None` if one is NaN or +∞, or all are −∞: there is nothing to
    /// draw from. Inlined, so that it compiles with the instructions of the caller; the result is the
    /// same with any.
    #[inline(always)]
    pub fn of(logits: &[f32], row: SampleRow) -> Option<Self> {
        let largest = softmax::largest(logits)?;
        let log_sum = |_| softmax::exp_sum(logits, largest).ln();
        Some(Self {
            largest,
            first: softmax::first_of(logits, largest),
            log_sum: row.top.map(log_sum),
        })
    }
}

impl HostSampler {
    /// Room for `slots` sequences over `vocabulary` tokens; every slot is greedy until admitted.
    pub fn new(slots: usize, vocabulary: usize) -> Self {
        let empty = Slot {
            params: SampleParams::greedy(),
            seen: SeenTokens::default(),
        };
        Self {
            vocabulary,
            slots: vec![empty; slots],
            candidates: Candidates::new(vocabulary),
            changed: Vec::new(),
        }
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// A sequence takes a slot: its parameters, and `tokens` so far of which `prompt` are prompt.
    pub fn admit(&mut self, slot: usize, params: &SampleParams, tokens: &[u32], prompt: usize) {
        let known = |token: &u32| (*token as usize) < self.vocabulary;
        assert!(
            tokens.iter().all(known) && params.logit_bias.iter().all(|(token, _)| known(token)),
            "admit: a token is outside the vocabulary of {}",
            self.vocabulary
        );
        let slot = &mut self.slots[slot];
        slot.params.clone_from(params);
        match params.has_penalties() {
            true => slot.seen.reset(tokens, prompt),
            false => slot.seen.reset(&[], 0),
        }
    }

    /// Draws the token of a row and counts it in its slot. Changes the logits. `[vocabulary]`
    pub fn sample_row(&mut self, logits: &mut [f32], row: SampleRow) -> Sample {
        self.sample_summarised(logits, Summary::of(logits, row), row)
    }

    /// [`sample_row`](Self::sample_row) with the [`Summary`] of these logits for this row.
    pub fn sample_summarised(
        &mut self,
        logits: &mut [f32],
        summary: Option<Summary>,
        row: SampleRow,
    ) -> Sample {
        assert_eq!(logits.len(), self.vocabulary, "sample: length of a row");
        let named = row.top.unwrap_or(0);
        assert!(named <= MAX_TOP, "sample: top {named} > {MAX_TOP}");
        let Some(summary) = summary else {
            return Sample::NotFinite;
        };
        let Summary {
            largest, log_sum, ..
        } = summary;
        let logprob =
            |logit: f32, log_sum: f64| (f64::from(logit) - f64::from(largest) - log_sum) as f32;
        let mut top = Vec::new();
        if let Some(log_sum) = log_sum.filter(|_| named > 0) {
            let named = self.candidates.most_likely(logits, named);
            top.extend(named.map(|token| (token, logprob(logits[token as usize], log_sum))));
        }
        self.change(logits, row.slot);
        let Some(token) = self.choose(logits, summary, row) else {
            return Sample::NotFinite;
        };
        let slot = &mut self.slots[row.slot];
        if slot.params.has_penalties() {
            slot.seen.count(token);
        }
        let mut changed = self.changed.iter();
        let logit = match changed.find(|(changed, _)| *changed == token) {
            Some((_, logit)) => *logit,
            None => logits[token as usize],
        };
        Sample::Token {
            token,
            logprob: log_sum.map(|log_sum| logprob(logit, log_sum)),
            top,
        }
    }

    /// Logit bias, then repetition, then presence and frequency penalties, in place.
    fn change(&mut self, logits: &mut [f32], slot: usize) {
        let Slot { params, seen } = &self.slots[slot];
        self.changed.clear();
        for &(token, bias) in &params.logit_bias {
            let logit = &mut logits[token as usize];
            self.changed.push((token, *logit));
            *logit += bias;
        }
        for seen in seen.iter() {
            let logit = &mut logits[seen.token as usize];
            self.changed.push((seen.token, *logit));
            match *logit > 0.0 {
                true => *logit /= params.repetition_penalty,
                false => *logit *= params.repetition_penalty,
            }
            if seen.answered > 0 {
                *logit -= params.presence_penalty + params.frequency_penalty * seen.answered as f32;
            }
        }
    }

    /// The rest of the chain; `None` when there is nothing to draw from. `summary` is of the logits
    /// before any was changed.
    fn choose(&mut self, logits: &[f32], summary: Summary, row: SampleRow) -> Option<u32> {
        let params = &self.slots[row.slot].params;
        let (max, first) = match self.changed.is_empty() {
            true => (summary.largest, Some(summary.first)),
            false => (softmax::largest(logits)?, None),
        };
        // Only typical sampling may drop the most likely token, the others never do.
        if params.temperature == 0.0 && params.typical_p >= 1.0 {
            let first = first.unwrap_or_else(|| softmax::first_of(logits, max));
            return Some(first as u32);
        }
        let filters = params.top_k > 0 && params.top_k < logits.len()
            || params.typical_p < 1.0
            || params.top_p < 1.0
            || params.min_p > 0.0;
        let uniform = uniform(params.seed, row.position);
        if !filters {
            return Some(self.candidates.draw_any(logits, max, params, uniform));
        }
        self.candidates.collect(logits, max, params);
        self.candidates.typical(params.typical_p);
        self.candidates.top_p(params.top_p);
        self.candidates.min_p(params.min_p);
        Some(match params.temperature == 0.0 {
            true => self.candidates.first_largest(),
            false => self.candidates.draw(params.temperature, uniform),
        })
    }
}
