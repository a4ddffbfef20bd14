//! Fast, seeded, nearly normal numbers.
//!
//! A row of a tensor depends on the seed, the tensor's name and the row alone, so that rows can be
//! made in any order, and a file with fewer layers or another type holds the same weights. Must not
//! know shapes.
//!
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) gives 64
//! bits a step; the sum of their four 16-bit parts, centred and scaled to variance 1, is one
//! number. It follows the normal distribution closely up to 2.5 standard deviations and ends at
//! 3.46: weights need no longer tails, and nothing here may be used for sampling tokens.

/// Fills `out` with row `row` of tensor `name`: mean 0, variance 1.
pub(super) fn normal(seed: u64, name: &str, row: usize, out: &mut [f32]) {
    const MEAN: i32 = 4 * 65535 / 2;
    // Four uniform numbers of variance 65536² / 12 each.
    const DEVIATION: f32 = 65536.0 / 1.732_050_8;
    let mut state = mix(mix(seed ^ hash(name)).wrapping_add(row as u64));
    for value in out {
        state = state.wrapping_add(STEP);
        let bits = mix(state);
        let parts = [bits, bits >> 16, bits >> 32, bits >> 48];
        let sum: i32 = parts.iter().map(|&part| i32::from(part as u16)).sum();
        *value = (sum - MEAN) as f32 / DEVIATION;
    }
}

/// 2⁶⁴ over the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output function of SplitMix64.
fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// FNV-1a.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mix_is_splitmix64() {
        // The first outputs from seed 0, as published with the reference implementation.
        assert_eq!(mix(STEP), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(STEP.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn numbers_are_nearly_normal() {
        let mut values = vec![0.0; 1 << 20];
        normal(1, "blk.0.attn_q.weight", 0, &mut values);
        let count = values.len() as f64;
        let moment = |power| {
            values
                .iter()
                .map(|&value| f64::from(value).powi(power))
                .sum::<f64>()
                / count
        };
        let within =
            |bound: f32| values.iter().filter(|value| value.abs() < bound).count() as f64 / count;
        assert!(moment(1).abs() < 0.005, "mean {}", moment(1));
        assert!((moment(2) - 1.0).abs() < 0.005, "variance {}", moment(2));
        assert!(
            (moment(4) - 2.7).abs() < 0.03,
            "kurtosis {}: the sum of four has 2.7, a normal 3",
            moment(4)
        );
        assert!(
            (within(1.0) - 0.683).abs() < 0.02,
            "within one deviation {}",
            within(1.0)
        );
        assert!(
            (within(2.0) - 0.954).abs() < 0.01,
            "within two deviations {}",
            within(2.0)
        );
    }

    #[test]
    fn seed_name_and_row_each_matter() {
        let row = |seed, name, row| {
            let mut values = [0.0; 8];
            normal(seed, name, row, &mut values);
            values
        };
        let base = row(1, "a", 0);
        assert_eq!(base, row(1, "a", 0));
        for other in [row(2, "a", 0), row(1, "b", 0), row(1, "a", 1)] {
            assert!(base.iter().zip(&other).all(|(one, two)| one != two));
        }
    }
}
