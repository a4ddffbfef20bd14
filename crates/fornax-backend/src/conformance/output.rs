//! Checks of what becomes of hidden states, and of tokens that only the device knows.

use fornax_gguf::DType;

use super::steps::{capacity, mixed_spans, ragged};
use super::tensors::Tensor;
use super::trial::{GUARD_INDEX, Trial};
use super::{Report, Tolerance};
use crate::{
    Backend, Pooled, Pooling, RowSpan, SAMPLE_WORDS, Sample, SampleParams, SampleRow, StepRows,
};

/// Rows in any order, also none of some sequences and several of one.
pub fn gather<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("gather", backend, tolerance);
    for width in [1, 40, 257] {
        for outputs in [1, 3, 16] {
            let spans = mixed_spans(&mut trial.random, 5, 9);
            let mut rows = ragged(&mut trial.random, &spans, 10);
            let tokens = rows.tokens.len();
            rows.outputs = (0..outputs).map(|_| trial.random.below(tokens)).collect();
            trial.case(format!("{:?} of {tokens} rows of {width}", rows.outputs));
            let mut step = trial.step(&capacity(tokens.max(outputs), 5, 200));
            trial.backend.prepare(&mut step, &rows);
            let x = trial.input(tokens, width);
            let mut out = trial.output(outputs, width);
            trial
                .backend
                .gather(&mut out, &x.buffer, width, &step, outputs);
            let row = |index: &usize| &x.values[index * width..][..width];
            let expected: Vec<f64> = rows.outputs.iter().flat_map(row).copied().collect();
            trial.expect(&out, &expected, width, tolerance.buffer);
        }
    }
    trial.report()
}

/// Means and last ones of some rows of a step.
pub fn pool<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("pool", backend, tolerance);
    for width in [1, 40, 257] {
        for (pooled, longest) in [(1, 1), (3, 9), (6, 70)] {
            let spans = mixed_spans(&mut trial.random, 6, longest);
            let mut rows = ragged(&mut trial.random, &spans, 10);
            let mut of: Vec<usize> = (0..6).collect();
            trial.random.shuffle(&mut of);
            rows.pooled = of[..pooled]
                .iter()
                .map(|&row| Pooled {
                    row,
                    pooling: trial.random.pick(&[Pooling::Mean, Pooling::Last]),
                })
                .collect();
            trial.case(format!("{:?} of {spans:?}, width {width}", rows.pooled));
            let tokens = rows.tokens.len();
            let mut step = trial.step(&capacity(tokens, 6, 1000));
            trial.backend.prepare(&mut step, &rows);
            let x = trial.input(tokens, width);
            let mut out = trial.output(pooled, width);
            trial
                .backend
                .pool(&mut out, &x.buffer, width, &step, pooled);
            let mut expected = Vec::new();
            for Pooled { row, pooling } in &rows.pooled {
                let RowSpan { start, len, .. } = rows.rows[*row];
                let first = match pooling {
                    Pooling::Mean => start,
                    Pooling::Last => start + len - 1,
                };
                for column in 0..width {
                    let tokens = first..start + len;
                    let count = tokens.len() as f64;
                    let sum: f64 = tokens.map(|token| x.values[token * width + column]).sum();
                    expected.push(sum / count);
                }
            }
            // A mean cancels: its terms' rounding counts against their size.
            let scale = (expected.len() as f64 / longest as f64).sqrt();
            trial.expect_scaled(&out, &expected, width, tolerance.buffer, scale);
        }
    }
    trial.report()
}

/// Tokens sampled by one step are the next one's input; where there was nothing to draw from,
/// token 0 stands in. Who began to read them before that step reads them as they were.
pub fn feed<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("feed", backend, tolerance);
    let (vocabulary, width, samples) = (90, 8, 5);
    let table = Tensor::random(&mut trial.random, DType::F32, &[vocabulary, width]);
    let weight = trial.backend.upload(&[table.view()]);
    let weight = trial.must(weight);
    let sampler = trial.backend.alloc_sampler(samples, vocabulary);
    let mut sampler = trial.must(sampler);
    for slot in 0..samples {
        trial
            .backend
            .admit(&mut sampler, slot, &SampleParams::greedy(), &[], 0);
    }
    let mut step = trial.step(&capacity(20, samples, 100));
    for case in 0..8 {
        let mut best: Vec<u32> = (0..samples)
            .map(|_| trial.random.below(vocabulary) as u32)
            .collect();
        let mut logits = trial.random.normals(samples * vocabulary);
        for (row, best) in best.iter().enumerate() {
            logits[row * vocabulary + *best as usize] = 50.0;
        }
        if case % 2 == 1 {
            logits[2 * vocabulary + 7] = f32::NAN;
            best[2] = 0;
        }
        trial.case(format!("tokens {best:?}"));
        let mut before = ragged(&mut trial.random, &[(3, 1); 5], vocabulary);
        before.outputs = (0..samples).collect();
        before.samples = (0..samples)
            .map(|slot| SampleRow {
                slot,
                position: 4,
                top: None,
                largest: None,
            })
            .collect();
        trial.backend.prepare(&mut step, &before);
        let mut logits = trial.input_of(&logits, vocabulary);
        let mut answers = trial.indices(&[], samples * SAMPLE_WORDS);
        trial.backend.sample(
            &mut answers,
            &mut logits.buffer,
            &mut sampler,
            &step,
            samples,
        );
        let mut told = vec![0; samples * SAMPLE_WORDS];
        let read = trial.backend.read_u32(&answers, &mut told);
        trial.must(read);
        let under_way = trial.backend.begin_read_u32(&answers, told.len());
        let under_way = trial.must(under_way);

        let mut after = ragged(
            &mut trial.random,
            &[(4, 1), (0, 6), (4, 1), (4, 1)],
            vocabulary,
        );
        let from = [trial.random.below(samples), 2, trial.random.below(samples)];
        after.from_step = vec![(8, from[2]), (0, from[0]), (7, from[1])];
        let mut tokens = after.tokens.clone();
        for (index, sample) in &after.from_step {
            tokens[*index] = best[*sample];
            after.tokens[*index] = GUARD_INDEX;
        }
        trial.backend.prepare(&mut step, &after);
        trial.backend.feed(&mut step, &answers);
        let mut out = trial.output(9, width);
        trial.backend.embed(&mut out, &weight, 1.0, &step, 9);
        let row = |token: &u32| &table.values[*token as usize * width..][..width];
        let expected: Vec<f64> = tokens.iter().flat_map(row).copied().collect();
        trial.expect(&out, &expected, width, tolerance.buffer);

        let overwritten = vec![GUARD_INDEX; told.len()];
        trial.backend.write_u32(&mut answers, &overwritten);
        // The second is begun before the first is waited for, and no step comes behind it.
        let second = trial.backend.begin_read_u32(&answers, told.len());
        let second = trial.must(second);
        trial.backend.write_u32(&mut answers, &told);
        for (reading, expected) in [(under_way, told), (second, overwritten)] {
            let read = trial.backend.end_read_u32(reading);
            if trial.must(read) != expected {
                trial.fail("a read under way is of what came after it began");
            }
        }
    }
    trial.report()
}

/// Reads back `n` rows of samples, of which each names `top` tokens, and checks the guards.
pub(super) fn read_samples<B: Backend>(
    trial: &mut Trial<'_, B>,
    buffer: &B::Buffer,
    rows: &StepRows,
) -> Vec<Sample> {
    let n = rows.samples.len();
    let words = trial.read_indices(buffer, n, SAMPLE_WORDS);
    let answers = words.chunks(SAMPLE_WORDS).zip(&rows.samples);
    answers
        .map(|(words, row)| Sample::decode(words, row.top))
        .collect()
}
