//! Steps for operations that need no cache: ragged rows, with page tables that nothing reads.

use super::random::Random;
use crate::{RowSpan, StepCapacity, StepRows};

/// Room for these many tokens and rows, with one KV group of one-token pages.
pub(super) fn capacity(tokens: usize, rows: usize, context: usize) -> StepCapacity {
    StepCapacity {
        rows,
        tokens,
        groups: vec![(1, context)],
    }
}

/// Rows of `(cached, new)` tokens with random ids below `vocabulary`.
pub(super) fn ragged(random: &mut Random, spans: &[(usize, usize)], vocabulary: usize) -> StepRows {
    let mut step = StepRows {
        tables: vec![Vec::new()],
        ..StepRows::default()
    };
    for &(cached, len) in spans {
        let start = step.tokens.len();
        step.rows.push(RowSpan { start, len, cached });
        let ids = (0..len).map(|_| random.below(vocabulary) as u32);
        step.tokens.extend(ids);
        step.tables[0].push((0..(cached + len) as u32).collect());
    }
    step
}

/// The spans of a batch as decode, prefill and chunks of it mix them.
pub(super) fn mixed_spans(random: &mut Random, rows: usize, longest: usize) -> Vec<(usize, usize)> {
    let span = |_| match random.below(4) {
        0 => (0, 1 + random.below(longest)),
        1 => (random.below(longest), 1),
        2 => (random.below(longest), 1 + random.below(longest)),
        _ => (random.below(10 * longest), 1),
    };
    (0..rows).map(span).collect()
}
