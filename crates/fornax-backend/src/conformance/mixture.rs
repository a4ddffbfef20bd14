//! The check of what backends may compute together of a mixture of experts: from the norm before its router to the sum
//! behind its experts, recorded as one step.

use fornax_gguf::DType;

use super::dense::norm_rows;
use super::random::Random;
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance, oracle};
use crate::{
    Activation, Backend, ExpertBiases, ExpertGroups, ExpertsSpec, RouteSpec, Scoring, StepShape,
};

const EPS: f32 = 1e-6;
/// Of the weights of experts.
const SCALE: f32 = 1.5;
/// One behind the other, for what one leaves is what the next one begins with.
const LAYERS: usize = 2;

/// How experts are chosen and what they are.
#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    experts: usize,
    used: usize,
    width: usize,
    hidden: usize,
    /// Rows.
    n: usize,
    scoring: Scoring,
    groups: Option<ExpertGroups>,
    normalise: bool,
    /// Whether the router, its choice and the experts have biases.
    biased: bool,
    /// Whether somebody else reads the norm as well.
    shared: bool,
}

/// Experts of every format for one row; many of them, few, in groups, and rows that are longer than a kernel takes at
/// once; and some rows together.
pub fn mixture<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("mixture", backend, tolerance);
    let plain = Case {
        dtype: DType::Q8_0,
        experts: 5,
        used: 2,
        width: 64,
        hidden: 32,
        n: 1,
        scoring: Scoring::Softmax,
        groups: None,
        normalise: true,
        biased: false,
        shared: false,
    };
    let mut cases = Vec::new();
    for (index, &dtype) in DType::all().iter().enumerate() {
        let (width, hidden) = match dtype.block_len() {
            256 => (256, 256),
            32 => ([96, 64, 160][index % 3], [32, 160, 96][index % 3]),
            _ => ([100, 36, 72][index % 3], [40, 20, 68][index % 3]),
        };
        cases.push(Case {
            dtype,
            width,
            hidden,
            biased: index % 3 == 1,
            shared: index % 4 == 2,
            ..plain
        });
    }
    let groups = Some(ExpertGroups {
        count: 4,
        open: 2,
        summed: 2,
    });
    let by_sigmoid = Case {
        scoring: Scoring::Sigmoid,
        ..plain
    };
    let of = |experts, used, case: Case| Case {
        experts,
        used,
        ..case
    };
    cases.extend([
        of(1, 1, plain),
        of(8, 8, by_sigmoid),
        of(32, 4, by_sigmoid),
        Case {
            normalise: false,
            ..of(32, 4, plain)
        },
        of(32, 4, Case { groups, ..plain }),
        Case {
            shared: true,
            biased: true,
            ..of(60, 6, by_sigmoid)
        },
        of(128, 8, plain),
        Case {
            biased: true,
            groups,
            ..of(260, 3, by_sigmoid)
        },
        Case {
            width: 4352,
            shared: true,
            ..plain
        },
        // No whole number of fours.
        Case {
            dtype: DType::F16,
            width: 33,
            shared: true,
            ..plain
        },
        Case { n: 3, ..plain },
        Case {
            n: 12,
            biased: true,
            shared: true,
            ..plain
        },
    ]);
    for (number, case) in cases.into_iter().enumerate() {
        check(&mut trial, number, case);
    }
    trial.report()
}

fn check<B: Backend>(trial: &mut Trial<'_, B>, number: usize, case: Case) {
    let Case {
        dtype,
        experts,
        used,
        width,
        hidden,
        n,
        biased,
        ..
    } = case;
    trial.case(format!("{case:?}"));
    let random = &mut trial.random;
    let shapes = [
        [experts, hidden, width],
        [experts, hidden, width],
        [experts, width, hidden],
    ];
    let [gate, up, down] = shapes.map(|shape| Tensor::random(random, dtype, &shape));
    let biases = [experts, experts * 2 * hidden, experts * width];
    let [router_bias, first, second] = biases.map(|len| Tensor::random(random, DType::F32, &[len]));
    let weights = Weights {
        gate,
        up,
        down,
        biases: [first, second],
    };
    // What experts give is about as large as what it is added to, and what a router gives some units.
    let norm = scaled(random, width, 2.0 / (width as f32).sqrt());
    let selection = scaled(random, experts, 0.2);
    let values = trial.random.normals(n * width);
    let values: Vec<f32> = values.iter().map(|value| 20.0 * value).collect();
    let mut residual = trial.in_place_of(&values, width);

    let mut sum = residual.values.clone();
    let mut routers = Vec::new();
    for _ in 0..LAYERS {
        let rows = norm_rows(&sum, &norm.values);
        let (router, chosen) = clear_choice(trial, &case, [&router_bias, &selection], &rows);
        for (index, (expert, share)) in chosen.into_iter().enumerate() {
            let (row, expert) = (index / used, expert as usize);
            let answer = weights.answer(&rows[row * width..][..width], expert, &case);
            let to = sum[row * width..].iter_mut();
            to.zip(answer)
                .for_each(|(to, answer)| *to += share * answer);
        }
        routers.push((router, rows));
    }

    let mut upload = |parts: &[&Tensor]| {
        let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
        let weight = trial.backend.upload(&views);
        trial.must(weight)
    };
    let [first_bias, second_bias] = weights.biases.each_ref().map(|bias| upload(&[bias]));
    let gate_up = upload(&[&weights.gate, &weights.up]);
    let (second, router_bias) = (upload(&[&weights.down]), upload(&[&router_bias]));
    let (weight, selection) = (upload(&[&norm]), upload(&[&selection]));
    let matrices: Vec<_> = routers
        .iter()
        .map(|(router, _)| upload(&[router]))
        .collect();
    let route = RouteSpec {
        experts,
        used,
        scoring: case.scoring,
        selection_bias: biased.then_some(&selection),
        normalise: case.normalise,
        scale: SCALE,
        groups: case.groups,
    };
    let spec = ExpertsSpec {
        experts,
        used,
        width,
        hidden,
        activation: Activation::Silu,
        biases: biased.then_some(ExpertBiases {
            gate_up: &first_bias,
            down: &second_bias,
        }),
    };
    let [mut normed, mut delta, mut last] = [0; 3].map(|_| trial.output(n, width));
    let [mut logits, mut again] = [0; 2].map(|_| trial.output(n, experts));
    let (mut ids, mut shares) = (trial.index_output(n, used), trial.output(n, used));
    // What was recorded for a shape is what any equal one does: each case has a shape of its own.
    let shape = StepShape {
        rows: n,
        tokens: n,
        pooled: number,
        ..StepShape::default()
    };
    let done = trial.backend.record(&shape, |backend| {
        let bias = biased.then_some(&router_bias);
        for matrix in &matrices {
            backend.rms_norm(&mut normed, &residual.buffer, &weight, EPS, n);
            backend.linear(&mut logits, matrix, bias, &normed, n);
            backend.route(&mut ids, &mut shares, &logits, route, n);
            backend.experts(
                &mut delta, &normed, &ids, &shares, &gate_up, &second, spec, n,
            );
            if case.shared {
                backend.linear(&mut again, matrix, None, &normed, n);
            }
            let sum = &mut residual.buffer;
            backend.add_rms_norm(&mut last, sum, &delta, &weight, EPS, width, n);
        }
    });
    trial.must(done);

    let allowed = 2.0 * LAYERS as f64 * trial.tolerance.mlp;
    trial.expect(&residual.buffer, &sum, width, allowed);
    trial.expect(&last, &norm_rows(&sum, &norm.values), width, 2.0 * allowed);
    if let (true, Some((router, rows))) = (case.shared, routers.last()) {
        let logits = oracle::linear(rows, &router.values, None, width);
        trial.expect(&again, &logits, experts, 2.0 * allowed);
    }
}

/// The experts' weights.
struct Weights {
    /// `[experts, hidden, width]`
    gate: Tensor,
    up: Tensor,
    /// `[experts, width, hidden]`
    down: Tensor,
    /// Behind gate and up `[experts, 2 * hidden]`, and behind down `[experts, width]`
    biases: [Tensor; 2],
}

impl Weights {
    /// What an expert makes of a token.
    fn answer(&self, x: &[f64], expert: usize, case: &Case) -> Vec<f64> {
        let &Case { width, hidden, .. } = case;
        let of = |tensor: &Tensor, len: usize| tensor.values[expert * len..][..len].to_vec();
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|t| of(t, hidden * width));
        let [first, second] = &self.biases;
        let first = case.biased.then(|| of(first, 2 * hidden));
        let second = case.biased.then(|| of(second, width));
        let x = oracle::linear(x, &[gate, up].concat(), first.as_deref(), width);
        let x = oracle::glu(&x, Activation::Silu);
        oracle::linear(&x, &down, second.as_deref(), hidden)
    }
}

/// Numbers of this size.
fn scaled(random: &mut Random, len: usize, size: f32) -> Tensor {
    let values: Vec<f32> = random.normals(len).iter().map(|x| size * x).collect();
    Tensor::of(DType::F32, &[len], &values)
}

/// A router whose choice for each of these rows would be the same if what it gives were a little else, and that choice.
fn clear_choice<B: Backend>(
    trial: &mut Trial<'_, B>,
    case: &Case,
    [bias, selection]: [&Tensor; 2],
    rows: &[f64],
) -> (Tensor, Vec<(u32, f64)>) {
    let off = (16.0 * trial.tolerance.linear_float).max(1e-4);
    let router = oracle::Router {
        bias: if case.biased { &selection.values } else { &[] },
        used: case.used,
        scoring: case.scoring,
        normalise: case.normalise,
        scale: f64::from(SCALE),
        groups: case.groups,
    };
    let bias = case.biased.then_some(&bias.values[..]);
    let choose = |logits: &[f64]| -> Vec<(u32, f64)> {
        let rows = logits.chunks(case.experts);
        rows.flat_map(|row| router.route(row)).collect()
    };
    let set = |chosen: &[(u32, f64)]| {
        let mut rows: Vec<Vec<u32>> = chosen
            .chunks(case.used)
            .map(|row| row.iter().map(|choice| choice.0).collect())
            .collect();
        rows.iter_mut().for_each(|row| row.sort_unstable());
        rows
    };
    for _ in 0..1000 {
        let shape = [case.experts, case.width];
        let matrix = Tensor::random(&mut trial.random, DType::F32, &shape);
        let logits = oracle::linear(rows, &matrix.values, bias, case.width);
        let chosen = choose(&logits);
        let moved = |random: &mut Random| {
            let move_one = |logit: &f64| logit + off * f64::from(random.normal());
            choose(&logits.iter().map(move_one).collect::<Vec<_>>())
        };
        if (0..16).all(|_| set(&moved(&mut trial.random)) == set(&chosen)) {
            return (matrix, chosen);
        }
    }
    trial.fail("no router chooses clearly")
}
