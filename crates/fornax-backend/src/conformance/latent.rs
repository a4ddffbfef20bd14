//! Checks of what multi-head latent attention needs: heads with matrices of their own, and a cache
//! whose V lies inside of its K.

use super::cache::{Variant, World, any_element, pages_for};
use super::oracle;
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{Backend, HeadLinearSpec, KvShape};
use fornax_gguf::DType;

/// Heads, what passes, and blocks of inputs; outputs of every remainder.
const HEADS: [(usize, usize, usize, usize); 5] = [
    (1, 0, 1, 1),
    (2, 8, 2, 33),
    (3, 0, 3, 16),
    (5, 4, 1, 24),
    (16, 64, 4, 96),
];

/// Products of each head with its own matrix in every block format, with and without elements that
/// pass.
pub fn head_linear<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("head_linear", backend, tolerance);
    for &dtype in DType::all() {
        for (index, (heads, passed, blocks, outputs)) in HEADS.into_iter().enumerate() {
            let inputs = match dtype.block_len() {
                1 => 7 * blocks,
                block => block * blocks.min(256 / block).max(1),
            };
            let spec = HeadLinearSpec {
                heads,
                passed,
                inputs,
                outputs,
            };
            let n = [1, 17, 2, 5, 3][index];
            trial.case(format!("{dtype} {spec:?}, {n} rows"));
            let shape = [heads, outputs, inputs];
            let weight = Tensor::random(&mut trial.random, dtype, &shape);
            let uploaded = trial.backend.upload(&[weight.view()]);
            let uploaded = trial.must(uploaded);
            let x = trial.input(n, heads * (passed + inputs));
            let width = heads * (passed + outputs);
            let mut out = trial.output(n, width);
            trial
                .backend
                .head_linear(&mut out, &uploaded, &x.buffer, spec, n);
            let mut expected = Vec::new();
            for (index, x) in x.values.chunks(passed + inputs).enumerate() {
                let matrix = &weight.values[index % heads * outputs * inputs..][..outputs * inputs];
                expected.extend(&x[..passed]);
                expected.extend(oracle::linear(&x[passed..], matrix, None, inputs));
            }
            let scale = oracle::natural_norm(&x.values, &weight.values, inputs) / heads as f64;
            let allowed = match dtype.block_len() {
                1 => tolerance.linear_float,
                _ => tolerance.linear_block,
            };
            trial.expect_scaled(&out, &expected, width, allowed, scale);
        }
    }
    trial.report()
}

/// Attention over a cache whose V are the last elements of its K: one wide KV head.
pub fn latent_attention<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("latent_attention", backend, tolerance);
    let heads = [(1, 40, 24), (4, 96, 80), (16, 320, 256), (3, 576, 512)];
    let page_sizes = [1, 16, 64];
    let cases = heads
        .into_iter()
        .flat_map(|heads| page_sizes.map(|size| (heads, size)));
    for ((q_heads, k_dim, v_dim), page_size) in cases {
        let spans = [(0, 5), (37, 1), (20, 6)];
        let shape = KvShape {
            pages: pages_for(spans.iter().map(|(cached, len)| cached + len), page_size),
            page_size,
            kv_heads: 1,
            k_dim,
            v_dim,
            element: any_element(&mut trial, [k_dim, v_dim]),
        };
        trial.case(format!("{q_heads} Q heads, {shape:?}"));
        let mut world = World::overlapping(&mut trial, shape, q_heads, spans.len());
        world.advance(&mut trial, &[(1, 37), (2, 20)]);
        let (rows, fused) = world.advance(&mut trial, &[(0, 5), (1, 1), (2, 6)]);
        world.attend(&mut trial, &rows, &fused, Variant::default());
    }
    trial.report()
}
