//! Checks of the sampling chain against its naive twin, over steps that count their own tokens.

use fornax_gguf::DType;

use super::dense::product_tolerance;
use super::oracle::{self, sampling};
use super::output::read_samples;
use super::random::Random;
use super::steps::{capacity, ragged};
use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::sampling::uniform;
use crate::{Backend, MAX_TOP, SAMPLE_WORDS, Sample, SampleParams, SampleRow, StepRows};

/// What a slot was told, and every token of its sequence.
struct Told {
    params: SampleParams,
    tokens: Vec<u32>,
    prompt: usize,
}

/// Every stage alone and all of them together, ties, masked and broken rows, slots in any order.
/// Each drawn token counts in its slot, for the steps after it.
pub fn sample<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("sample", backend, tolerance);
    for (vocabulary, rounds) in [(1, 2), (2, 4), (60, 40), (1000, 12), (4097, 4)] {
        for _ in 0..rounds {
            check_slots(&mut trial, vocabulary);
        }
    }
    check_draw_of_zero(&mut trial);
    trial.report()
}

/// A seed whose uniform number at position 0 is zero: a draw is the very first token that has a weight.
const SEED_OF_ZERO: u64 = 33_897_418;

/// Tokens in front that weigh e⁻²⁰⁰ each, which is nothing in single precision and something in double.
fn check_draw_of_zero<B: Backend>(trial: &mut Trial<'_, B>) {
    assert!(
        uniform(SEED_OF_ZERO, 0) == 0.0,
        "invariant: the seed is one of zero"
    );
    let vocabulary = 4097;
    let params = SampleParams {
        temperature: 0.1,
        seed: SEED_OF_ZERO,
        ..SampleParams::greedy()
    };
    trial.case(format!("a draw of zero, {params:?}"));
    let mut logits = trial.random.normals(vocabulary);
    logits[..2000].iter_mut().for_each(|logit| *logit -= 25.0);
    let sampler = trial.backend.alloc_sampler(1, vocabulary);
    let mut sampler = trial.must(sampler);
    trial.backend.admit(&mut sampler, 0, &params, &[], 0);
    let mut rows = ragged(&mut trial.random, &[(0, 1)], vocabulary);
    rows.outputs = vec![0];
    rows.samples = vec![SampleRow {
        slot: 0,
        position: 0,
        top: Some(0),
        largest: None,
    }];
    let mut step = trial.step(&capacity(1, 1, 200));
    let (held, answers) = draw(trial, &mut step, &rows, &logits, &mut sampler);
    let told = Told {
        params,
        tokens: Vec::new(),
        prompt: 0,
    };
    check_answer(trial, &held, &told, &rows.samples[0], &answers[0]);
}

/// What a step's rows draw from these logits, and before that the logits as the device holds them.
fn draw<B: Backend>(
    trial: &mut Trial<'_, B>,
    step: &mut B::Step,
    rows: &StepRows,
    logits: &[f32],
    sampler: &mut B::Sampler,
) -> (Vec<f32>, Vec<Sample>) {
    let n = rows.samples.len();
    trial.backend.prepare(step, rows);
    let mut x = trial.input_of(logits, logits.len() / n);
    let mut answers = trial.index_output(n, SAMPLE_WORDS);
    trial
        .backend
        .sample(&mut answers, &mut x.buffer, sampler, step, n);
    let answers = read_samples(trial, &answers, rows);
    (x.values.iter().map(|x| *x as f32).collect(), answers)
}

/// Products with a head, of which more tokens than a few ask for draws right behind them: of fewer tiles of rows
/// than a device has multiprocessors and of more, with a part of one at the end, and a few tokens that are broken.
pub fn head<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("head", backend, tolerance);
    for (turn, dtype) in [DType::BF16, DType::Q8_0, DType::Q4_0]
        .into_iter()
        .enumerate()
    {
        for (n, [rows, cols]) in [
            (9, [16_928, 64]),
            (20, [1056, 192]),
            (150, [1056, 128]),
            (270, [1056, 64]),
        ] {
            // A step is known by its shape, so that no two may be alike.
            check_head(&mut trial, dtype, [rows, cols], n + turn);
        }
    }
    trial.report()
}

/// Times a weight of 2 it is infinite.
const TOO_LARGE: f32 = 2e38;

fn check_head<B: Backend>(
    trial: &mut Trial<'_, B>,
    dtype: DType,
    [vocabulary, cols]: [usize; 2],
    n: usize,
) {
    trial.case(format!("{dtype} [{vocabulary}, {cols}], {n} rows"));
    let matrix = Tensor::random(&mut trial.random, dtype, &[vocabulary, cols]);
    let weight = trial.backend.upload(&[matrix.view()]);
    let mut weight = trial.must(weight);
    let made = trial.backend.sketch(&mut weight);
    trial.must(made);
    let x = trial.input(n, cols);
    let mut out = trial.output(n, vocabulary);
    trial.backend.linear(&mut out, &weight, None, &x.buffer, n);
    let expected = oracle::linear(&x.values, &matrix.values, None, cols);
    let scale = oracle::natural_norm(&x.values, &matrix.values, cols);
    let allowed = product_tolerance(trial.tolerance, dtype);
    trial.expect_scaled(&out, &expected, vocabulary, allowed, scale);

    // All tokens but a few that are scored draw, right behind their product: of its logits those may be missing
    // that no draw reads. One token is broken all over.
    let scored = n / 5;
    let drawn = n - scored;
    let (mut sampler, mut told) = told_slots(trial, drawn, vocabulary);
    for (slot, told) in told.iter_mut().enumerate().filter(|(slot, _)| slot % 4 > 0) {
        let temperature = trial.random.pick(&[0.0, 1e-39, 1e-8, 0.05, 0.7, 1.0]);
        told.params = SampleParams {
            temperature,
            seed: trial.random.word(),
            ..SampleParams::greedy()
        };
        let Told {
            params,
            tokens,
            prompt,
        } = told;
        trial
            .backend
            .admit(&mut sampler, slot, params, tokens, *prompt);
    }
    let mut rows = ragged(&mut trial.random, &vec![(0, 1); n], vocabulary);
    rows.outputs = (0..n).collect();
    rows.samples = (0..drawn)
        .map(|slot| SampleRow {
            slot,
            position: told[slot].tokens.len(),
            top: trial.random.pick(&[None, None, Some(0), Some(0), Some(3)]),
            largest: None,
        })
        .collect();
    // Logits as large as a model's: one that a draw makes once more is off by what its sums are rounded by.
    let size = 2.0 / (cols as f64).sqrt();
    let mut x: Vec<f32> = x.values.iter().map(|x| (x * size) as f32).collect();
    x[cols + 3] = f32::NAN;
    // And two whose logits are in part too large, or no numbers where two such meet, among others that are sound.
    x[2 * cols + 3] = TOO_LARGE;
    x[3 * cols + 3..][..2].fill(TOO_LARGE);
    let x = trial.input_of(&x, cols);
    let read = |trial: &mut Trial<'_, B>, out: &B::Buffer| {
        let mut values = vec![0.0; n * vocabulary];
        let read = trial.backend.read_f32(out, &mut values);
        trial.must(read);
        values
    };
    let mut out = trial.output(n, vocabulary);
    trial.backend.linear(&mut out, &weight, None, &x.buffer, n);
    let logits = read(trial, &out);
    let mut out = trial.output(n, vocabulary);
    let mut answers = trial.index_output(drawn, SAMPLE_WORDS);
    let mut step = trial.step(&capacity(n, n, 200));
    trial.backend.prepare(&mut step, &rows);
    let done = trial.backend.record(&rows.shape(), |backend| {
        backend.linear(&mut out, &weight, None, &x.buffer, n);
        backend.sample(&mut answers, &mut out, &mut sampler, &step, drawn);
    });
    trial.must(done);
    let answers = read_samples(trial, &answers, &rows);
    for ((row, logits), answer) in rows
        .samples
        .iter()
        .zip(logits.chunks(vocabulary))
        .zip(answers)
    {
        let told = &told[row.slot];
        trial.case(format!(
            "{dtype} [{vocabulary}, {cols}], {n} rows, {row:?}, {:?}",
            told.params
        ));
        check_answer(trial, logits, told, row, &answer);
    }
    let behind = drawn * vocabulary;
    if read(trial, &out)[behind..] != logits[behind..] {
        trial.fail("the logits of a token without a draw are not those of the product alone");
    }
}

/// A sampler of so many slots, each told anything.
fn told_slots<B: Backend>(
    trial: &mut Trial<'_, B>,
    slots: usize,
    vocabulary: usize,
) -> (B::Sampler, Vec<Told>) {
    let sampler = trial.backend.alloc_sampler(slots, vocabulary);
    let mut sampler = trial.must(sampler);
    let mut told = Vec::new();
    for slot in 0..slots {
        let random = &mut trial.random;
        let params = any_params(random, vocabulary);
        let len = random.below(40);
        let tokens: Vec<u32> = (0..len).map(|_| random.below(vocabulary) as u32).collect();
        let prompt = random.below(len + 1);
        trial
            .backend
            .admit(&mut sampler, slot, &params, &tokens, prompt);
        told.push(Told {
            params,
            tokens,
            prompt,
        });
    }
    (sampler, told)
}

fn check_slots<B: Backend>(trial: &mut Trial<'_, B>, vocabulary: usize) {
    let slots = 6;
    let (mut sampler, mut told) = told_slots(trial, slots, vocabulary);
    let mut step = trial.step(&capacity(slots, slots, 200));
    for _ in 0..5 {
        let rows = any_rows(&mut trial.random, &told, vocabulary);
        let n = rows.samples.len();
        let random = &mut trial.random;
        let logits: Vec<f32> = (0..n)
            .flat_map(|_| any_logits(random, vocabulary))
            .collect();
        let (held, answers) = draw(trial, &mut step, &rows, &logits, &mut sampler);
        for ((row, logits), answer) in rows
            .samples
            .iter()
            .zip(held.chunks(vocabulary))
            .zip(answers)
        {
            let told = &mut told[row.slot];
            trial.case(format!(
                "{vocabulary} tokens, position {}, {} seen, {:?}",
                row.position,
                told.tokens.len(),
                told.params
            ));
            check_answer(trial, logits, told, row, &answer);
            if let Sample::Token { token, .. } = answer {
                told.tokens.push(token);
            }
        }
    }
}

fn check_answer<B: Backend>(
    trial: &mut Trial<'_, B>,
    logits: &[f32],
    told: &Told,
    row: &SampleRow,
    answer: &Sample,
) {
    let Told {
        params,
        tokens,
        prompt,
    } = told;
    let expected = sampling::sample(logits, params, tokens, *prompt, row.position, row.top);
    let (token, logprob, top) = match (answer, expected.token) {
        (Sample::NotFinite, None) => return,
        (
            Sample::Token {
                token,
                logprob,
                top,
            },
            Some(_),
        ) => (*token, *logprob, top),
        _ => trial.fail(&format!("{answer:?}, expected {:?}", expected.token)),
    };
    if Some(token) != expected.token && expected.margin > trial.tolerance.draw {
        let Draw {
            token: other,
            margin,
        } = Draw::of(&expected);
        trial.fail(&format!("drew {token}, expected {other} by {margin:.1e}"));
    }
    let names: Vec<u32> = top.iter().map(|(token, _)| *token).collect();
    if names != expected.top {
        trial.fail(&format!("names {names:?}, expected {:?}", expected.top));
    }
    if logprob.is_some() != row.top.is_some() {
        trial.fail(&format!(
            "tells {logprob:?} of a row that wants {:?}",
            row.top
        ));
    }
    let of_drawn = logprob.map(|logprob| (token, logprob));
    for (token, logprob) in top.iter().chain(&of_drawn) {
        let error = (f64::from(*logprob) - expected.logprobs[*token as usize]).abs();
        trial.judge(error, trial.tolerance.logprob);
        if *logprob > 0.0 {
            trial.fail(&format!(
                "{token} is said to be more likely than certain: {logprob:e}"
            ));
        }
    }
}

/// What a failure says of the expected draw.
struct Draw {
    token: u32,
    margin: f64,
}

impl Draw {
    fn of(draw: &sampling::Draw) -> Self {
        Self {
            token: draw.token.unwrap_or(u32::MAX),
            margin: draw.margin,
        }
    }
}

/// Some of the slots in any order, each sampled once.
fn any_rows(random: &mut Random, told: &[Told], vocabulary: usize) -> StepRows {
    let mut slots: Vec<usize> = (0..told.len()).collect();
    random.shuffle(&mut slots);
    slots.truncate(1 + random.below(told.len()));
    let mut rows = ragged(random, &vec![(0, 1); slots.len()], vocabulary);
    rows.outputs = (0..slots.len()).collect();
    rows.samples = slots
        .into_iter()
        .map(|slot| SampleRow {
            slot,
            position: told[slot].tokens.len(),
            top: random.pick(&[None, Some(0), Some(0), Some(1), Some(5), Some(MAX_TOP)]),
            largest: None,
        })
        .collect();
    rows
}

/// Any stages on, each about half of the time; sometimes one alone.
pub(crate) fn any_params(random: &mut Random, vocabulary: usize) -> SampleParams {
    let alone = random.once_in(2).then(|| random.below(8));
    let mut on = |stage: usize| match alone {
        Some(alone) => alone == stage,
        None => random.once_in(2),
    };
    let on: Vec<bool> = (0..8).map(&mut on).collect();
    let neutral = SampleParams::greedy();
    let mut pick = |stage: usize, values: &[f32], neutral: f32| match on[stage] {
        true => random.pick(values),
        false => neutral,
    };
    let mut params = SampleParams {
        repetition_penalty: pick(1, &[1.3, 0.7, 2.0], 1.0),
        presence_penalty: pick(2, &[0.5, -1.0, 2.0], 0.0),
        frequency_penalty: pick(3, &[0.25, -0.5, 2.0], 0.0),
        top_k: pick(4, &[1.0, 2.0, 7.0, 40.0, 5000.0], 0.0) as usize,
        typical_p: pick(5, &[0.1, 0.5, 0.9, 0.999], 1.0),
        top_p: pick(6, &[0.01, 0.3, 0.8, 0.95, 0.9999], 1.0),
        min_p: pick(7, &[0.01, 0.1, 0.5, 1.0], 0.0),
        ..neutral
    };
    params.temperature = random.pick(&[0.0, 0.05, 0.7, 1.0, 3.0]);
    params.seed = random.word();
    if on[0] {
        let biased = random.below(vocabulary + 1).min(5);
        let bias = |_| (random.below(vocabulary) as u32, 3.0 * random.normal());
        params.logit_bias = (0..biased).map(bias).collect();
    }
    params
}

/// Peaked, flat and tied rows; sometimes with tokens masked out, rarely with nothing to draw from.
pub(crate) fn any_logits(random: &mut Random, vocabulary: usize) -> Vec<f32> {
    let spread = random.pick(&[0.1, 1.0, 4.0]);
    let mut logits: Vec<f32> = random
        .normals(vocabulary)
        .iter()
        .map(|x| x * spread)
        .collect();
    if random.once_in(3) {
        let step = random.pick(&[0.25, 1.0, 8.0]);
        logits
            .iter_mut()
            .for_each(|x| *x = (*x / step).round() * step);
    }
    if random.once_in(4) {
        let kept = random.below(vocabulary);
        for (token, logit) in logits.iter_mut().enumerate() {
            if token != kept && random.once_in(2) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if random.once_in(20) {
        logits[random.below(vocabulary)] = random.pick(&[f32::NAN, f32::INFINITY]);
    }
    if random.once_in(40) {
        logits.fill(f32::NEG_INFINITY);
    }
    logits
}
