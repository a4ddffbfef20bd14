//! What tests of the engine, and of all that is built on it, are made of.
//!
//! Owns a runner without a model, the answers a correct engine must give with it, and a seeded
//! source of chance. Knows nothing of the engine's inside.

#[cfg(feature = "fuzzing")]
mod bytes;
mod fake_runner;
mod oracle;
mod transcript;

#[cfg(feature = "fuzzing")]
pub use bytes::radix_operations;
pub use fake_runner::{FakeRunner, Faults};
pub use oracle::{expected_logits, expected_pooled, expected_token};
pub use transcript::Transcript;

use crate::{KvGroup, Limits};

/// Limits that one can count on fingers.
pub fn small_limits() -> Limits {
    Limits {
        max_rows: 4,
        max_tokens: 16,
        context: 64,
        vocabulary: 100,
        kv_groups: vec![kv_group(4, 64)],
    }
}

/// A group of this shape.
pub fn kv_group(page_size: usize, pages: usize) -> KvGroup {
    KvGroup {
        page_size,
        pages,
        k_width: 1,
        v_width: 1,
        window: None,
        page_bytes: page_size * 8,
    }
}

/// A seeded stream of numbers: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// The next number, below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
