//! The check of record and replay: a whole small layer, recorded by shape and run again with
//! other inputs, against the same operations run at once.

use fornax_gguf::DType;

use super::tensors::Tensor;
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{
    Activation, AttentionSpec, Backend, Element, Heads, KvShape, KvType, QkvSpec, Queries,
    RopeSpec, RopeStyle, RowSpan, SAMPLE_WORDS, SampleParams, SampleRow, StepCapacity, StepRows,
    StepShape,
};

const VOCABULARY: usize = 50;
const WIDTH: usize = 32;
const HIDDEN: usize = 64;
const DIM: usize = 8;
const TOKENS: usize = 12;
const ROWS: usize = 3;
const PAGE_SIZE: usize = 4;
const PAGES: usize = 32;
const EPS: f32 = 1e-6;

/// Q, K and V of a fused row: 4 query heads, 2 KV heads.
const HEADS: [Heads; 3] = [heads(0, 4), heads(4, 2), heads(6, 2)];

const fn heads(first: usize, count: usize) -> Heads {
    Heads {
        stride: 8 * DIM,
        offset: first * DIM,
        count,
        dim: DIM,
    }
}

/// New tokens of each row, step by step: three shapes, each more than once.
const STEPS: [[usize; ROWS]; 8] = [
    [3, 1, 8],
    [1, 1, 1],
    [1, 1, 1],
    [2, 1, 1],
    [1, 1, 1],
    [3, 1, 8],
    [1, 1, 2],
    [1, 1, 1],
];

/// Steps of equal shape with other tokens, positions, pages and fed tokens, recorded and at once.
pub fn record<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("record", backend, tolerance);
    let weights = Weights::new(&mut trial);
    let mut recorded = Layer::new(&mut trial);
    let mut at_once = Layer::new(&mut trial);
    let mut script = Script::new(&mut trial);
    for (index, lens) in STEPS.iter().enumerate() {
        let rows = script.next(&mut trial, lens);
        let shape = rows.shape();
        trial.case(format!("step {index} of {lens:?} tokens"));
        trial.backend.prepare(&mut at_once.step, &rows);
        at_once.operations(trial.backend, &weights, &shape);
        trial.backend.prepare(&mut recorded.step, &rows);
        let done = trial.backend.record(&shape, |backend| {
            recorded.operations(backend, &weights, &shape);
        });
        trial.must(done);
        let (tokens, hidden) = recorded.answer(&mut trial);
        let (expected_tokens, expected) = at_once.answer(&mut trial);
        if tokens != expected_tokens {
            trial.fail(&format!("tokens {tokens:?}, at once {expected_tokens:?}"));
        }
        let squares = |values: &[f32]| values.iter().map(|x| x * x).sum::<f32>();
        let differences: Vec<f32> = hidden.iter().zip(&expected).map(|(a, b)| a - b).collect();
        let error = (squares(&differences) / squares(&expected)).sqrt();
        trial.judge(f64::from(error), tolerance.attention);
    }
    trial.report()
}

/// The weights of one layer, an embedding and a head.
struct Weights<B: Backend> {
    embedding: B::Weight,
    norm: B::Weight,
    qkv: B::Weight,
    head_norm: B::Weight,
    frequencies: B::Weight,
    attention_out: B::Weight,
    gate_up: B::Weight,
    down: B::Weight,
}

impl<B: Backend> Weights<B> {
    fn new(trial: &mut Trial<'_, B>) -> Self {
        let [q, _, v] = HEADS;
        let mut weight = |shape: &[usize]| {
            let tensor = Tensor::random(&mut trial.random, DType::F32, shape);
            let weight = trial.backend.upload(&[tensor.view()]);
            trial.must(weight)
        };
        Self {
            embedding: weight(&[VOCABULARY, WIDTH]),
            norm: weight(&[WIDTH]),
            qkv: weight(&[q.stride, WIDTH]),
            head_norm: weight(&[DIM]),
            frequencies: weight(&[DIM / 2]),
            attention_out: weight(&[WIDTH, q.count * v.dim]),
            gate_up: weight(&[2 * HIDDEN, WIDTH]),
            down: weight(&[WIDTH, HIDDEN]),
        }
    }
}

/// Everything that a step writes.
struct Layer<B: Backend> {
    step: B::Step,
    kv: B::Kv,
    sampler: B::Sampler,
    residual: B::Buffer,
    normed: B::Buffer,
    qkv: B::Buffer,
    attended: B::Buffer,
    branch: B::Buffer,
    projected: B::Buffer,
    activated: B::Buffer,
    hidden: B::Buffer,
    logits: B::Buffer,
    samples: B::Buffer,
}

impl<B: Backend> Layer<B> {
    fn new(trial: &mut Trial<'_, B>) -> Self {
        let [q, k, v] = HEADS;
        let step = trial.step(&StepCapacity {
            rows: ROWS,
            tokens: TOKENS,
            groups: vec![(PAGE_SIZE, PAGES)],
        });
        let kv = trial.backend.alloc_kv(&KvShape {
            pages: PAGES,
            page_size: PAGE_SIZE,
            kv_heads: k.count,
            k_dim: DIM,
            v_dim: DIM,
            element: KvType::F32,
        });
        let sampler = trial.backend.alloc_sampler(ROWS, VOCABULARY);
        let mut sampler = trial.must(sampler);
        for slot in 0..ROWS {
            let params = SampleParams {
                temperature: slot as f32,
                frequency_penalty: 0.5,
                ..SampleParams::greedy()
            };
            trial.backend.admit(&mut sampler, slot, &params, &[], 0);
        }
        let mut buffer = |element: Element, len: usize| {
            let buffer = trial.backend.alloc(element, len);
            trial.must(buffer)
        };
        Self {
            residual: buffer(Element::F32, TOKENS * WIDTH),
            normed: buffer(Element::F32, TOKENS * WIDTH),
            qkv: buffer(Element::F32, TOKENS * q.stride),
            attended: buffer(Element::F32, TOKENS * q.count * v.dim),
            branch: buffer(Element::F32, TOKENS * WIDTH),
            projected: buffer(Element::F32, TOKENS * 2 * HIDDEN),
            activated: buffer(Element::F32, TOKENS * HIDDEN),
            hidden: buffer(Element::F32, ROWS * WIDTH),
            logits: buffer(Element::F32, ROWS * VOCABULARY),
            samples: buffer(Element::U32, ROWS * SAMPLE_WORDS),
            step,
            kv: trial.must(kv),
            sampler,
        }
    }

    /// One step, from fed tokens to sampled ones.
    fn operations(&mut self, backend: &mut B, weights: &Weights<B>, shape: &StepShape) {
        let n = shape.tokens;
        backend.feed(&mut self.step, &self.samples);
        backend.embed(&mut self.residual, &weights.embedding, 1.0, &self.step, n);
        backend.rms_norm(&mut self.normed, &self.residual, &weights.norm, EPS, n);
        backend.linear(&mut self.qkv, &weights.qkv, None, &self.normed, n);
        self.attend(backend, weights, n);
        backend.linear(
            &mut self.branch,
            &weights.attention_out,
            None,
            &self.attended,
            n,
        );
        backend.add_rms_norm(
            &mut self.normed,
            &mut self.residual,
            &self.branch,
            &weights.norm,
            EPS,
            WIDTH,
            n,
        );
        backend.mlp(
            &mut self.branch,
            &mut self.projected,
            &mut self.activated,
            &self.normed,
            &weights.gate_up,
            &weights.down,
            Activation::Silu,
            HIDDEN,
            n,
        );
        backend.add(&mut self.residual, &self.branch, WIDTH, n);
        let n = shape.outputs;
        backend.gather(&mut self.hidden, &self.residual, WIDTH, &self.step, n);
        backend.linear(&mut self.logits, &weights.embedding, None, &self.hidden, n);
        let (samples, logits) = (&mut self.samples, &mut self.logits);
        backend.sample(
            samples,
            logits,
            &mut self.sampler,
            &self.step,
            shape.samples,
        );
    }

    fn attend(&mut self, backend: &mut B, weights: &Weights<B>, n: usize) {
        let [q, k, v] = HEADS;
        let spec = QkvSpec {
            group: 0,
            q,
            k,
            v,
            norms: Some((&weights.head_norm, &weights.head_norm)),
            eps: EPS,
            rope: RopeSpec {
                style: RopeStyle::HalfSplit,
                rotary: DIM,
                frequencies: &weights.frequencies,
                magnitude: 1.0,
            },
        };
        backend.qk_norm_rope_store(&mut self.qkv, &mut self.kv, &self.step, spec, n);
        let spec = AttentionSpec {
            group: 0,
            queries: Queries::All,
            q,
            kv_heads: k.count,
            v_dim: v.dim,
            scale: 0.3,
            window: None,
            soft_cap: None,
            sinks: None,
        };
        backend.attention(&mut self.attended, &self.qkv, &self.kv, &self.step, spec, n);
    }

    /// The tokens drawn, and the hidden states they came from.
    fn answer(&self, trial: &mut Trial<'_, B>) -> (Vec<u32>, Vec<f32>) {
        let mut hidden = vec![0.0; ROWS * WIDTH];
        let read = trial.backend.read_f32(&self.hidden, &mut hidden);
        trial.must(read);
        let mut words = vec![0; ROWS * SAMPLE_WORDS];
        let read = trial.backend.read_u32(&self.samples, &mut words);
        trial.must(read);
        let tokens = words.chunks(SAMPLE_WORDS).map(|words| words[0]).collect();
        (tokens, hidden)
    }
}

/// Three sequences that grow step by step; single tokens after the first step are fed.
struct Script {
    /// Pages and tokens of each sequence.
    sequences: Vec<(Vec<u32>, usize)>,
    /// Pages that nobody has.
    free: Vec<u32>,
}

impl Script {
    fn new<B: Backend>(trial: &mut Trial<'_, B>) -> Self {
        let mut free: Vec<u32> = (0..PAGES as u32).collect();
        trial.random.shuffle(&mut free);
        Self {
            sequences: vec![(Vec::new(), 0); ROWS],
            free,
        }
    }

    fn next<B: Backend>(&mut self, trial: &mut Trial<'_, B>, lens: &[usize; ROWS]) -> StepRows {
        let mut rows = StepRows {
            tables: vec![Vec::new()],
            ..StepRows::default()
        };
        for (slot, (&len, (table, cached))) in lens.iter().zip(&mut self.sequences).enumerate() {
            let start = rows.tokens.len();
            if len == 1 && *cached > 0 {
                rows.from_step.push((start, slot));
            }
            rows.rows.push(RowSpan {
                start,
                len,
                cached: *cached,
            });
            let ids = (0..len).map(|_| trial.random.below(VOCABULARY) as u32);
            rows.tokens.extend(ids);
            *cached += len;
            while table.len() * PAGE_SIZE < *cached {
                table.push(self.free.pop().expect("invariant: pages for the script"));
            }
            rows.tables[0].push(table.clone());
            rows.outputs.push(start + len - 1);
            rows.samples.push(SampleRow {
                slot,
                position: *cached,
                top: None,
                largest: None,
            });
        }
        rows
    }
}
