//! How much of prompts a step may take without holding up the answers that go on.
//!
//! Owns what steps were seen to cost. Knows no clock: how long a step took, it is told. So the
//! same requests in the same order, with the same times told, give the same plan.

use std::time::Duration;

use crate::StepStats;

/// How much of prompts goes into a step in which an answer goes on. Where none does, prompts have
/// all that a step has room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PromptPace {
    /// All that the step has room for.
    Whole,
    /// At most so many tokens, at least 1.
    Tokens(usize),
    /// As many tokens as let the step take so many times as long as one of the answers alone, by
    /// what earlier steps took; more than 1. Needs [`Engine::took`](crate::Engine::took).
    Slowdown(f32),
}

/// Tokens of prompts beside answers before anything is known.
const UNKNOWN: usize = 32;
/// Tokens of prompts beside answers at least, so that a prompt comes to its end where an answer's
/// token costs as much as a prompt's.
const FEWEST: usize = 8;
/// Tokens that devices multiply with weights together, or a divisor of it: one that begins a tile
/// costs as much as all that fill it.
const TILE: usize = 16;
/// What a new measure counts beside those before it.
const WEIGHT: f64 = 0.25;
/// One step says no more than that all is half or twice as fast: the system may have been busy.
const OUTLIER: f64 = 2.0;
/// Counts of answers that are told apart: 1, 2 to 3, 4 to 7 …
const CLASSES: usize = 16;

/// What steps cost: a step of answers alone takes what so many answers take, and each token of a
/// prompt adds as much as any other.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepCosts {
    /// Seconds of a step of answers alone, by the class of their number.
    answers: [Option<f64>; CLASSES],
    /// Seconds of one more token of a prompt.
    prompt_token: Option<f64>,
}

impl StepCosts {
    /// Takes in what a step took.
    pub(crate) fn observe(&mut self, step: &StepStats, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let prompt_tokens = step.tokens - step.going_on;
        if step.going_on == 0 {
            // The weights were read for it too, so a token took no more than this, and less the
            // fewer there were.
            let most = seconds / prompt_tokens as f64;
            self.prompt_token = Some(self.prompt_token.map_or(most, |token| token.min(most)));
            return;
        }
        let before = self.alone(step.going_on);
        let alone = &mut self.answers[class(step.going_on)];
        if prompt_tokens == 0 {
            let known = *alone.get_or_insert(seconds);
            *alone = Some(known + (seconds - known) * WEIGHT);
            return;
        }
        if let (Some(before), Some(token)) = (before, &mut self.prompt_token) {
            let expected = before + *token * prompt_tokens as f64;
            if expected == 0.0 {
                return;
            }
            let ratio = (seconds / expected).clamp(1.0 / OUTLIER, OUTLIER);
            // Which part was wrong cannot be told here; steps of answers alone tell.
            let factor = 1.0 + (ratio - 1.0) * WEIGHT;
            *alone = Some(before * factor);
            *token *= factor;
        }
    }

    /// Tokens of prompts that make a step with so many answers `slowdown` times as long, or a few
    /// more or less: so many that together they fill tiles.
    pub(crate) fn prompt_tokens(&self, answers: usize, slowdown: f32) -> usize {
        let (Some(alone), Some(token)) = (self.alone(answers), self.prompt_token) else {
            return UNKNOWN;
        };
        let tokens = alone * f64::from(slowdown - 1.0) / token;
        // Nothing or anything where no time passed at all; `as` makes a number of both.
        let together = (tokens as usize).saturating_add(answers);
        let tiles = together.saturating_add(TILE / 2) / TILE;
        FEWEST.max((tiles * TILE).saturating_sub(answers))
    }

    /// Seconds of a step of so many answers alone; of the nearest number where so many were never
    /// seen.
    fn alone(&self, answers: usize) -> Option<f64> {
        let class = class(answers);
        let seen = self.answers.iter().enumerate();
        let seen = seen.filter_map(|(other, seconds)| Some((class.abs_diff(other), (*seconds)?)));
        seen.min_by_key(|(distance, _)| *distance)
            .map(|(_, seconds)| seconds)
    }
}

fn class(answers: usize) -> usize {
    (answers.ilog2() as usize).min(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(costs: &mut StepCosts, going_on: usize, prompt_tokens: usize, milliseconds: u64) {
        let step = StepStats {
            tokens: going_on + prompt_tokens,
            going_on,
            ..StepStats::default()
        };
        costs.observe(&step, Duration::from_millis(milliseconds));
    }

    #[test]
    fn nothing_known_is_a_careful_beginning() {
        let mut costs = StepCosts::default();
        assert_eq!(costs.prompt_tokens(1, 2.5), UNKNOWN);
        told(&mut costs, 0, 100, 200);
        assert_eq!(costs.prompt_tokens(1, 2.5), UNKNOWN);
        told(&mut costs, 1, 0, 40);
        // 30 would, and one more fills a tile.
        assert_eq!(costs.prompt_tokens(1, 2.5), 31);
        // As many as were never seen are taken for as many as were.
        assert_eq!(costs.prompt_tokens(2, 2.5), 30);
        assert_eq!(costs.prompt_tokens(9, 2.5), 23);
        told(&mut costs, 32, 0, 80);
        assert_eq!(
            [3, 9].map(|answers| costs.prompt_tokens(answers, 2.5)),
            [29, 55]
        );
        assert_eq!(costs.prompt_tokens(1, 1.01), FEWEST);
    }

    #[test]
    fn steps_with_both_teach_both() {
        // 20 ms and 5 ms for each answer, 2 ms a token; believed to be 1 ms.
        let mut costs = StepCosts::default();
        told(&mut costs, 0, 100, 100);
        for _ in 0..40 {
            told(&mut costs, 4, 0, 40);
            told(&mut costs, 4, 30, 100);
        }
        assert_eq!(costs.prompt_tokens(4, 2.5), 28, "{costs:?}");
        // And where answers are never alone any more, the sum still is right.
        for _ in 0..40 {
            told(&mut costs, 4, 30, 200);
        }
        let step = costs.alone(4).unwrap() + 30.0 * costs.prompt_token.unwrap();
        assert!((step - 0.2).abs() < 0.01, "{costs:?}");
    }

    #[test]
    fn one_step_that_was_held_up_changes_little() {
        let mut costs = StepCosts::default();
        told(&mut costs, 0, 100, 200);
        told(&mut costs, 1, 0, 40);
        told(&mut costs, 1, 20, 8000);
        assert_eq!(costs.prompt_tokens(1, 2.5), 31);
        assert!(costs.alone(1).unwrap() <= 0.051, "{costs:?}");
    }

    #[test]
    fn no_time_at_all_is_no_trouble() {
        let mut costs = StepCosts::default();
        told(&mut costs, 0, 1, 0);
        told(&mut costs, 1, 0, 0);
        told(&mut costs, 1, 1, 0);
        assert!(costs.prompt_tokens(1, 2.5) >= FEWEST);
    }
}
