//! Durations by size, counted without a lock.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the ranges, in seconds; above the last is one more.
const BOUNDS: [f64; 18] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
    20.0, 60.0, 300.0,
];

/// How many durations fell into each range.
pub struct Histogram {
    ranges: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Histogram {
    /// Nothing counted yet.
    pub fn seconds() -> Self {
        Self {
            ranges: Default::default(),
            nanoseconds: AtomicU64::new(0),
        }
    }

    /// Counts one.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let range = BOUNDS.partition_point(|&bound| bound < seconds);
        self.ranges[range].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Writes it in the Prometheus text format.
    pub fn write(&self, text: &mut String, name: &str, model: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# TYPE {name} histogram");
        let mut count = 0;
        let bounds = BOUNDS.iter().map(f64::to_string);
        let bounds = bounds.chain(["+Inf".to_owned()]);
        for (bound, range) in bounds.zip(&self.ranges) {
            count += range.load(Ordering::Relaxed);
            let _ = writeln!(
                text,
                "{name}_bucket{{model_name=\"{model}\",le=\"{bound}\"}} {count}"
            );
        }
        let seconds = self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(text, "{name}_sum{{model_name=\"{model}\"}} {seconds}");
        let _ = writeln!(text, "{name}_count{{model_name=\"{model}\"}} {count}");
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
        histogram.write(&mut text, "h", "m");
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
}
