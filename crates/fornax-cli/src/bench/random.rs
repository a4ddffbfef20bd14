//! Random tokens and waiting times: SplitMix64, seeded, the same on every machine.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The bias of a remainder is beyond measure for ends far below 2⁶⁴.
        (self.bits() % end as u64) as usize
    }

    /// In 0 .. 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A waiting time until the next of events that come independently, `rate` of them a second
    /// on average.
    pub fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.unit()).ln() / rate
    }

    /// Some order of these.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_times_have_the_rate_asked_for() {
        let mut random = Random::new(1);
        let total: f64 = (0..10_000).map(|_| random.exponential(4.0)).sum();
        assert!((total / 10_000.0 - 0.25).abs() < 0.01, "{total}");
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<usize> = (0..100).collect();
        Random::new(2).shuffle(&mut items);
        assert_ne!(items[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }
}
