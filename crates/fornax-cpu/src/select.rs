//! Operations that choose: experts, rows that go on to the head, rows that are pooled, tokens.
//!
//! They are small beside the products, and plain. Must not know weights other than vectors.

use fornax_backend::{
    ExpertGroups, HostSampler, Pooled, Pooling, RouteSpec, RowSpan, SAMPLE_WORDS, SampleRow,
    Scoring, Summary,
};

use crate::{
    cores::Cores,
    memory::Parts,
    simd::{Kernel, Simd},
    weight::Weight,
};

/// Scratch of choices. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// What experts of a token are chosen by. `[experts]`
    ranks: Vec<f32>,
    /// Scores of a group, highest first. `[experts of a group]`
    sorted: Vec<f32>,
    /// What groups rank by. `[groups]`
    sums: Vec<f32>,
    /// `[rows]`
    summaries: Vec<Option<Summary>>,
}

/// Ids and weights of the chosen experts, highest score first, ties by lower id. `logits` is
/// `[n, experts]`, `ids` and `weights` `[n, used]`.
pub(crate) fn route(
    scratch: &mut Scratch,
    ids: &mut [u32],
    weights: &mut [f32],
    logits: &[f32],
    spec: &RouteSpec<'_, Weight>,
) {
    let bias = spec.selection_bias.map(Weight::vector);
    let rows = logits.chunks_exact(spec.experts);
    let chosen = ids
        .chunks_exact_mut(spec.used)
        .zip(weights.chunks_exact_mut(spec.used));
    for (logits, (ids, weights)) in rows.zip(chosen) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        let score = |expert: usize| match spec.scoring {
            Scoring::Softmax => (logits[expert] - largest).exp() / total,
            Scoring::Sigmoid => 1.0 / (1.0 + (-logits[expert]).exp()),
        };
        let rank = |expert: usize| score(expert) + bias.map_or(0.0, |bias| bias[expert]);
        scratch.ranks.clear();
        scratch.ranks.extend((0..spec.experts).map(rank));
        if let Some(groups) = spec.groups {
            close_groups(scratch, groups);
        }
        choose(ids, &scratch.ranks);
        for (weight, id) in weights.iter_mut().zip(&*ids) {
            *weight = score(*id as usize);
        }
        let sum: f32 = weights.iter().sum();
        let factor = if spec.normalise {
            spec.scale / sum
        } else {
            spec.scale
        };
        weights.iter_mut().for_each(|weight| *weight *= factor);
    }
}

/// Puts the experts of all but the highest groups behind every other.
fn close_groups(scratch: &mut Scratch, groups: ExpertGroups) {
    let Scratch {
        ranks,
        sorted,
        sums,
        ..
    } = scratch;
    let size = ranks.len() / groups.count;
    sums.clear();
    for group in ranks.chunks_exact(size) {
        sorted.clear();
        sorted.extend_from_slice(group);
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        sums.push(sorted[..groups.summed].iter().sum());
    }
    for _ in groups.open..groups.count {
        // The last of equal ones, so that the lower ones stay.
        let sums_of = sums.iter().copied().enumerate();
        let lowest = sums_of.reduce(|lowest, next| if next.1 <= lowest.1 { next } else { lowest });
        let (lowest, _) =
            lowest.expect("invariant: experts have a group, which the file's reader checks");
        sums[lowest] = f32::INFINITY;
        ranks[lowest * size..(lowest + 1) * size].fill(f32::NEG_INFINITY);
    }
}

/// The experts of the highest ranks, in order.
fn choose(ids: &mut [u32], ranks: &[f32]) {
    for chosen in 0..ids.len() {
        let (taken, rest) = ids.split_at_mut(chosen);
        let ranked = ranks.iter().copied().enumerate();
        let left = ranked.filter(|(expert, _)| !taken.contains(&(*expert as u32)));
        let best = left.reduce(|best, next| if next.1 > best.1 { next } else { best });
        rest[0] = best
            .expect("invariant: no more experts are used than there are, which the reader checks")
            .0 as u32;
    }
}

/// Collects rows. `x` is `[tokens, width]`, `out` `[indices, width]`.
pub(crate) fn gather(out: &mut [f32], x: &[f32], width: usize, indices: &[usize]) {
    for (out, index) in out.chunks_exact_mut(width).zip(indices) {
        out.copy_from_slice(&x[index * width..(index + 1) * width]);
    }
}

/// One vector for each pooled row. `x` is `[tokens, width]`, `out` `[pooled, width]`.
pub(crate) fn pool(out: &mut [f32], x: &[f32], width: usize, rows: &[RowSpan], pooled: &[Pooled]) {
    for (out, pooled) in out.chunks_exact_mut(width).zip(pooled) {
        let row = rows[pooled.row];
        let of_row = &x[row.start * width..(row.start + row.len) * width];
        match pooled.pooling {
            Pooling::Last => out.copy_from_slice(&of_row[of_row.len() - width..]),
            Pooling::Mean => {
                out.fill(0.0);
                for x in of_row.chunks_exact(width) {
                    out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
                }
                out.iter_mut().for_each(|out| *out /= row.len as f32);
            }
        }
    }
}

/// Draws from each row of `logits` `[rows, vocabulary]`; `words` is `[rows, SAMPLE_WORDS]`.
pub(crate) fn sample(
    cores: &mut Cores,
    scratch: &mut Scratch,
    words: &mut [u32],
    logits: &mut [f32],
    sampler: &mut HostSampler,
    rows: &[SampleRow],
) {
    let (isa, pool) = cores.parts();
    let vocabulary = sampler.vocabulary();
    scratch.summaries.clear();
    scratch.summaries.resize(rows.len(), None);
    let summaries = Parts::new(&mut scratch.summaries);
    pool.run(rows.len(), |row, _| {
        let logits = &logits[row * vocabulary..(row + 1) * vocabulary];
        // SAFETY: each row is another place.
        let summary = unsafe { summaries.part(row, 1) };
        summary[0] = isa.run(Summarise(logits, rows[row]));
    });
    let logits = logits.chunks_exact_mut(vocabulary);
    let words = words.chunks_exact_mut(SAMPLE_WORDS);
    let summaries = scratch.summaries.iter();
    for (((logits, words), row), summary) in logits.zip(words).zip(rows).zip(summaries) {
        sampler
            .sample_summarised(logits, *summary, *row)
            .encode(words);
    }
}

/// What the chain of sampling wants to know of a row of logits first.
struct Summarise<'a>(&'a [f32], SampleRow);

impl Kernel for Summarise<'_> {
    type Output = Option<Summary>;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Option<Summary> {
        Summary::of(self.0, self.1)
    }
}
