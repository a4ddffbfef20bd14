//! The chain against its naive twin, its random numbers, and the statistics of its draws.

use super::*;
use crate::conformance::{Random, any_logits, any_params, naive};

fn row(position: usize) -> SampleRow {
    SampleRow {
        slot: 0,
        position,
        top: None,
        largest: None,
    }
}

fn draw(logits: &[f32], params: &SampleParams, position: usize) -> Sample {
    let mut sampler = HostSampler::new(1, logits.len());
    sampler.admit(0, params, &[], 0);
    sampler.sample_row(&mut logits.to_vec(), row(position))
}

fn token(sample: Sample) -> u32 {
    match sample {
        Sample::Token { token, .. } => token,
        Sample::NotFinite => panic!("nothing to draw from"),
    }
}

#[test]
fn agrees_with_the_naive_twin() {
    let mut random = Random::named("agrees with the naive twin");
    let (mut cases, mut close, mut differ) = (0, 0, 0);
    for vocabulary in [1, 2, 3, 10, 60, 300, 2000] {
        let mut sampler = HostSampler::new(3, vocabulary);
        for _ in 0..600_000 / (300 + vocabulary) {
            let params = any_params(&mut random, vocabulary);
            let len = random.below(30);
            let mut tokens: Vec<u32> = (0..len).map(|_| random.below(vocabulary) as u32).collect();
            let prompt = random.below(len + 1);
            let slot = random.below(3);
            sampler.admit(slot, &params, &tokens, prompt);
            for _ in 0..2 {
                let logits = any_logits(&mut random, vocabulary);
                let position = tokens.len();
                let top = (!random.once_in(4)).then(|| random.below(MAX_TOP + 1));
                let expected = naive::sample(&logits, &params, &tokens, prompt, position, top);
                let row = SampleRow {
                    slot,
                    position,
                    top,
                    largest: None,
                };
                let sample = sampler.sample_row(&mut logits.clone(), row);
                cases += 1;
                let Sample::Token {
                    token,
                    logprob,
                    top,
                } = sample
                else {
                    assert_eq!(expected.token, None, "{params:?}");
                    continue;
                };
                close += usize::from(expected.margin < 1e-6);
                if Some(token) != expected.token {
                    assert!(expected.margin < 1e-6, "{token} {expected:?} {params:?}");
                    differ += 1;
                }
                assert_eq!(logprob.is_some(), row.top.is_some());
                let of_drawn = logprob.map(|logprob| (token, logprob));
                let names: Vec<u32> = top.iter().map(|(token, _)| *token).collect();
                assert_eq!(names, expected.top);
                for (token, logprob) in top.into_iter().chain(of_drawn) {
                    let expected = expected.logprobs[token as usize];
                    let error = (f64::from(logprob) - expected).abs();
                    assert!(
                        error <= 1e-6 * (1.0 + expected.abs()),
                        "{logprob} {expected}"
                    );
                }
                tokens.push(token);
            }
        }
    }
    println!("{cases} cases, {close} within 1e-6 of another decision, {differ} of them differ");
    assert!(cases > 10_000 && close * 20 < cases);
}

#[test]
fn the_random_numbers_are_splitmix64() {
    // The first outputs of Vigna's published generator from state 1234567.
    let state = 1_234_567_u64;
    let published = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ];
    for (index, word) in (1..).zip(published) {
        assert_eq!(
            mix(state.wrapping_add(GOLDEN_GAMMA.wrapping_mul(index))),
            word
        );
    }
    let mean = (0..10_000)
        .map(|position| uniform(7, position))
        .sum::<f32>()
        / 10_000.0;
    assert!((mean - 0.5).abs() < 0.01, "{mean}");
    assert_ne!(uniform(0, 0), uniform(1, 0));
    assert_ne!(uniform(0, 0), uniform(0, 1));
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [1.0, 0.0, -1.0, 2.0, 0.5_f32, f32::NEG_INFINITY];
    let params = SampleParams {
        temperature: 0.8,
        seed: 42,
        ..SampleParams::greedy()
    };
    let draws = 50_000;
    let mut counts = [0_u32; 6];
    for position in 0..draws {
        counts[token(draw(&logits, &params, position)) as usize] += 1;
    }
    let weights = logits.map(|logit| (f64::from(logit) / f64::from(0.8_f32)).exp());
    let total: f64 = weights.iter().sum();
    let expected = weights.map(|weight| weight / total * draws as f64);
    assert_eq!(counts[5], 0);
    let square = |i: usize| (f64::from(counts[i]) - expected[i]).powi(2) / expected[i];
    let chi_squared: f64 = (0..5).map(square).sum();
    // 99.9 % of such sums over 4 degrees of freedom are below 18.5.
    assert!(chi_squared < 18.5, "{chi_squared} {counts:?}");
}

#[test]
fn ties_go_to_the_lowest_ids() {
    let logits = [0.0, 3.0, 3.0, 3.0, 3.0_f32, -0.0];
    let greedy = SampleParams::greedy();
    assert_eq!(token(draw(&logits, &greedy, 0)), 1);
    let top_two = [
        SampleParams {
            top_k: 2,
            ..greedy.clone()
        },
        SampleParams {
            top_p: 0.45,
            ..greedy.clone()
        },
    ];
    for params in top_two {
        let params = SampleParams {
            temperature: 1.0,
            ..params
        };
        let drawn: Vec<u32> = (0..200).map(|p| token(draw(&logits, &params, p))).collect();
        assert!(drawn.contains(&1) && drawn.contains(&2), "{params:?}");
        assert!(
            drawn.iter().all(|token| [1, 2].contains(token)),
            "{params:?}"
        );
    }
}

#[test]
fn greedy_takes_the_most_likely_token_that_typical_leaves() {
    // The entropy is nearest to the surprise of the four.
    let logits = [3.0, 1.0, 1.0, 1.0, 1.0_f32];
    let params = SampleParams {
        typical_p: 0.05,
        ..SampleParams::greedy()
    };
    let expected = naive::sample(&logits, &params, &[], 0, 0, None).token;
    assert_eq!(Some(token(draw(&logits, &params, 0))), expected);
}

#[test]
fn penalties_count_every_draw() {
    let mut sampler = HostSampler::new(1, 3);
    let params = SampleParams {
        frequency_penalty: 1.0,
        ..SampleParams::greedy()
    };
    sampler.admit(0, &params, &[0, 0, 0, 0, 0], 5);
    let drawn: Vec<u32> = (0..6)
        .map(|position| token(sampler.sample_row(&mut [2.25, 1.0, 0.5], row(position))))
        .collect();
    assert_eq!(drawn, [0, 0, 1, 2, 0, 1]);
}

#[test]
fn overflowing_penalties_are_not_finite() {
    let mut sampler = HostSampler::new(1, 2);
    let params = SampleParams {
        repetition_penalty: 1e-30,
        ..SampleParams::greedy()
    };
    sampler.admit(0, &params, &[1], 1);
    assert_eq!(
        sampler.sample_row(&mut [0.0, 1e20], row(1)),
        Sample::NotFinite
    );
}

#[test]
fn extreme_logits_and_temperatures_draw() {
    let logits = [f32::MIN, f32::MAX, 0.0];
    for temperature in [0.0, 1e-30, 1.0, f32::MAX] {
        for typical_p in [1.0, 0.5] {
            let params = SampleParams {
                temperature,
                typical_p,
                ..SampleParams::greedy()
            };
            assert_eq!(token(draw(&logits, &params, 3)), 1, "{params:?}");
        }
    }
}

#[test]
fn a_large_vocabulary_draws_like_the_twin() {
    let mut random = Random::named("a large vocabulary");
    let logits: Vec<f32> = random.normals(151_936);
    for (top_k, top_p, min_p) in [
        (0, 1.0, 0.0),
        (40, 0.95, 0.0),
        (0, 0.95, 0.0),
        (0, 1.0, 0.05),
    ] {
        let params = SampleParams {
            top_k,
            top_p,
            min_p,
            temperature: 0.7,
            seed: 3,
            ..SampleParams::greedy()
        };
        for position in 0..3 {
            let expected = naive::sample(&logits, &params, &[], 0, position, None);
            let drawn = token(draw(&logits, &params, position));
            assert!(
                Some(drawn) == expected.token || expected.margin < 1e-8,
                "{params:?}"
            );
        }
    }
}
