//! From the engine's batch to the backend's step: rows to spans, wants to outputs and samples.

use fornax_backend::{
    MAX_TOP, Pooled, Pooling, RowSpan, SampleParams, SampleRow, StepRows, StepShape,
};
use fornax_engine::{Input, MAX_LOGPROBS, SamplingParams, StepBatch, Want};

// A request that the engine takes, a backend can answer.
const _: () = assert!(MAX_LOGPROBS <= MAX_TOP);

/// Fills `step` with what `batch` asks of a model with `groups` KV groups, and says its shape. `largest`
/// says how many of the largest logits decide what is drawn for a slot. `[slots]`
pub(crate) fn describe(
    batch: &StepBatch,
    groups: usize,
    largest: &[Option<usize>],
    step: &mut StepRows,
) -> StepShape {
    clear(step, groups);
    for (index, row) in batch.rows().iter().enumerate() {
        let start = step.tokens.len();
        match &row.input {
            Input::Tokens(_) => step.tokens.extend_from_slice(batch.tokens(index)),
            Input::FromStep(sample) => {
                step.from_step.push((start, *sample));
                step.tokens.push(0);
            }
        }
        let len = batch.new_tokens(index);
        step.rows.push(RowSpan {
            start,
            len,
            cached: row.cached,
        });
        for (group, tables) in step.tables.iter_mut().enumerate() {
            tables.push(batch.table(index, group).to_vec());
        }
        if let Want::Pooled(pooling) = row.want {
            step.pooled.push(Pooled {
                row: index,
                pooling: pooling_of(pooling),
            });
        }
    }
    outputs(batch, largest, step);
    step.shape()
}

/// Which of the step's samples each row draws, in the order of [`describe`]. `drawn` is overwritten.
/// `[n_rows]`
pub(crate) fn samples(batch: &StepBatch, drawn: &mut Vec<Option<usize>>) {
    let mut next = 0..;
    let mut draws = |want: &Want| match want {
        Want::Sample { .. } => next.next(),
        Want::Nothing | Want::Logits(_) | Want::Pooled(_) => None,
    };
    drawn.clear();
    drawn.extend(batch.rows().iter().map(|row| draws(&row.want)));
}

/// The backend's form of a request's sampling parameters.
pub(crate) fn sample_params(params: &SamplingParams) -> SampleParams {
    SampleParams {
        logit_bias: params.logit_bias.clone(),
        repetition_penalty: params.repetition_penalty,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        top_k: params.top_k,
        typical_p: params.typical_p,
        top_p: params.top_p,
        min_p: params.min_p,
        temperature: params.temperature,
        seed: params.seed,
    }
}

/// Sampled tokens come first, so that sample `i` draws from row `i` of the logits.
fn outputs(batch: &StepBatch, largest: &[Option<usize>], step: &mut StepRows) {
    for (row, span) in batch.rows().iter().zip(&step.rows) {
        if let Want::Sample { logprobs } = row.want {
            step.outputs.push(span.start + span.len - 1);
            let position = span.cached + span.len;
            step.samples.push(SampleRow {
                slot: row.slot,
                position,
                top: logprobs,
                // A probability is one among all.
                largest: largest[row.slot].filter(|_| logprobs.is_none()),
            });
        }
    }
    for (row, span) in batch.rows().iter().zip(&step.rows) {
        if let Want::Logits(positions) = &row.want {
            step.outputs
                .extend(positions.clone().map(|position| span.start + position));
        }
    }
}

fn clear(step: &mut StepRows, groups: usize) {
    step.tokens.clear();
    step.from_step.clear();
    step.rows.clear();
    step.outputs.clear();
    step.samples.clear();
    step.pooled.clear();
    step.tables.resize_with(groups, Vec::new);
    step.tables.iter_mut().for_each(Vec::clear);
}

fn pooling_of(pooling: fornax_engine::Pooling) -> Pooling {
    match pooling {
        fornax_engine::Pooling::Mean => Pooling::Mean,
        fornax_engine::Pooling::Last => Pooling::Last,
    }
}
