//! Merging, which is all that both kinds of byte-pair encoding do: neighbours whose merge comes
//! first are joined until none is left. Knows numbers of tokens, not what they spell.
//!
//! Sennrich et al. 2016 (arXiv:1508.07909). A queue finds the next merge, so that n tokens cost
//! O(n log n) and not O(n²).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A map that is fast for small keys.
pub(crate) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Up to this many tokens, looking at each of them finds the next merge sooner than a queue.
const FEW: usize = 24;

/// What neighbouring tokens become.
#[derive(Debug, Default)]
pub(crate) struct Merges {
    /// By the left token in the upper half and the right one in the lower.
    by_pair: FastMap<u64, Merge>,
}

/// One merge: the smaller rank goes first, and of equals the leftmost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Merge {
    /// How early it goes; below `u32::MAX`.
    pub rank: u32,
    /// What the two become.
    pub token: u32,
}

impl Merge {
    /// No merge: it goes after all others, which is never.
    const NONE: Merge = Merge {
        rank: u32::MAX,
        token: 0,
    };
}

impl Merges {
    /// Without any merge, with room for `count`.
    pub(crate) fn with_capacity(count: usize) -> Merges {
        Merges {
            by_pair: FastMap::with_capacity_and_hasher(count, Default::default()),
        }
    }

    /// Adds a merge; returns whether there was none of this pair.
    pub(crate) fn insert(&mut self, left: u32, right: u32, merge: Merge) -> bool {
        self.by_pair.insert(key(left, right), merge).is_none()
    }

    /// What the pair becomes.
    pub(crate) fn of(&self, left: u32, right: u32) -> Option<Merge> {
        self.by_pair.get(&key(left, right)).copied()
    }
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// The tokens of one piece while they are merged; kept between pieces to save allocations.
#[derive(Default)]
pub(crate) struct Merging {
    /// [tokens of the piece] a doubly linked list; merged-away tokens stay in place, dead.
    symbols: Vec<Symbol>,
    /// Rank and place of possible merges; out of date where the symbol has another rank by now.
    queue: BinaryHeap<Reverse<(u32, usize)>>,
}

#[derive(Clone, Copy)]
struct Symbol {
    token: u32,
    /// With the next symbol.
    merge: Merge,
    previous: usize,
    next: usize,
}

/// The neighbour of the first and of the last symbol.
const NOWHERE: usize = usize::MAX;

impl Merging {
    /// Appends a token to the piece.
    #[inline]
    pub(crate) fn push(&mut self, token: u32) {
        let at = self.symbols.len();
        self.symbols.push(Symbol {
            token,
            merge: Merge::NONE,
            previous: at.wrapping_sub(1), // Nowhere for the first.
            next: at + 1,
        });
    }

    /// Merges the piece and appends what it became to `out`; the next push begins a new piece.
    pub(crate) fn finish(&mut self, merges: &Merges, out: &mut Vec<u32>) {
        let Some(last) = self.symbols.last_mut() else {
            return;
        };
        last.next = NOWHERE;
        for left in 1..self.symbols.len() {
            self.look_up(merges, left - 1);
        }
        match self.symbols.len() <= FEW {
            true => self.merge_few(merges),
            false => self.merge_many(merges),
        }
        let mut at = 0;
        while at != NOWHERE {
            out.push(self.symbols[at].token);
            at = self.symbols[at].next;
        }
        self.symbols.clear();
    }

    fn merge_few(&mut self, merges: &Merges) {
        loop {
            let (mut best, mut rank) = (NOWHERE, u32::MAX);
            let mut at = 0;
            while at != NOWHERE {
                crate::work::step();
                let symbol = &self.symbols[at];
                if symbol.merge.rank < rank {
                    (best, rank) = (at, symbol.merge.rank);
                }
                at = symbol.next;
            }
            if best == NOWHERE {
                return;
            }
            self.join(merges, best);
        }
    }

    fn merge_many(&mut self, merges: &Merges) {
        self.queue.clear();
        for at in 0..self.symbols.len() {
            self.offer(at);
        }
        while let Some(Reverse((rank, left))) = self.queue.pop() {
            crate::work::step();
            if self.symbols[left].merge.rank != rank {
                continue; // One of the two was merged with its other neighbour meanwhile.
            }
            let previous = self.join(merges, left);
            self.offer(left);
            if previous != NOWHERE {
                self.offer(previous);
            }
        }
    }

    /// Queues the merge at `left`, if there is one.
    fn offer(&mut self, left: usize) {
        let rank = self.symbols[left].merge.rank;
        if rank != Merge::NONE.rank {
            self.queue.push(Reverse((rank, left)));
        }
    }

    /// Joins the symbol at `left` with its right neighbour; returns its left neighbour.
    fn join(&mut self, merges: &Merges, left: usize) -> usize {
        let Symbol {
            merge,
            previous,
            next: right,
            ..
        } = self.symbols[left];
        let after = self.symbols[right].next;
        self.symbols[right].merge = Merge::NONE;
        self.symbols[left].token = merge.token;
        self.symbols[left].next = after;
        if after != NOWHERE {
            self.symbols[after].previous = left;
        }
        self.look_up(merges, left);
        if previous != NOWHERE {
            self.look_up(merges, previous);
        }
        previous
    }

    /// Finds the merge of the symbol at `left` with its right neighbour.
    fn look_up(&mut self, merges: &Merges, left: usize) {
        let Symbol { token, next, .. } = self.symbols[left];
        self.symbols[left].merge = match self.symbols.get(next) {
            Some(right) => merges.of(token, right.token).unwrap_or(Merge::NONE),
            None => Merge::NONE,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::repeatable;
    use proptest::prelude::*;

    fn merged(merges: &Merges, tokens: &[u32]) -> Vec<u32> {
        let mut merging = Merging::default();
        for &token in tokens {
            merging.push(token);
        }
        let mut out = Vec::new();
        merging.finish(merges, &mut out);
        out
    }

    /// The definition: again and again the first of the earliest merges, found by looking.
    fn by_definition(merges: &Merges, mut tokens: Vec<u32>) -> Vec<u32> {
        loop {
            let pairs = tokens.windows(2).enumerate();
            let known = pairs.filter_map(|(at, pair)| Some((merges.of(pair[0], pair[1])?, at)));
            let Some((merge, at)) = known.min_by_key(|(merge, at)| (merge.rank, *at)) else {
                return tokens;
            };
            tokens.splice(at..at + 2, [merge.token]);
        }
    }

    /// Of few tokens, so that they overlap, and of ranks that some of them share.
    fn merges() -> impl Strategy<Value = Merges> {
        prop::collection::vec((0u32..6, 0u32..6, 0u32..8, 0u32..6), 0..14).prop_map(|all| {
            let mut merges = Merges::default();
            for (left, right, rank, token) in all {
                merges.insert(left, right, Merge { rank, token });
            }
            merges
        })
    }

    #[test]
    fn earlier_merges_and_then_left_ones_go_first() {
        let mut merges = Merges::default();
        merges.insert(0, 1, Merge { rank: 1, token: 2 });
        merges.insert(1, 0, Merge { rank: 0, token: 3 });
        merges.insert(0, 0, Merge { rank: 2, token: 4 });
        assert_eq!(merged(&merges, &[0, 1, 0, 0, 1]), [0, 3, 2]);
        assert_eq!(merged(&merges, &[0, 0, 0]), [4, 0]);
        assert!(merged(&merges, &[]).is_empty());
    }

    proptest! {
        #![proptest_config(repeatable(600))]

        #[test]
        fn few_and_many_are_merged_by_definition(
            merges in merges(),
            tokens in prop::collection::vec(0u32..4, 0..3 * FEW),
        ) {
            prop_assert_eq!(merged(&merges, &tokens), by_definition(&merges, tokens));
        }
    }
}
