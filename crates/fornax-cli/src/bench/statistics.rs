//! Numbers out of many: mean, deviation, percentiles.

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    match values.len() {
        0 => 0.0,
        count => values.iter().sum::<f64>() / count as f64,
    }
}

/// The deviation of the population that these are a sample of; 0 where one value tells nothing.
pub fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// Half, nine tenths and ninety-nine hundredths of the values are no greater than these.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl Percentiles {
    /// Those of some values in any order; 0 of nothing.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| match sorted.len() {
            0 => 0.0,
            // The nearest rank: a value that was measured, not one between two.
            count => sorted[(part * count as f64).ceil() as usize - 1],
        };
        Self {
            p50: at(0.50),
            p90: at(0.90),
            p99: at(0.99),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_are_those_of_a_sample() {
        let values = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&values), 5.0);
        assert!((deviation(&values) - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!((mean(&[3.0]), deviation(&[3.0])), (3.0, 0.0));
        assert_eq!((mean(&[]), deviation(&[])), (0.0, 0.0));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred = Percentiles::of((1..=100).rev().map(f64::from));
        assert_eq!((hundred.p50, hundred.p90, hundred.p99), (50.0, 90.0, 99.0));
        let three = Percentiles::of([3.0, 1.0, 2.0]);
        assert_eq!((three.p50, three.p90, three.p99), (2.0, 3.0, 3.0));
        assert_eq!(Percentiles::of([]), Percentiles::default());
    }
}
