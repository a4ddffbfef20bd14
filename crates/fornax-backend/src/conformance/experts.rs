//! Checks of mixture-of-experts routing and of the experts.

use fornax_gguf::DType;

use super::dense::{CROWD, UNLIKE, behind};
use super::oracle;
use super::random::Random;
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{Activation, Backend, ExpertBiases, ExpertGroups, ExpertsSpec, RouteSpec, Scoring};

/// Experts and how many of them are used.
const CHOICES: [(usize, usize); 7] = [(1, 1), (4, 1), (5, 2), (8, 8), (32, 4), (60, 6), (128, 8)];

/// Numbers of rows that meet experts.
const ROWS: [usize; 3] = [1, 5, 17];

/// Choices with many ties, both scorings, with and without selection bias and normalisation, and
/// with groups where there are enough experts.
pub fn route<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("route", backend, tolerance);
    for (experts, used) in CHOICES {
        for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
            for (biased, normalise) in [(false, true), (true, true), (false, false)] {
                for groups in groupings(experts) {
                    let scale = trial.random.pick(&[1.0, 2.5]);
                    let spec = RouteSpec {
                        experts,
                        used,
                        scoring,
                        selection_bias: None,
                        normalise,
                        scale,
                        groups,
                    };
                    check_route(&mut trial, spec, biased);
                }
            }
        }
    }
    trial.report()
}

/// Without groups, and with what groups these experts can have.
fn groupings(experts: usize) -> Vec<Option<ExpertGroups>> {
    let groups = |count, open, summed| {
        Some(ExpertGroups {
            count,
            open,
            summed,
        })
    };
    match experts {
        32 | 60 => vec![None, groups(4, 2, 1), groups(4, 1, 2)],
        128 => vec![None, groups(8, 4, 2), groups(8, 3, 1)],
        _ => vec![None],
    }
}

fn check_route<B: Backend>(trial: &mut Trial<'_, B>, spec: RouteSpec<'_, B::Weight>, biased: bool) {
    let RouteSpec {
        experts,
        used,
        scoring,
        normalise,
        scale,
        groups,
        ..
    } = spec;
    let n = 1 + trial.random.below(20);
    trial.case(format!(
        "{used} of {experts} by {scoring:?}, {n} rows, bias {biased}, normalise {normalise}, \
         times {scale}, {groups:?}"
    ));
    let logits: Vec<f32> = (0..n * experts)
        .map(|_| trial.random.below(33) as f32 / 8.0 - 2.0)
        .collect();
    let bias: Vec<f32> = (0..experts)
        .map(|_| trial.random.below(3) as f32 / 4.0)
        .collect();
    let bias = Tensor::of(DType::F32, &[experts], &bias);
    let uploaded = trial.backend.upload(&[bias.view()]);
    let uploaded = trial.must(uploaded);
    let x = trial.input_of(&logits, experts);
    let mut ids = trial.index_output(n, used);
    let mut weights = trial.output(n, used);
    let spec = RouteSpec {
        selection_bias: biased.then_some(&uploaded),
        ..spec
    };
    trial
        .backend
        .route(&mut ids, &mut weights, &x.buffer, spec, n);
    let router = oracle::Router {
        bias: if biased { &bias.values } else { &[] },
        used,
        scoring,
        normalise,
        scale: f64::from(scale),
        groups,
    };
    let rows = x.values.chunks(experts);
    let expected: Vec<(u32, f64)> = rows.flat_map(|row| router.route(row)).collect();
    let (expected_ids, expected): (Vec<u32>, Vec<f64>) = expected.into_iter().unzip();
    let ids = trial.read_indices(&ids, n, used);
    if ids != expected_ids {
        trial.fail(&format!("experts {ids:?}, expected {expected_ids:?}"));
    }
    trial.expect(&weights, &expected, used, trial.tolerance.route);
}

/// Weighted sums over experts in every block format, gate and up joined or apart, with and
/// without biases.
pub fn experts<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("experts", backend, tolerance);
    let activations = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::ClampedSwiglu {
            alpha: 1.702,
            limit: 7.0,
        },
    ];
    for &dtype in DType::all() {
        for (index, activation) in activations.into_iter().enumerate() {
            // Large blocks make large experts: few, and each activation with one number of rows.
            let large = dtype.block_len() == 256;
            let rows = if large { &ROWS[index..=index] } else { &ROWS };
            for &n in rows {
                // So many that experts have more tokens than kernels take at once. Few experts, for what
                // multiplies every choice by itself takes long on a device that is emulated.
                let many = n == 17 && index == 2;
                let n = if many { 70 } else { n };
                let block = dtype.block_len().max(20);
                let (width, hidden) = match large {
                    true => (block, block),
                    false => ((1 + index) * block, (3 - index) * block),
                };
                let (experts, used) = match (large, many) {
                    (true, false) => (4, 2),
                    (true, true) => (1, 1),
                    (false, false) => CHOICES[1 + index],
                    (false, true) => (2, 2),
                };
                let spec = ExpertsSpec {
                    experts,
                    used,
                    width,
                    hidden,
                    activation,
                    biases: None,
                };
                check_experts(&mut trial, [dtype; 2], spec, n);
            }
        }
    }
    for gate in UNLIKE {
        for up in UNLIKE.into_iter().filter(|up| *up != gate) {
            let spec = ExpertsSpec {
                experts: 2,
                used: 1,
                width: 256,
                hidden: 32,
                activation: Activation::Silu,
                biases: None,
            };
            check_experts(&mut trial, [gate, up], spec, 2 * CROWD);
            check_experts(&mut trial, [gate, up], spec, 1);
        }
    }
    // More rows than a single token's kernels begin with, of either product.
    for (dtype, width, hidden) in [
        (DType::Q8_0, 4320, 32),
        (DType::F16, 4321, 20),
        (DType::Q8_0, 32, 4352),
    ] {
        let spec = ExpertsSpec {
            experts: 3,
            used: 2,
            width,
            hidden,
            activation: Activation::Silu,
            biases: None,
        };
        check_experts(&mut trial, [dtype; 2], spec, 1);
    }
    trial.report()
}

fn check_experts<B: Backend>(
    trial: &mut Trial<'_, B>,
    [dtype, up_dtype]: [DType; 2],
    spec: ExpertsSpec<'_, B::Weight>,
    n: usize,
) {
    let ExpertsSpec {
        experts,
        used,
        width,
        hidden,
        activation,
        ..
    } = spec;
    let is_clamped = matches!(activation, Activation::ClampedSwiglu { .. });
    let biased = if n == 1 { is_clamped } else { n % 3 == 2 };
    let apart = n % 2 == 1 || dtype != up_dtype;
    trial.case(format!(
        "{dtype} and {up_dtype}, {used} of {experts}, {width} to {hidden}, {activation:?}, {n} rows, \
         parts {apart}, biases {biased}"
    ));
    let random = &mut trial.random;
    let shapes = [
        [experts, hidden, width],
        [experts, hidden, width],
        [experts, width, hidden],
    ];
    let mut tensor = |dtype, shape: &[usize]| Tensor::random(random, dtype, shape);
    let gate = tensor(dtype, &shapes[0]);
    let up = tensor(up_dtype, &shapes[1]);
    let down = tensor(behind([dtype, up_dtype]), &shapes[2]);
    let joined = join(&gate, &up, experts);
    let uploaded = match apart {
        true => trial.backend.upload(&[gate.view(), up.view()]),
        false => {
            let values: Vec<f32> = joined.iter().map(|x| *x as f32).collect();
            let both = Tensor::of(DType::F32, &[experts, 2 * hidden, width], &values);
            trial.backend.upload(&[both.view()])
        }
    };
    let gate_up = trial.must(uploaded);
    let uploaded = trial.backend.upload(&[down.view()]);
    let uploaded = trial.must(uploaded);
    let biases = [experts * 2 * hidden, experts * width];
    let biases = biases.map(|len| Tensor::random(&mut trial.random, DType::F32, &[len]));
    let [first_bias, second_bias] = biases.each_ref().map(|bias| {
        let uploaded = trial.backend.upload(&[bias.view()]);
        trial.must(uploaded)
    });
    let spec = ExpertsSpec {
        biases: biased.then_some(ExpertBiases {
            gate_up: &first_bias,
            down: &second_bias,
        }),
        ..spec
    };

    let values = trial.random.normals(n * width);
    let factor = 1.0 / (width as f32).sqrt();
    let values: Vec<f32> = values.iter().map(|x| x * factor).collect();
    let x = trial.input_of(&values, width);
    let (ids, weights) = choices(&mut trial.random, (experts, used), n);
    let id_buffer = trial.indices(&ids, ids.len());
    let weights = trial.input_of(&weights, used);
    let mut out = trial.output(n, width);
    trial.backend.experts(
        &mut out,
        &x.buffer,
        &id_buffer,
        &weights.buffer,
        &gate_up,
        &uploaded,
        spec,
        n,
    );
    let mut expected = vec![0.0; n * width];
    for (choice, (&expert, weight)) in ids.iter().zip(&weights.values).enumerate() {
        let (token, expert) = (choice / used, expert as usize);
        let first = &joined[expert * 2 * hidden * width..][..2 * hidden * width];
        let second = &down.values[expert * width * hidden..][..width * hidden];
        let bias =
            |which: usize, len: usize| biased.then(|| &biases[which].values[expert * len..][..len]);
        let row = &x.values[token * width..][..width];
        let row = oracle::linear(row, first, bias(0, 2 * hidden), width);
        let row = oracle::linear(
            &oracle::glu(&row, activation),
            second,
            bias(1, width),
            hidden,
        );
        for column in 0..width {
            expected[token * width + column] += weight * row[column];
        }
    }
    trial.expect(&out, &expected, width, trial.tolerance.mlp);
}

/// Gate and up of each expert by turns.
fn join(gate: &Tensor, up: &Tensor, experts: usize) -> Vec<f64> {
    let size = gate.values.len() / experts;
    let both = gate.values.chunks(size).zip(up.values.chunks(size));
    both.flat_map(|(gate, up)| [gate, up].concat()).collect()
}

/// Different experts for each token, and their weights.
fn choices(random: &mut Random, (experts, used): (usize, usize), n: usize) -> (Vec<u32>, Vec<f32>) {
    let mut ids = Vec::new();
    for _ in 0..n {
        let mut all: Vec<u32> = (0..experts as u32).collect();
        random.shuffle(&mut all);
        ids.extend_from_slice(&all[..used]);
    }
    let weights = ids.iter().map(|_| random.uniform() as f32).collect();
    (ids, weights)
}
