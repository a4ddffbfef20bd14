//! The check of what a decoder's last block asks for: K and V of all tokens, attention of the outputs alone.

use fornax_gguf::DType;

use super::cache::{Variant, World, any_element, pages_for};
use super::dense::product_tolerance;
use super::oracle;
use super::tensors::Tensor;
use super::trial::Trial;
use super::turn::{Turn, slack};
use super::{Report, Tolerance};
use crate::{Backend, KvShape, Queries, RopeStyle, StepRows, StepShape};

/// Inputs of the projection: one block of the largest formats.
const WIDTH: usize = 256;
/// `(cached, new)` tokens of each row: prompts whole and in part, an answer, and a few.
const SPANS: [(usize, usize); 4] = [(0, 50), (13, 21), (30, 1), (9, 5)];
/// Outputs as indices in the 77 tokens of the step: the last of each row, of some, of none; in no order,
/// and more than one of a row, some twice.
const OUTPUTS: [&[usize]; 6] = [
    &[49, 70, 71, 76],
    &[71, 49],
    &[],
    &[76, 3, 75, 3],
    &[0],
    &[55, 60, 61, 62, 70, 20],
];

/// Q of the outputs alone, in projections of one format and of several, of whole panels and of less, to
/// attention; and afterwards K and V of all tokens.
pub fn attending<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("attending", backend, tolerance);
    let all = DType::all();
    for (case, outputs) in (0..3 * OUTPUTS.len()).zip(OUTPUTS.iter().cycle()) {
        let (q_heads, kv_heads, dim) = [(8, 4, 64), (3, 1, 40), (4, 4, 16)][case % 3];
        let shape = KvShape {
            pages: pages_for(SPANS.iter().map(|(cached, len)| cached + len), 16),
            page_size: 16,
            kv_heads,
            k_dim: dim,
            v_dim: dim,
            element: any_element(&mut trial, [dim, dim]),
        };
        let mut dtypes = vec![all[case % all.len()]; 3];
        match case % 4 {
            // Joined in the file already.
            1 => dtypes.truncate(1),
            3 => dtypes[2] = all[(case + 5) % all.len()],
            _ => {}
        }
        trial.case(format!(
            "{q_heads} Q heads, {shape:?}, {dtypes:?}, outputs {outputs:?}"
        ));
        let mut world = World::new(&mut trial, shape, q_heads, SPANS.len());
        world.advance(&mut trial, &[(1, 13), (2, 30), (3, 9)]);
        check(&mut trial, &mut world, &dtypes, outputs, case);
    }
    trial.report()
}

fn check<B: Backend>(
    trial: &mut Trial<'_, B>,
    world: &mut World<B>,
    dtypes: &[DType],
    outputs: &[usize],
    case: usize,
) {
    let turn = Turn::new(
        trial,
        world.shape.k_dim,
        RopeStyle::HalfSplit,
        world.shape.k_dim,
        true,
    );
    let new: Vec<(usize, usize)> = SPANS.iter().map(|(_, len)| *len).enumerate().collect();
    let rows = StepRows {
        outputs: outputs.to_vec(),
        ..world.extend(trial, &new)
    };
    trial.backend.prepare(&mut world.step, &rows);
    let (n, [q, k, v]) = (rows.tokens.len(), world.heads());
    let (queries, attended) = (q.count * q.dim, q.count * v.dim);
    let heights = match dtypes.len() {
        1 => vec![q.stride],
        _ => [q, k, v].map(|heads| heads.count * heads.dim).to_vec(),
    };
    let parts = dtypes.iter().zip(heights);
    let parts: Vec<Tensor> = parts
        .map(|(dtype, height)| Tensor::random(&mut trial.random, *dtype, &[height, WIDTH]))
        .collect();
    let views: Vec<_> = parts.iter().map(Tensor::view).collect();
    let weight = trial.backend.upload(&views);
    let weight = trial.must(weight);
    let bias = Tensor::random(&mut trial.random, DType::F32, &[q.stride]);
    let uploaded = trial.backend.upload(&[bias.view()]);
    let uploaded = trial.must(uploaded);
    let x = trial.input(n, WIDTH);
    let mut fused = trial.output(n, q.stride);
    let mut all = trial.output(n, attended);
    let mut out = trial.output(outputs.len(), attended);
    let variant = Variant {
        queries: Queries::Outputs,
        slack: slack(world.shape.element),
        ..Variant::default()
    };
    let (qkv, attention) = (turn.spec(world), world.spec(variant, &uploaded));
    let World { kv, step, .. } = &mut *world;
    // A step of a shape is one that was recorded: so each case has a shape of its own.
    let shape = StepShape {
        pooled: case,
        ..rows.shape()
    };
    let done = trial.backend.record(&shape, |backend| {
        backend.project_for_outputs(
            &mut fused,
            &weight,
            Some(&uploaded),
            &x.buffer,
            queries,
            step,
            n,
        );
        backend.qk_norm_rope_store(&mut fused, kv, step, qkv, n);
        backend.attention(&mut all, &fused, kv, step, attention, n);
        if !outputs.is_empty() {
            backend.gather(&mut out, &all, attended, step, outputs.len());
        }
    });
    trial.must(done);
    let weights: Vec<f64> = parts.iter().flat_map(|part| part.values.clone()).collect();
    let mut values = oracle::linear(&x.values, &weights, Some(&bias.values), WIDTH);
    turn.apply(world, &rows, &mut values);
    world.note(&rows, &values);
    let expected = world.expected(&rows, &values, variant, &[]);
    let row = |output: &usize| &expected[output * attended..][..attended];
    let of_outputs: Vec<f64> = outputs.iter().flat_map(row).copied().collect();
    let of_product = |dtype: &DType| product_tolerance(trial.tolerance, *dtype);
    let of_products = dtypes.iter().map(of_product).fold(0.0, f64::max);
    let slack = 4.0 * of_products + variant.slack;
    let allowed = trial.tolerance.attention + slack;
    trial.expect(&out, &of_outputs, attended, allowed);
    let fresh = trial.input(n, q.stride);
    let variant = Variant {
        slack,
        ..Variant::default()
    };
    world.attend(trial, &rows, &fresh, variant);
}
