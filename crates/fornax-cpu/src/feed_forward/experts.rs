//! A mixture of experts: tokens grouped by the experts that they chose, and brought together again.
//!
//! Must not know how a feed-forward layer is computed.

use std::ops::Range;

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
    let ExpertsSpec {
        used,
        hidden,
        width,
        ..
    } = mixture.spec;
    for tokens in shares(mixture.n, used * width.max(2 * hidden), MOST_KEPT) {
        let out = &mut out[of_tokens(&tokens, width)];
        experts_of_some(cores, scratch, columns, out, &mixture.of(tokens));
    }
}

/// Tokens of which each keeps so many elements, as many at a time as keep no more than `most`, or one.
fn shares(n: usize, kept: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let at_once = (most / kept.max(1)).max(1);
    (0..n)
        .step_by(at_once)
        .map(move |first| first..n.min(first + at_once))
}

/// Where those of some tokens are among numbers of which each token has so many.
fn of_tokens(tokens: &Range<usize>, each: usize) -> Range<usize> {
    tokens.start * each..tokens.end * each
}

impl Mixture<'_> {
    /// The same of some of the tokens.
    fn of(&self, tokens: Range<usize>) -> Self {
        let ExpertsSpec { used, width, .. } = self.spec;
        Self {
            x: &self.x[of_tokens(&tokens, width)],
            ids: &self.ids[of_tokens(&tokens, used)],
            weights: &self.weights[of_tokens(&tokens, used)],
            n: tokens.len(),
            ..*self
        }
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
    use crate::{memory::Arena, pool::Pool};

    #[test]
    fn every_token_is_in_one_share_of_no_more_than_is_kept() {
        for (n, kept) in [(0, 5), (1, 5), (7, 5), (7, 0), (100, 1)] {
            for most in [0, 4, 5, 11, 34, 35, usize::MAX] {
                let shares: Vec<_> = shares(n, kept, most).collect();
                let tokens: Vec<usize> = shares.iter().cloned().flatten().collect();
                assert!(tokens.into_iter().eq(0..n), "{n} tokens in {shares:?}");
                let fits = |share: &Range<usize>| share.len() == 1 || share.len() * kept <= most;
                assert!(shares.iter().all(fits), "{most}: {shares:?}");
            }
        }
    }

    #[test]
    fn some_tokens_have_what_is_theirs() {
        let view = TensorView {
            name: "test",
            dtype: DType::F32,
            shape: &[1, 1],
            data: &[0; 4],
        };
        let weight =
            Weight::upload(&mut Pool::new(1).unwrap(), &mut Arena::default(), &[view]).unwrap();
        let numbers = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let all = Mixture {
            x: &numbers,
            ids: &[0, 1, 2, 3, 4, 5],
            weights: &numbers[..6],
            gate_up: weight.matrix(),
            down: weight.matrix(),
            biases: None,
            spec: ExpertsSpec {
                experts: 6,
                used: 2,
                width: 3,
                hidden: 1,
                activation: Activation::Silu,
                biases: None,
            },
            n: 3,
        };
        let some = all.of(1..3);
        assert_eq!(some.n, 2);
        assert_eq!(some.x, &numbers[3..]);
        assert_eq!(some.ids, [2, 3, 4, 5]);
        assert_eq!(some.weights, &numbers[2..6]);
    }
}
