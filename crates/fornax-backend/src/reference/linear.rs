//! Matrix products: each weight row is unpacked once and meets every token.

use super::memory::Weight;
use crate::HeadLinearSpec;

/// Partial sums side by side: they let a compiler use vectors, and lose less than one long sum.
const LANES: usize = 8;

/// `x · y`.
pub(super) fn dot(x: &[f32], y: &[f32]) -> f32 {
    assert_eq!(x.len(), y.len(), "dot: lengths");
    let mut lanes = [0.0; LANES];
    let (x_chunks, x_rest) = x.as_chunks::<LANES>();
    let (y_chunks, y_rest) = y.as_chunks::<LANES>();
    for (x, y) in x_chunks.iter().zip(y_chunks) {
        for (lane, (x, y)) in lanes.iter_mut().zip(x.iter().zip(y)) {
            *lane += x * y;
        }
    }
    let rest: f32 = x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum();
    lanes.iter().sum::<f32>() + rest
}

/// `out = x · weight[matrix]ᵀ + bias` for `n` tokens. `x` is `[n, cols]`, `out` `[n, rows]`.
pub(super) fn linear(
    out: &mut [f32],
    weight: &Weight,
    matrix: usize,
    bias: Option<&[f32]>,
    x: &[f32],
    n: usize,
) {
    let (rows, cols) = (weight.rows(), weight.cols());
    assert!(bias.is_none_or(|bias| bias.len() == rows), "linear: bias");
    let out = &mut out[..n * rows];
    let x = &x[..n * cols];
    let mut unpacked = vec![0.0; cols];
    for row in 0..rows {
        weight.decode_row(matrix, row, &mut unpacked);
        let bias = bias.map_or(0.0, |bias| bias[row]);
        for (token, x) in x.chunks_exact(cols).enumerate() {
            out[token * rows + row] = dot(&unpacked, x) + bias;
        }
    }
}

/// See [`Backend::head_linear`](crate::Backend::head_linear).
pub(super) fn head_linear(
    out: &mut [f32],
    weight: &Weight,
    x: &[f32],
    spec: HeadLinearSpec,
    n: usize,
) {
    let HeadLinearSpec {
        heads,
        passed,
        inputs,
        outputs,
    } = spec;
    assert_eq!(
        (weight.rows(), weight.cols()),
        (outputs, inputs),
        "head_linear: weight"
    );
    let x = x[..n * heads * (passed + inputs)].chunks_exact(passed + inputs);
    let out = out[..n * heads * (passed + outputs)].chunks_exact_mut(passed + outputs);
    for (index, (out, x)) in out.zip(x).enumerate() {
        out[..passed].copy_from_slice(&x[..passed]);
        linear(
            &mut out[passed..],
            weight,
            index % heads,
            None,
            &x[passed..],
            1,
        );
    }
}
