//! Products of heads with a matrix each, as multi-head latent attention has them around its cache.
//!
//! Owns how heads become columns of a product and its outputs heads again. Must not know what the
//! heads are for.

use std::ops::Range;

use fornax_backend::HeadLinearSpec;

use crate::{
    columns::Columns,
    cores::Cores,
    memory::{Growing, Parts},
    product::multiply,
    rows::run_rows,
    weight::Matrix,
};

/// Scratch of these products. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// What is multiplied, head by head of each token. `[n, heads, inputs]`
    inputs: Growing<f32>,
    /// All tokens of a head, then those of the next. `[heads, n, outputs]`
    outputs: Growing<f32>,
    /// Tiles of each head.
    heads: Vec<(usize, Range<usize>)>,
}

/// `x` is `[n, heads * (passed + inputs)]`, `out` `[n, heads * (passed + outputs)]`.
pub(crate) fn head_linear(
    cores: &mut Cores,
    scratch: &mut Scratch,
    columns: &mut Columns,
    out: &mut [f32],
    x: &[f32],
    matrix: &Matrix,
    spec: HeadLinearSpec,
) {
    let isa = cores.isa;
    let HeadLinearSpec {
        heads,
        passed,
        inputs,
        outputs,
    } = spec;
    let shape = (matrix.rows, matrix.cols);
    assert_eq!(shape, (outputs, inputs), "head_linear: weight");
    let count = x.len() / (passed + inputs);
    let n = count / heads;
    scratch.inputs.grow(count * inputs);
    scratch.outputs.grow(count * outputs);
    let gathered = Parts::new(&mut scratch.inputs);
    run_rows(&mut cores.pool, count, inputs, |index| {
        // SAFETY: each head of a token is another place.
        let gathered = unsafe { gathered.part(index * inputs, inputs) };
        let head = &x[index * (passed + inputs)..][..passed + inputs];
        gathered.copy_from_slice(&head[passed..]);
    });
    columns.clear(inputs, matrix.precisions(isa));
    scratch.heads.clear();
    for head in 0..heads {
        let tiles = columns.push_group(isa, (0..n).map(|token| token * heads + head));
        scratch.heads.push((head, tiles));
    }
    columns.fill(cores, &scratch.inputs);
    multiply(
        cores,
        &mut scratch.outputs,
        matrix,
        None,
        columns,
        &scratch.heads,
    );
    let (products, out) = (&scratch.outputs, Parts::new(out));
    run_rows(&mut cores.pool, count, passed + outputs, |index| {
        let (token, head) = (index / heads, index % heads);
        // SAFETY: each head of a token is another place.
        let out = unsafe { out.part(index * (passed + outputs), passed + outputs) };
        out[..passed].copy_from_slice(&x[index * (passed + inputs)..][..passed]);
        out[passed..].copy_from_slice(&products[(head * n + token) * outputs..][..outputs]);
    });
}
