//! A mixture of experts: tokens grouped by the experts that they chose, and brought together again.
//!
//! Must not know how a feed-forward layer is computed.

use fornax_backend::ExpertsSpec;

use super::{Activated, AddScaled, Scratch, gate_and_up, gated, glu};
use crate::{
    columns::Columns,
    cores::Cores,
    isa::Isa,
    memory::Parts,
    product::multiply,
    rows::run_rows,
    weight::{Matrix, Weight},
};

/// What [`experts`] reads.
pub(crate) struct Mixture<'a> {
    /// `[n, width]`
    pub x: &'a [f32],
    /// `[n, used]`
    pub ids: &'a [u32],
    /// `[n, used]`
    pub weights: &'a [f32],
    /// `[experts, 2 * hidden, width]`
    pub gate_up: &'a Matrix,
    /// `[experts, width, hidden]`
    pub down: &'a Matrix,
    /// Behind either projection. `[experts, 2 * hidden]` and `[experts, width]`
    pub biases: Option<(&'a [f32], &'a [f32])>,
    pub spec: ExpertsSpec<'a, Weight>,
    pub n: usize,
}

/// Elements that are kept of any step of the way at a time, at most, or those of one token: 256 MiB. No published
/// model has more of a step of 512 tokens, but a file may say anything.
const MOST_KEPT: usize = 64 << 20;

/// Each token's weighted sum over its experts. `out` is `[n, width]`.
pub(crate) fn experts(
    cores: &mut Cores,
    scratch: &mut Scratch,
    columns: &mut Columns,
    out: &mut [f32],
    mixture: &Mixture<'_>,
) {
    experts_within(MOST_KEPT, cores, scratch, columns, out, mixture);
}

/// The same with no more elements at a time than `most`, or those of one token.
fn experts_within(
    most: usize,
    cores: &mut Cores,
    scratch: &mut Scratch,
    columns: &mut Columns,
    out: &mut [f32],
    mixture: &Mixture<'_>,
) {
    let ExpertsSpec {
        used,
        hidden,
        width,
        ..
    } = mixture.spec;
    let at_once = (most / (used * width.max(2 * hidden)).max(1)).max(1);
    for first in (0..mixture.n).step_by(at_once) {
        let tokens = first..mixture.n.min(first + at_once);
        let of_tokens = |each: usize| tokens.start * each..tokens.end * each;
        let some = Mixture {
            x: &mixture.x[of_tokens(width)],
            ids: &mixture.ids[of_tokens(used)],
            weights: &mixture.weights[of_tokens(used)],
            n: tokens.len(),
            ..*mixture
        };
        experts_of_some(cores, scratch, columns, &mut out[of_tokens(width)], &some);
    }
}

/// The same of tokens that are kept at a time: those of an expert are computed together, so that its
/// weights are read once.
fn experts_of_some(
    cores: &mut Cores,
    scratch: &mut Scratch,
    columns: &mut Columns,
    out: &mut [f32],
    mixture: &Mixture<'_>,
) {
    let isa = cores.isa;
    let Mixture {
        x,
        weights,
        gate_up,
        down,
        biases,
        spec,
        n,
        ..
    } = *mixture;
    let (gate_up_bias, down_bias) = biases.unzip();
    let choices = n * spec.used;
    group_by_expert(isa, scratch, columns, mixture);
    columns.fill(cores, x);
    scratch.hidden.grow(choices * spec.hidden);
    scratch.down.grow(choices * spec.width);
    if let Some(parts) = gate_and_up(gate_up) {
        let Scratch { hidden, chosen, .. } = scratch;
        gated(
            cores,
            Activated::Rows(Parts::new(hidden)),
            parts,
            gate_up_bias,
            spec.activation,
            columns,
            chosen,
        );
    } else {
        scratch.projected.grow(choices * 2 * spec.hidden);
        let Scratch {
            projected,
            hidden,
            chosen,
            ..
        } = scratch;
        let bias = gate_up_bias;
        multiply(cores, projected, gate_up, bias, columns, chosen);
        glu(
            cores,
            hidden,
            projected,
            spec.activation,
            spec.hidden,
            choices,
        );
    }
    // The hidden columns stand by expert already: the same groups, of columns in order.
    let mut first = 0;
    columns.clear(down.cols, down.precisions(isa));
    for (_, tiles) in &mut scratch.chosen {
        let count =
            scratch.order[first..].partition_point(|choice| choice.0 == scratch.order[first].0);
        *tiles = columns.push_group(isa, first..first + count);
        first += count;
    }
    columns.fill(cores, &scratch.hidden);
    multiply(
        cores,
        &mut scratch.down,
        down,
        down_bias,
        columns,
        &scratch.chosen,
    );
    let Scratch {
        column_of, down, ..
    } = &*scratch;
    let out = Parts::new(out);
    run_rows(&mut cores.pool, n, spec.used * spec.width, |token| {
        // SAFETY: each token is another place.
        let out = unsafe { out.part(token * spec.width, spec.width) };
        out.fill(0.0);
        let choices = token * spec.used..(token + 1) * spec.used;
        for (column, &scale) in column_of[choices.clone()].iter().zip(&weights[choices]) {
            let x = &down[column * spec.width..(column + 1) * spec.width];
            isa.run(AddScaled {
                out: &mut *out,
                x,
                scale,
            });
        }
    });
}

/// Makes a group of columns of the tokens of each expert that some token chose.
fn group_by_expert(isa: Isa, scratch: &mut Scratch, columns: &mut Columns, mixture: &Mixture<'_>) {
    let spec = mixture.spec;
    let choices = mixture.n * spec.used;
    scratch.order.clear();
    scratch
        .order
        .extend(mixture.ids[..choices].iter().copied().zip(0..));
    scratch.order.sort_unstable();
    scratch.column_of.clear();
    scratch.column_of.resize(choices, 0);
    for (column, (expert, choice)) in scratch.order.iter().enumerate() {
        assert!(
            (*expert as usize) < spec.experts,
            "experts: there is no expert {expert}"
        );
        scratch.column_of[*choice] = column;
    }
    scratch.chosen.clear();
    columns.clear(spec.width, mixture.gate_up.precisions(isa));
    for choices in scratch.order.chunk_by(|a, b| a.0 == b.0) {
        let tokens = choices.iter().map(|(_, choice)| choice / spec.used);
        let tiles = columns.push_group(isa, tokens);
        scratch.chosen.push((choices[0].0 as usize, tiles));
    }
}

#[cfg(test)]
mod tests {
    use fornax_backend::Activation;
    use fornax_gguf::{DType, TensorView};

    use super::*;
    use crate::{memory::Arena, tests::Random};

    #[test]
    fn tokens_in_parts_give_what_they_give_together() {
        let (experts, used, width, hidden, n) = (4, 2, 64, 96, 7);
        let mut random = Random(21);
        let mut stack = |rows: usize, cols: usize| {
            let values: Vec<f32> = (0..experts * rows * cols).map(|_| random.float()).collect();
            let mut data = Vec::new();
            DType::Q8_0.encode(&values, &mut data);
            (data, [experts, rows, cols])
        };
        let (gate_up, down) = (stack(2 * hidden, width), stack(width, hidden));
        let x: Vec<f32> = (0..n * width).map(|_| random.float()).collect();
        let weights: Vec<f32> = (0..n * used).map(|_| random.float()).collect();
        let ids: Vec<u32> = (0..n as u32).flat_map(|t| [t % 4, (t + 1) % 4]).collect();
        for isa in crate::tests::tested() {
            let cores = &mut Cores::new(isa, 2).unwrap();
            let mut upload = |(data, shape): &(Vec<u8>, [usize; 3])| {
                let view = TensorView {
                    name: "test",
                    dtype: DType::Q8_0,
                    shape,
                    data,
                };
                Weight::upload(&mut cores.pool, &mut Arena::default(), &[view]).unwrap()
            };
            let (gate_up, down) = (upload(&gate_up), upload(&down));
            let mixture = Mixture {
                x: &x,
                ids: &ids,
                weights: &weights,
                gate_up: gate_up.matrix(),
                down: down.matrix(),
                biases: None,
                spec: ExpertsSpec {
                    experts,
                    used,
                    width,
                    hidden,
                    activation: Activation::Silu,
                    biases: None,
                },
                n,
            };
            let mut run = |most| {
                let mut out = vec![f32::NAN; n * width];
                let (scratch, columns) = (&mut Scratch::default(), &mut Columns::default());
                experts_within(most, cores, scratch, columns, &mut out, &mixture);
                out
            };
            let together = run(MOST_KEPT);
            assert!(together.iter().all(|value| value.is_finite()), "{isa}");
            for most in [0, 2 * used * hidden, 6 * used * hidden] {
                assert!(run(most) == together, "{isa}, {most} at a time");
            }
        }
    }
}
