//! Numbers by size, counted without a lock.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds in seconds.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    20.0, 60.0, 300.0,
];
/// Upper bounds of counts.
const COUNTS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

/// How many numbers fell into each range.
pub struct Histogram {
    /// Upper bounds of the ranges; above the last is one more.
    bounds: &'static [f64],
    /// `[n_bounds + 1]`
    ranges: Box<[AtomicU64]>,
    /// Of all numbers, in parts of a unit.
    sum: AtomicU64,
    /// How many parts make a unit.
    parts: f64,
}

impl Histogram {
    /// Durations, none counted yet.
    pub fn seconds() -> Self {
        Self::new(SECONDS, 1e9)
    }

    /// Whole numbers, none counted yet.
    pub fn counts() -> Self {
        Self::new(COUNTS, 1.0)
    }

    fn new(bounds: &'static [f64], parts: f64) -> Self {
        Self {
            bounds,
            ranges: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            parts,
        }
    }

    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.add(duration.as_secs_f64(), nanoseconds);
    }

    /// Counts a whole number.
    pub fn observe_count(&self, count: usize) {
        self.add(count as f64, count as u64);
    }

    fn add(&self, number: f64, parts: u64) {
        let range = self.bounds.partition_point(|&bound| bound < number);
        self.ranges[range].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(parts, Ordering::Relaxed);
    }

    /// Writes it in the Prometheus text format, under labels such as `model_name="m"`.
    pub fn write(&self, text: &mut String, name: &str, labels: &str) {
        // Writing to a string cannot fail.
        let mut count = 0;
        let bounds = self.bounds.iter().map(f64::to_string);
        let bounds = bounds.chain(["+Inf".to_owned()]);
        for (bound, range) in bounds.zip(&self.ranges) {
            count += range.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let sum = self.sum.load(Ordering::Relaxed) as f64 / self.parts;
        let _ = writeln!(text, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(text, "{name}_count{{{labels}}} {count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bound_counts_all_that_is_not_above_it() {
        let histogram = Histogram::seconds();
        for milliseconds in [1, 2, 30, 400_000] {
            histogram.observe(Duration::from_millis(milliseconds));
        }
        let mut text = String::new();
        histogram.write(&mut text, "h", "model_name=\"m\"");
        for line in [
            "h_bucket{model_name=\"m\",le=\"0.001\"} 1",
            "h_bucket{model_name=\"m\",le=\"0.0025\"} 2",
            "h_bucket{model_name=\"m\",le=\"0.025\"} 2",
            "h_bucket{model_name=\"m\",le=\"0.05\"} 3",
            "h_bucket{model_name=\"m\",le=\"300\"} 3",
            "h_bucket{model_name=\"m\",le=\"+Inf\"} 4",
            "h_sum{model_name=\"m\"} 400.033",
            "h_count{model_name=\"m\"} 4",
        ] {
            assert!(text.lines().any(|told| told == line), "{line}\n{text}");
        }
    }

    #[test]
    fn whole_numbers_have_ranges_of_their_own() {
        let histogram = Histogram::counts();
        for count in [1, 8, 9] {
            histogram.observe_count(count);
        }
        let mut text = String::new();
        histogram.write(&mut text, "h", "a=\"b\"");
        for line in ["h_bucket{a=\"b\",le=\"8\"} 2", "h_sum{a=\"b\"} 18"] {
            assert!(text.lines().any(|told| told == line), "{line}\n{text}");
        }
    }
}
