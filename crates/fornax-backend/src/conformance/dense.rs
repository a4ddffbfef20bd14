//! Checks of operations that treat every token alike: embedding, norms, products, activations.

use fornax_gguf::DType;

use super::oracle;
use super::steps::{capacity, mixed_spans, ragged};
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{Activation, Backend, Heads};

/// Numbers of rows: one, few, and around the tiles that kernels use.
const ROWS: [usize; 9] = [1, 2, 3, 5, 8, 9, 16, 17, 33];
/// What stands in the last one's place by turns: dozens of rows.
const DOZENS: [usize; 3] = [33, 50, 64];
/// Numbers of rows, and sizes of matrices of whole tiles: columns for one block of a device and for several.
const CROWDS: [(usize, [usize; 2]); 13] = [
    (2, [128, 1024]),
    (5, [192, 576]),
    (8, [64, 1536]),
    (12, [64, 64]),
    (40, [192, 576]),
    (100, [128, 1024]),
    (150, [64, 1536]),
    (90, [64, 128]),
    (120, [64, 128]),
    (170, [64, 64]),
    (200, [64, 128]),
    (222, [128, 64]),
    (256, [64, 192]),
];
/// Widths of rows of single numbers.
const WIDTHS: [usize; 7] = [1, 3, 40, 64, 100, 257, 1024];
/// Every activation.
const ACTIVATIONS: [Activation; 4] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 0.5,
    },
    Activation::ClampedSwiglu {
        alpha: 1.0,
        limit: 7.0,
    },
];

/// Rows of tables in every block format, the first and the last among them.
pub fn embed<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("embed", backend, tolerance);
    for &dtype in DType::all() {
        for (blocks, vocabulary, rows) in [(1, 1, 1), (3, 7, 4), (5, 100, 9)] {
            let width = blocks * dtype.block_len();
            trial.case(format!("{dtype} [{vocabulary}, {width}], {rows} rows"));
            let table = Tensor::random(&mut trial.random, dtype, &[vocabulary, width]);
            let weight = trial.backend.upload(&[table.view()]);
            let weight = trial.must(weight);
            let spans = mixed_spans(&mut trial.random, rows, 6);
            let mut rows = ragged(&mut trial.random, &spans, vocabulary);
            rows.tokens[0] = vocabulary as u32 - 1;
            let n = rows.tokens.len();
            let mut step = trial.step(&capacity(n, rows.rows.len(), 100));
            trial.backend.prepare(&mut step, &rows);
            let mut out = trial.output(n, width);
            let scale = trial.random.pick(&[1.0, 22.5]);
            trial.backend.embed(&mut out, &weight, scale, &step, n);
            let row = |token: &u32| &table.values[*token as usize * width..][..width];
            let expected = rows.tokens.iter().flat_map(row);
            let expected: Vec<f64> = expected.map(|x| x * f64::from(scale)).collect();
            trial.expect(&out, &expected, width, tolerance.buffer);
        }
    }
    trial.report()
}

/// One weight as the embedding and as the head.
pub fn tied_embedding<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("tied_embedding", backend, tolerance);
    for &dtype in DType::all() {
        let (width, vocabulary, n) = (2 * dtype.block_len().max(20), 53, 3);
        trial.case(format!("{dtype} [{vocabulary}, {width}]"));
        let table = Tensor::random(&mut trial.random, dtype, &[vocabulary, width]);
        let weight = trial.backend.upload(&[table.view()]);
        let weight = trial.must(weight);
        let rows = ragged(&mut trial.random, &[(0, n)], vocabulary);
        let mut step = trial.step(&capacity(n, 1, n));
        trial.backend.prepare(&mut step, &rows);
        let mut hidden = trial.output(n, width);
        trial.backend.embed(&mut hidden, &weight, 1.0, &step, n);
        let row = |token: &u32| &table.values[*token as usize * width..][..width];
        let embedded: Vec<f64> = rows.tokens.iter().flat_map(row).copied().collect();
        trial.expect(&hidden, &embedded, width, tolerance.buffer);
        let mut logits = trial.output(n, vocabulary);
        trial.backend.linear(&mut logits, &weight, None, &hidden, n);
        let expected = oracle::linear(&embedded, &table.values, None, width);
        let allowed = product_tolerance(tolerance, dtype);
        trial.expect(&logits, &expected, vocabulary, allowed);
    }
    trial.report()
}

/// Norm of whole rows, with tiny, usual and large ones.
pub fn rms_norm<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("rms_norm", backend, tolerance);
    for width in WIDTHS {
        for n in ROWS {
            let magnitude = trial.random.pick(&[1e-4, 1.0, 1e3]);
            trial.case(format!("[{n}, {width}] of {magnitude}"));
            let weight = Tensor::norm(&mut trial.random, width);
            let uploaded = trial.backend.upload(&[weight.view()]);
            let uploaded = trial.must(uploaded);
            let values: Vec<f32> = trial.random.normals(n * width);
            let values: Vec<f32> = values.iter().map(|x| x * magnitude).collect();
            let x = trial.input_of(&values, width);
            let mut out = trial.output(n, width);
            trial
                .backend
                .rms_norm(&mut out, &x.buffer, &uploaded, 1e-6, n);
            let expected = norm_rows(&x.values, &weight.values);
            trial.expect(&out, &expected, width, tolerance.norm);
        }
    }
    trial.report()
}

/// Norm of each head, among columns that must stay.
pub fn head_norm<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("head_norm", backend, tolerance);
    for dim in [40, 64, 80, 96, 128, 256] {
        for (count, before, after, n) in [(1, 0, 0, 1), (3, 0, 2, 5), (2, 4, 1, 9)] {
            let heads = Heads {
                stride: (before + count + after) * dim,
                offset: before * dim,
                count,
                dim,
            };
            trial.case(format!("{heads:?}, {n} rows"));
            let weight = Tensor::norm(&mut trial.random, dim);
            let uploaded = trial.backend.upload(&[weight.view()]);
            let uploaded = trial.must(uploaded);
            let mut x = trial.in_place(n, heads.stride);
            trial
                .backend
                .head_norm(&mut x.buffer, heads, &uploaded, 1e-6, n);
            for row in x.values.chunks_mut(heads.stride) {
                for head in row[heads.offset..heads.offset + count * dim].chunks_mut(dim) {
                    head.copy_from_slice(&norm_rows(head, &weight.values));
                }
            }
            trial.expect(&x.buffer, &x.values, heads.stride, tolerance.norm);
        }
    }
    trial.report()
}

/// Products in every block format, of odd sizes, joined from parts of different formats, with and
/// without a bias.
pub fn linear<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("linear", backend, tolerance);
    for &dtype in DType::all() {
        let cols: &[usize] = match dtype.block_len() {
            1 => &[1, 3, 17, 40, 64, 100, 257, 512],
            32 => &[32, 64, 96, 160, 256, 544],
            block => &[1, 3].map(|blocks| blocks * block),
        };
        for (index, &cols) in cols.iter().enumerate() {
            for (outer, &n) in ROWS.iter().enumerate() {
                let n = if n == 33 { DOZENS[index % 3] } else { n };
                let out = [1, 2, 3, 7, 16, 17, 33, 64][(index + outer) % 8];
                let parts = match (index + outer) % 3 {
                    0 => vec![(dtype, out)],
                    1 => vec![(dtype, out), (dtype, 5)],
                    _ => vec![(dtype, 16), (mate(dtype, cols), out), (dtype, 3)],
                };
                check_linear(&mut trial, &parts, cols, n, outer % 2 == 1);
            }
        }
    }
    for dtype in [DType::BF16, DType::Q8_0] {
        for (n, [out, cols]) in CROWDS {
            check_linear(&mut trial, &[(dtype, out)], cols, n, dtype == DType::Q8_0);
        }
    }
    trial.report()
}

/// The largest outputs of matrices with a sketch, where the backend makes one: those of all outputs to the
/// last bit, at their places, and all others below.
pub fn largest<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    /// Rows of the matrix and how many are wanted.
    const WANTED: [(usize, usize); 6] =
        [(700, 1), (1203, 1), (1, 1), (610, 2), (900, 21), (530, 3)];
    let mut trial = Trial::new("largest", backend, tolerance);
    for (turn, &dtype) in DType::all().iter().enumerate() {
        let cols = 2 * dtype.block_len().max(64);
        for (index, &n) in [1, 1, 3, 8, 9, 20].iter().enumerate() {
            let (rows, largest) = WANTED[(turn + index) % WANTED.len()];
            trial.case(format!(
                "{dtype} [{rows}, {cols}], {n} rows, {largest} largest"
            ));
            let matrix = Tensor::random(&mut trial.random, dtype, &[rows, cols]);
            let weight = trial.backend.upload(&[matrix.view()]);
            let mut weight = trial.must(weight);
            if index != 1 {
                let made = trial.backend.sketch(&mut weight);
                trial.must(made);
            }
            let x = trial.input(n, cols);
            let mut all = trial.output(n, rows);
            trial.backend.linear(&mut all, &weight, None, &x.buffer, n);
            let mut out = trial.output(n, rows);
            trial
                .backend
                .largest(&mut out, &weight, &x.buffer, largest, n);
            check_largest(&mut trial, [&all, &out], rows, n, largest);
        }
    }
    trial.report()
}

fn check_largest<B: Backend>(
    trial: &mut Trial<'_, B>,
    [all, out]: [&B::Buffer; 2],
    rows: usize,
    n: usize,
    largest: usize,
) {
    let mut read = |buffer: &B::Buffer| {
        let mut values = vec![0.0; n * rows];
        let read = trial.backend.read_f32(buffer, &mut values);
        trial.must(read);
        values
    };
    let (all, out) = (read(all), read(out));
    for (all, out) in all.chunks(rows).zip(out.chunks(rows)) {
        let mut ranked = all.to_vec();
        ranked.sort_unstable_by(|a, b| b.total_cmp(a));
        let least = ranked[largest.min(rows) - 1];
        for (place, (all, out)) in all.iter().zip(out).enumerate() {
            match *all >= least {
                true if all.to_bits() != out.to_bits() => {
                    trial.fail(&format!("{out} at {place}, where all are {all}"));
                }
                false if out.is_nan() || *out >= least => {
                    trial.fail(&format!("{out} at {place}, not below {least}"));
                }
                _ => {}
            }
        }
    }
}

/// Another format that rows of this length can have.
fn mate(dtype: DType, cols: usize) -> DType {
    let fits = |mate: &&DType| **mate != dtype && cols.is_multiple_of(mate.block_len());
    let mates: Vec<&DType> = DType::all().iter().filter(fits).collect();
    **mates.last().expect("invariant: F32 and F16 fit any row")
}

fn check_linear<B: Backend>(
    trial: &mut Trial<'_, B>,
    parts: &[(DType, usize)],
    cols: usize,
    n: usize,
    bias: bool,
) {
    trial.case(format!("{parts:?} of {cols}, {n} rows, bias {bias}"));
    let random = &mut trial.random;
    let tensor = |&(dtype, out): &(DType, usize)| Tensor::random(random, dtype, &[out, cols]);
    let tensors: Vec<Tensor> = parts.iter().map(tensor).collect();
    let views: Vec<_> = tensors.iter().map(Tensor::view).collect();
    let weight = trial.backend.upload(&views);
    let weight = trial.must(weight);
    let random = &mut trial.random;
    let vector = |&(_, out): &(DType, usize)| Tensor::random(random, DType::F32, &[out]);
    let biases: Vec<Tensor> = parts.iter().map(vector).collect();
    let views: Vec<_> = biases.iter().map(Tensor::view).collect();
    let uploaded = bias.then(|| trial.backend.upload(&views));
    let uploaded = uploaded.map(|uploaded| trial.must(uploaded));

    let values: Vec<f64> = tensors.iter().flat_map(|t| t.values.clone()).collect();
    let biases: Vec<f64> = biases.iter().flat_map(|t| t.values.clone()).collect();
    let out_width = biases.len();
    let x = trial.input(n, cols);
    let mut out = trial.output(n, out_width);
    trial
        .backend
        .linear(&mut out, &weight, uploaded.as_ref(), &x.buffer, n);
    let expected = oracle::linear(&x.values, &values, bias.then_some(&biases), cols);
    let scale = oracle::natural_norm(&x.values, &values, cols);
    let tolerance = trial.tolerance;
    let allowed = tensors
        .iter()
        .map(|t| product_tolerance(tolerance, t.dtype()));
    let allowed = allowed.fold(0.0, f64::max);
    trial.expect_scaled(&out, &expected, out_width, allowed, scale);
}

/// Every activation, at usual and at large values.
pub fn glu<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("glu", backend, tolerance);
    for activation in ACTIVATIONS {
        for width in WIDTHS {
            let n = trial.random.pick(&ROWS);
            let magnitude = trial.random.pick(&[0.1, 1.0, 30.0]);
            trial.case(format!("{activation:?} [{n}, {width}] of {magnitude}"));
            let values: Vec<f32> = trial.random.normals(2 * n * width);
            let values: Vec<f32> = values.iter().map(|x| x * magnitude).collect();
            let x = trial.input_of(&values, 2 * width);
            let mut out = trial.output(n, width);
            trial.backend.glu(&mut out, &x.buffer, activation, width, n);
            let rows = x.values.chunks(2 * width);
            let expected: Vec<f64> = rows.flat_map(|row| oracle::glu(row, activation)).collect();
            trial.expect(&out, &expected, width, tolerance.glu);
        }
    }
    trial.report()
}

/// Sums in place.
pub fn add<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("add", backend, tolerance);
    for width in WIDTHS {
        for n in ROWS {
            trial.case(format!("[{n}, {width}]"));
            let x = trial.input(n, width);
            let mut out = trial.in_place(n, width);
            trial.backend.add(&mut out.buffer, &x.buffer, width, n);
            let expected: Vec<f64> = sum(&out.values, &x.values);
            trial.expect(&out.buffer, &expected, width, tolerance.buffer);
        }
    }
    trial.report()
}

/// Sums in place, each row under a gate of its own.
pub fn add_gated<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("add_gated", backend, tolerance);
    for width in WIDTHS {
        for n in ROWS {
            trial.case(format!("[{n}, {width}]"));
            let (x, gate) = (trial.input(n, width), trial.input(n, 1));
            let mut out = trial.in_place(n, width);
            trial
                .backend
                .add_gated(&mut out.buffer, &x.buffer, &gate.buffer, width, n);
            let rows = x.values.chunks(width).zip(&gate.values);
            let gated = rows.flat_map(|(x, gate)| {
                let factor = 1.0 / (1.0 + (-gate).exp());
                x.iter().map(move |x| factor * x)
            });
            let expected = sum(&out.values, &gated.collect::<Vec<f64>>());
            trial.expect(&out.buffer, &expected, width, tolerance.glu);
        }
    }
    trial.report()
}

/// The fused sum and norm: both results.
pub fn add_rms_norm<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("add_rms_norm", backend, tolerance);
    for width in WIDTHS {
        for n in ROWS {
            trial.case(format!("[{n}, {width}]"));
            let weight = Tensor::norm(&mut trial.random, width);
            let uploaded = trial.backend.upload(&[weight.view()]);
            let uploaded = trial.must(uploaded);
            let x = trial.input(n, width);
            let mut residual = trial.in_place(n, width);
            let mut out = trial.output(n, width);
            trial.backend.add_rms_norm(
                &mut out,
                &mut residual.buffer,
                &x.buffer,
                &uploaded,
                1e-6,
                width,
                n,
            );
            let sum: Vec<f64> = sum(&residual.values, &x.values);
            trial.expect(&residual.buffer, &sum, width, tolerance.buffer);
            let expected = norm_rows(&sum, &weight.values);
            // Where a sum cancels, its rounding is all there is of it: the norm may show it.
            let allowed = tolerance.norm + 20.0 * tolerance.buffer;
            trial.expect(&out, &expected, width, allowed);
        }
    }
    trial.report()
}

/// Formats of whose products backends may take a way of their own.
pub(super) const UNLIKE: [DType; 5] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_K,
];
/// Rows so many that a backend takes them several at a time, and not a whole number of these.
pub(super) const CROWD: usize = 41;

/// The format of the product behind a pair: theirs, or one whose blocks fit any width.
pub(super) fn behind([gate, up]: [DType; 2]) -> DType {
    if gate == up { gate } else { DType::F32 }
}

/// The fused feed-forward: every format, and pairs of unlike ones.
pub fn mlp<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("mlp", backend, tolerance);
    for &dtype in DType::all() {
        for (index, activation) in ACTIVATIONS.into_iter().enumerate() {
            let (width, hidden) = match dtype.block_len() {
                256 => ((1 + index % 2) * 256, (2 - index % 2) * 256),
                block => ((1 + index) * block.max(24), (5 - index) * block.max(24)),
            };
            let n = ROWS[2 * index];
            check_mlp(&mut trial, [dtype; 2], [width, hidden], activation, n);
        }
    }
    for gate in UNLIKE {
        for up in UNLIKE.into_iter().filter(|up| *up != gate) {
            let pair = [gate, up];
            check_mlp(&mut trial, pair, [256, 32], Activation::Silu, CROWD);
        }
    }
    trial.report()
}

fn check_mlp<B: Backend>(
    trial: &mut Trial<'_, B>,
    [gate_dtype, up_dtype]: [DType; 2],
    [width, hidden]: [usize; 2],
    activation: Activation,
    n: usize,
) {
    trial.case(format!(
        "{gate_dtype} and {up_dtype}, {width} to {hidden}, {activation:?}, {n} rows"
    ));
    let random = &mut trial.random;
    let gate = Tensor::random(random, gate_dtype, &[hidden, width]);
    let up = Tensor::random(random, up_dtype, &[hidden, width]);
    let down = Tensor::random(random, behind([gate_dtype, up_dtype]), &[width, hidden]);
    let gate_up = trial.backend.upload(&[gate.view(), up.view()]);
    let gate_up = trial.must(gate_up);
    let uploaded = trial.backend.upload(&[down.view()]);
    let uploaded = trial.must(uploaded);
    // So small that the products stay near 1.
    let factor = 1.0 / (width as f32).sqrt();
    let values: Vec<f32> = trial.random.normals(n * width);
    let values: Vec<f32> = values.iter().map(|x| x * factor).collect();
    let x = trial.input_of(&values, width);
    let mut out = trial.output(n, width);
    let mut projected = trial.output(n, 2 * hidden);
    let mut activated = trial.output(n, hidden);
    trial.backend.mlp(
        &mut out,
        &mut projected,
        &mut activated,
        &x.buffer,
        &gate_up,
        &uploaded,
        activation,
        hidden,
        n,
    );
    let both = [gate.values, up.values].concat();
    let rows = oracle::linear(&x.values, &both, None, width);
    let rows = rows.chunks(2 * hidden);
    let inner: Vec<f64> = rows.flat_map(|row| oracle::glu(row, activation)).collect();
    let expected = oracle::linear(&inner, &down.values, None, hidden);
    trial.expect(&out, &expected, width, trial.tolerance.mlp);
}

pub(super) fn product_tolerance(tolerance: &Tolerance, dtype: DType) -> f64 {
    match dtype.block_len() {
        1 => tolerance.linear_float,
        _ => tolerance.linear_block,
    }
}

pub(super) fn norm_rows(x: &[f64], weight: &[f64]) -> Vec<f64> {
    let rows = x.chunks(weight.len());
    let norm = |row: &[f64]| oracle::rms_norm(row, weight, f64::from(1e-6_f32));
    rows.flat_map(norm).collect()
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
