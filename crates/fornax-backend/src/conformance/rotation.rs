//! Checks of rotary position embedding.

use fornax_gguf::DType;

use super::oracle;
use super::steps::{capacity, ragged};
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{Backend, Heads, RopeSpec, RopeStyle};

/// Both styles, whole and partial rotation, near and far positions, other columns untouched.
pub fn rope<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("rope", backend, tolerance);
    for style in [RopeStyle::HalfSplit, RopeStyle::AdjacentPairs] {
        for dim in [40, 64, 80, 96, 128, 256] {
            for (count, before, after) in [(1, 0, 0), (3, 0, 2), (2, 6, 1)] {
                let heads = Heads {
                    stride: (before + count + after) * dim,
                    offset: before * dim,
                    count,
                    dim,
                };
                let rotary = trial.random.pick(&[dim, dim / 2, dim / 4]);
                let magnitude = trial.random.pick(&[1.0, 1.25]);
                check_rope(&mut trial, style, heads, rotary, magnitude);
            }
        }
    }
    trial.report()
}

fn check_rope<B: Backend>(
    trial: &mut Trial<'_, B>,
    style: RopeStyle,
    heads: Heads,
    rotary: usize,
    magnitude: f32,
) {
    trial.case(format!(
        "{style:?} {rotary} of {heads:?}, times {magnitude}"
    ));
    let base = trial.random.pick(&[1e4_f64, 1e6]);
    let frequency = |pair| base.powf(-2.0 * f64::from(pair) / rotary as f64) as f32;
    let frequencies: Vec<f32> = (0..rotary as u32 / 2).map(frequency).collect();
    let weight = Tensor::of(DType::F32, &[rotary / 2], &frequencies);
    let uploaded = trial.backend.upload(&[weight.view()]);
    let uploaded = trial.must(uploaded);

    let rows = ragged(
        &mut trial.random,
        &[(0, 5), (9_990, 3), (77, 1), (0, 1)],
        10,
    );
    let n = rows.tokens.len();
    let mut step = trial.step(&capacity(n, rows.rows.len(), 10_000));
    trial.backend.prepare(&mut step, &rows);
    let mut x = trial.in_place(n, heads.stride);
    let spec = RopeSpec {
        style,
        rotary,
        frequencies: &uploaded,
        magnitude,
    };
    trial.backend.rope(&mut x.buffer, heads, &step, spec, n);
    let positions = [0, 1, 2, 3, 4, 9_990, 9_991, 9_992, 77, 0];
    for (row, position) in x.values.chunks_mut(heads.stride).zip(positions) {
        let columns = heads.offset..heads.offset + heads.count * heads.dim;
        for head in row[columns].chunks_mut(heads.dim) {
            let turned = oracle::rope(head, position, &frequencies, style, f64::from(magnitude));
            head.copy_from_slice(&turned);
        }
    }
    trial.expect(&x.buffer, &x.values, heads.stride, trial.tolerance.rope);
}
