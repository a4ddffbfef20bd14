//! What operations cost at least: bytes and multiply-adds.

use std::ops::Add;

use crate::AttentionSpec;

/// Bytes that must move and multiply-adds that must be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    pub bytes: u64,
    pub macs: u64,
}

impl Cost {
    /// Attention of rows of `(new tokens, tokens before them)`.
    pub fn of_attention<W>(
        rows: &[(usize, usize)],
        token_bytes: u64,
        spec: &AttentionSpec<'_, W>,
    ) -> Self {
        let window = spec.window.unwrap_or(usize::MAX);
        let (mut read, mut pairs) = (0, 0);
        for &(new, cached) in rows {
            read += (cached + new).min(window.saturating_add(new - 1)) as u64;
            pairs += (cached + 1..=cached + new)
                .map(|seen| seen.min(window) as u64)
                .sum::<u64>();
        }
        Self {
            bytes: read * token_bytes,
            macs: pairs * (spec.q.count * (spec.q.dim + spec.v_dim)) as u64,
        }
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            macs: self.macs + other.macs,
        }
    }
}

/// The share of experts that at least one of `n` tokens passes, if each chooses freely. Which ones
/// it is only the device knows.
pub(super) fn experts_touched(experts: usize, used: usize, n: usize) -> f64 {
    1.0 - (1.0 - used as f64 / experts as f64).powf(n as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Heads, Queries};

    fn spec(window: Option<usize>) -> AttentionSpec<'static, ()> {
        AttentionSpec {
            group: 0,
            queries: Queries::All,
            q: Heads {
                stride: 32,
                offset: 0,
                count: 4,
                dim: 8,
            },
            kv_heads: 2,
            v_dim: 8,
            scale: 1.0,
            window,
            soft_cap: None,
            sinks: None,
        }
    }

    #[test]
    fn attention_costs_what_each_query_sees() {
        // Three new tokens behind two, and a lone one behind nine: 3 + 4 + 5 and 10 pairs.
        let rows = [(3, 2), (1, 9)];
        let all = Cost::of_attention(&rows, 10, &spec(None));
        assert_eq!((all.bytes, all.macs), (150, 22 * 4 * 16));
        // Four tokens at most: 3 + 4 + 4 and 4; the first row still reads all of its five.
        let near = Cost::of_attention(&rows, 10, &spec(Some(4)));
        assert_eq!((near.bytes, near.macs), (90, 15 * 4 * 16));
    }

    #[test]
    fn one_token_touches_what_it_uses_and_many_touch_nearly_all() {
        assert!((experts_touched(32, 4, 1) - 0.125).abs() < 1e-12);
        assert!(experts_touched(32, 4, 512) > 0.999);
    }
}
