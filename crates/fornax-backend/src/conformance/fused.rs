//! The check of what backends may compute together: a feed-forward from norm to residual, and products
//! with a norm between each two, recorded as one step.

use fornax_gguf::DType;

use super::dense::{norm_rows, product_tolerance};
use super::oracle;
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{Activation, Backend, StepShape};

/// Numbers of rows: one, few, and every sort of some dozens.
const ROWS: [usize; 8] = [1, 3, 9, 16, 27, 33, 50, 64];

/// Numbers of rows, and widths of matrices of whole tiles: columns for one block of a device and for several.
const CROWDS: [(usize, (usize, usize)); 7] = [
    (3, (1024, 64)),
    (8, (192, 576)),
    (20, (1024, 64)),
    (70, (64, 1024)),
    (140, (192, 576)),
    (210, (128, 192)),
    (256, (64, 128)),
];

/// Widths for few rows: as many columns as one block has and as several share, and more than a block has room for.
const FEW: [(usize, usize); 5] = [(1024, 64), (64, 1024), (192, 576), (64, 768), (64, 6400)];

/// The same for sums whose norm the next product reads: one tile of rows and many, few tokens and all that
/// a block may have.
const CHAINS: [(usize, (usize, usize)); 8] = [
    (9, (2112, 64)),
    (16, (256, 512)),
    (33, (256, 512)),
    (50, (1024, 64)),
    (70, (576, 192)),
    (130, (512, 64)),
    (130, (256, 512)),
    (192, (64, 256)),
];

/// The same of few rows.
const CHAINS_OF_FEW: [(usize, usize); 4] = [(256, 512), (1024, 64), (576, 192), (2112, 64)];

/// Rows so long that a kernel may have fewer of them at once, or each in pieces: by widths, and of each sort of format.
const LONG: [(DType, (usize, usize)); 12] = [
    (DType::Q8_0, (4352, 64)),
    (DType::Q8_0, (64, 9216)),
    (DType::Q4_0, (64, 17408)),
    (DType::BF16, (2112, 40)),
    (DType::BF16, (40, 8192)),
    (DType::F16, (8192, 24)),
    (DType::Q4_K, (256, 16640)),
    (DType::Q5_K, (256, 13568)),
    (DType::Q6_K, (3072, 256)),
    (DType::Q6_K, (256, 11520)),
    (DType::IQ4_NL, (4352, 64)),
    (DType::MXFP4, (64, 17408)),
];

/// Every kind, by turns.
const ACTIVATIONS: [Activation; 3] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 7.0,
    },
];

const EPS: f32 = 1e-6;

/// Norm, gate and up, activation, down, the sum and its norm, in every block format and by turns for
/// all numbers of rows; with and without somebody else who reads the first norm; and two of different
/// formats one behind the other.
pub fn fused<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("fused", backend, tolerance);
    for (index, &dtype) in DType::all().iter().enumerate() {
        for turn in 0..4 {
            let n = ROWS[(index + 2 * turn + turn / 2) % ROWS.len()];
            let (width, hidden) = match dtype.block_len() {
                256 => (256, 256),
                32 => ([96, 64, 1056, 160][turn], [160, 96, 32, 64][turn]),
                _ => ([100, 72, 33, 1028][turn], [40, 130, 68, 24][turn]),
            };
            let shape = own_shape(n, 4 * index + turn);
            check(
                &mut trial,
                &[[dtype; 2]],
                (width, hidden),
                Activation::Silu,
                &shape,
                turn == 1,
            );
        }
    }
    for (index, dtype) in [DType::BF16, DType::Q8_0].into_iter().enumerate() {
        for (turn, (n, widths)) in CROWDS.into_iter().enumerate() {
            let shape = own_shape(n, 1000 + 8 * index + turn);
            let activation = ACTIVATIONS[(index + turn) % ACTIVATIONS.len()];
            let formats = [[dtype; 2]];
            check(&mut trial, &formats, widths, activation, &shape, turn == 1);
        }
    }
    // What one layer rounded or split on its way must not be taken for what the next one gives.
    let (brain, block) = (DType::BF16, DType::Q8_0);
    for (index, n) in [1, 5, 8, 12, 40].into_iter().enumerate() {
        for (turn, formats) in [
            [[brain, brain], [block, brain]],
            [[brain, block], [block, brain]],
            [[block, brain], [brain, block]],
        ]
        .iter()
        .enumerate()
        {
            let shape = own_shape(n, 2000 + 4 * index + turn);
            let widths = (192, 128);
            check(
                &mut trial,
                formats,
                widths,
                Activation::Silu,
                &shape,
                turn == 1,
            );
        }
    }
    for (turn, (n, widths)) in CHAINS.into_iter().enumerate() {
        let dtype = if turn % 3 == 1 { block } else { brain };
        check_chain(&mut trial, dtype, widths, &own_shape(n, 3000 + turn));
    }
    trial.report()
}

/// The same of long rows of matrices, for a single token and for a few. Not one of the suite: other backends have no
/// room that a row would fill.
pub fn long_rows<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("long_rows", backend, tolerance);
    for (index, (dtype, widths)) in LONG.into_iter().enumerate() {
        for (turn, n) in [1, 3].into_iter().enumerate() {
            let shape = own_shape(n, 2 * index + turn);
            let formats = [[dtype; 2]];
            check(
                &mut trial,
                &formats,
                widths,
                Activation::Silu,
                &shape,
                index % 4 == 1,
            );
        }
    }
    trial.report()
}

/// The same for few rows in BF16, Q8_0 and Q4_0, by a tolerance of its own: backends may multiply these more
/// exactly than many.
pub fn fused_of_few<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("fused_of_few", backend, tolerance);
    for (index, n) in [2, 3, 5, 8].into_iter().enumerate() {
        for (turn, widths) in FEW.into_iter().enumerate() {
            let activation = ACTIVATIONS[(index + turn) % ACTIVATIONS.len()];
            for (place, dtype) in (0..).zip([DType::BF16, DType::Q8_0, DType::Q4_0]) {
                let shape = own_shape(n, 32 * index + 4 * turn + place);
                let formats = [[dtype; 2]];
                check(&mut trial, &formats, widths, activation, &shape, turn == 1);
            }
        }
        for (place, dtype) in (0..).zip([DType::BF16, DType::Q8_0, DType::Q4_0]) {
            let shape = own_shape(n, 1000 + 4 * index + place);
            check_chain(&mut trial, dtype, CHAINS_OF_FEW[index], &shape);
        }
    }
    trial.report()
}

/// A step of a shape is one that was recorded: so each case has a shape of its own.
fn own_shape(n: usize, number: usize) -> StepShape {
    StepShape {
        rows: n,
        tokens: n,
        pooled: number,
        ..StepShape::default()
    }
}

/// Feed-forwards one behind the other, each of gates and ups in one format and of its way down in another.
fn check<B: Backend>(
    trial: &mut Trial<'_, B>,
    formats: &[[DType; 2]],
    (width, hidden): (usize, usize),
    activation: Activation,
    shape: &StepShape,
    kept: bool,
) {
    let n = shape.tokens;
    trial.case(format!(
        "{formats:?} {width} to {hidden}, {activation:?}, {n} rows, norm kept {kept}"
    ));
    let layers: Vec<Layer<B>> = formats
        .iter()
        .map(|formats| Layer::new(trial, *formats, width, hidden))
        .collect();
    let mut residual = trial.in_place(n, width);
    let [mut normed, mut branch, mut last] = [0; 3].map(|_| trial.output(n, width));
    let [mut projected, mut again] = [0; 2].map(|_| trial.output(n, 2 * hidden));
    let mut activated = trial.output(n, hidden);
    let done = trial.backend.record(shape, |backend| {
        for layer in &layers {
            let (gate_up, second, weight) = (&layer.gate_up.0, &layer.down.0, &layer.norm.0);
            backend.rms_norm(&mut normed, &residual.buffer, weight, EPS, n);
            backend.linear(&mut projected, gate_up, None, &normed, n);
            backend.glu(&mut activated, &projected, activation, hidden, n);
            backend.linear(&mut branch, second, None, &activated, n);
            if kept {
                backend.linear(&mut again, gate_up, None, &normed, n);
            }
            let sum = &mut residual.buffer;
            backend.add_rms_norm(&mut last, sum, &branch, weight, EPS, width, n);
        }
    });
    trial.must(done);

    let mut sum = residual.values;
    let mut projected = Vec::new();
    for layer in &layers {
        let first = norm_rows(&sum, &layer.norm.1);
        projected = oracle::linear(&first, &layer.gate_up.1, None, width);
        let rows = projected.chunks(2 * hidden);
        let activated: Vec<f64> = rows.flat_map(|row| oracle::glu(row, activation)).collect();
        let branch = oracle::linear(&activated, &layer.down.1, None, hidden);
        sum = sum.iter().zip(&branch).map(|(x, y)| x + y).collect();
    }
    let (Some(layer), Some([dtype, _])) = (layers.last(), formats.last()) else {
        return;
    };
    let allowed = trial.tolerance.mlp * layers.len() as f64;
    trial.expect(&residual.buffer, &sum, width, allowed);
    let normed = norm_rows(&sum, &layer.norm.1);
    trial.expect(&last, &normed, width, 2.0 * allowed);
    if kept {
        let before = (layers.len() - 1) as f64 * 2.0 * trial.tolerance.mlp;
        let allowed = before + product_tolerance(trial.tolerance, *dtype);
        trial.expect(&again, &projected, 2 * hidden, allowed);
    }
}

/// Products by turns with the norm of a sum and added to that sum: from attention to a feed-forward, from
/// there to a product that adds to the sum as well, from there to one that does not, and back. Tokens are
/// of different sizes; the first one is zero.
fn check_chain<B: Backend>(
    trial: &mut Trial<'_, B>,
    dtype: DType,
    (width, hidden): (usize, usize),
    shape: &StepShape,
) {
    let n = shape.tokens;
    trial.case(format!("{dtype} {width} by {hidden} in turns, {n} rows"));
    let layer = Layer::new(trial, [dtype; 2], width, hidden);
    let mut matrix = |rows: usize, cols: usize| {
        let tensor = Tensor::random(&mut trial.random, dtype, &[rows, cols]);
        let weight = trial.backend.upload(&[tensor.view()]);
        (trial.must(weight), tensor.values)
    };
    let (mix, square, back) = (
        matrix(width, hidden),
        matrix(width, width),
        matrix(hidden, width),
    );
    let mut tokens = |width: usize| {
        let mut values = trial.random.normals(n * width);
        for (row, values) in values.chunks_mut(width).enumerate() {
            let size = if row == 0 {
                0.0
            } else {
                f32::powi(2.0, row as i32 % 7 - 3)
            };
            values.iter_mut().for_each(|value| *value *= size);
        }
        trial.in_place_of(&values, width)
    };
    let (mut residual, attended) = (tokens(width), tokens(hidden));
    let [mut normed, mut branch] = [0; 2].map(|_| trial.output(n, width));
    let mut projected = trial.output(n, 2 * hidden);
    // A step may leave anything where it has written, before it begins anew: not where it reads from.
    let [mut activated, mut after] = [0; 2].map(|_| trial.output(n, hidden));
    let done = trial.backend.record(shape, |backend| {
        let (sum, attended, weight) = (&mut residual.buffer, &attended.buffer, &layer.norm.0);
        let mut add = |backend: &mut B, normed: &mut B::Buffer, branch: &B::Buffer| {
            backend.add_rms_norm(normed, sum, branch, weight, EPS, width, n);
        };
        backend.linear(&mut branch, &mix.0, None, attended, n);
        add(backend, &mut normed, &branch);
        backend.linear(&mut projected, &layer.gate_up.0, None, &normed, n);
        backend.glu(&mut activated, &projected, Activation::Silu, hidden, n);
        backend.linear(&mut branch, &layer.down.0, None, &activated, n);
        add(backend, &mut normed, &branch);
        backend.linear(&mut branch, &square.0, None, &normed, n);
        add(backend, &mut normed, &branch);
        backend.linear(&mut after, &back.0, None, &normed, n);
        backend.linear(&mut branch, &mix.0, None, &after, n);
        add(backend, &mut normed, &branch);
    });
    trial.must(done);

    let mut sum = residual.values;
    let mut add = |branch: &[f64]| {
        sum.iter_mut().zip(branch).for_each(|(x, y)| *x += y);
        norm_rows(&sum, &layer.norm.1)
    };
    let normed_first = add(&oracle::linear(&attended.values, &mix.1, None, hidden));
    let rows = oracle::linear(&normed_first, &layer.gate_up.1, None, width);
    let rows = rows.chunks(2 * hidden);
    let activated: Vec<f64> = rows
        .flat_map(|row| oracle::glu(row, Activation::Silu))
        .collect();
    let normed_second = add(&oracle::linear(&activated, &layer.down.1, None, hidden));
    let normed_third = add(&oracle::linear(&normed_second, &square.1, None, width));
    let expected = oracle::linear(&normed_third, &back.1, None, width);
    let last = add(&oracle::linear(&expected, &mix.1, None, hidden));
    let allowed = trial.tolerance.mlp;
    trial.expect(&after, &expected, hidden, 2.0 * allowed);
    trial.expect(&residual.buffer, &sum, width, 2.0 * allowed);
    trial.expect(&normed, &last, width, 4.0 * allowed);
}

/// Weights on the device, and the values that they stand for.
struct Layer<B: Backend> {
    gate_up: (B::Weight, Vec<f64>),
    down: (B::Weight, Vec<f64>),
    norm: (B::Weight, Vec<f64>),
}

impl<B: Backend> Layer<B> {
    fn new(
        trial: &mut Trial<'_, B>,
        [first, second]: [DType; 2],
        width: usize,
        hidden: usize,
    ) -> Self {
        let random = &mut trial.random;
        let shapes = [
            (first, [hidden, width]),
            (first, [hidden, width]),
            (second, [width, hidden]),
        ];
        let [gate, up, down] = shapes.map(|(dtype, shape)| Tensor::random(random, dtype, &shape));
        let norm = Tensor::norm(random, width);
        let mut upload = |parts: &[&Tensor]| {
            let views: Vec<_> = parts.iter().map(|part| part.view()).collect();
            let weight = trial.backend.upload(&views);
            trial.must(weight)
        };
        Self {
            gate_up: (
                upload(&[&gate, &up]),
                [&gate.values[..], &up.values].concat(),
            ),
            down: (upload(&[&down]), down.values),
            norm: (upload(&[&norm]), norm.values),
        }
    }
}
