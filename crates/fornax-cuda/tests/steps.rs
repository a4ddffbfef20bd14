//! Steps larger than any before, and what becomes of those that were captured.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fornax_backend::{
    Activation, AttentionSpec, Backend, Element, Heads, KvShape, KvType, QkvSpec, Queries,
    RopeSpec, RopeStyle, RowSpan, StepCapacity, StepRows, StepShape, uniform,
};
use fornax_cuda::{Buffer, Cuda, CudaOptions, Weight};
use fornax_gguf::{DType, TensorView};

/// Of a token outside and inside of a feed-forward.
const SIZE: [usize; 2] = [64, 128];
/// Tokens that differ: what comes behind them are the same again.
const DIFFERENT: usize = 96;

fn numbers(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|index| uniform(seed, index) - 0.5).collect()
}

fn matrix(cuda: &mut Cuda, seed: u64, shape: [usize; 2]) -> Weight {
    let mut data = Vec::new();
    DType::BF16.encode(&numbers(seed, shape[0] * shape[1]), &mut data);
    let view = TensorView {
        name: "matrix",
        dtype: DType::BF16,
        shape: &shape,
        data: &data,
    };
    cuda.upload(&[view]).unwrap()
}

/// A feed-forward of some tokens as a step of its own.
struct Layer {
    size: [usize; 2],
    activation: Activation,
    gate_up: Weight,
    down: Weight,
    x: Buffer,
    projected: Buffer,
    activated: Buffer,
    out: Buffer,
}

impl Layer {
    /// With room for so many tokens.
    fn new(cuda: &mut Cuda, [width, hidden]: [usize; 2], tokens: usize) -> Self {
        let mut floats = |width: usize| cuda.alloc(Element::F32, tokens * width).unwrap();
        let (x, projected, activated, out) = (
            floats(width),
            floats(2 * hidden),
            floats(hidden),
            floats(width),
        );
        Self {
            size: [width, hidden],
            activation: Activation::Silu,
            gate_up: matrix(cuda, 1, [2 * hidden, width]),
            down: matrix(cuda, 2, [width, hidden]),
            x,
            projected,
            activated,
            out,
        }
    }

    /// What it makes of `tokens` tokens, every one the same as another [`DIFFERENT`] before it.
    fn run(&mut self, cuda: &mut Cuda, seed: u64, tokens: usize) -> Vec<f32> {
        let [width, hidden] = self.size;
        let different = numbers(seed, DIFFERENT * width);
        let x: Vec<f32> = different.into_iter().cycle().take(tokens * width).collect();
        cuda.write_f32(&mut self.x, &x);
        let shape = StepShape {
            rows: tokens,
            tokens,
            ..StepShape::default()
        };
        let step = |cuda: &mut Cuda| {
            let Self {
                projected,
                activated,
                ..
            } = self;
            cuda.linear(projected, &self.gate_up, None, &self.x, tokens);
            cuda.glu(activated, projected, self.activation, hidden, tokens);
            cuda.linear(&mut self.out, &self.down, None, activated, tokens);
        };
        cuda.record(&shape, step).unwrap();
        let mut out = vec![f32::NAN; tokens * width];
        cuda.read_f32(&self.out, &mut out).unwrap();
        out
    }
}

/// A grid has room for 65,535 blocks along all sides but the first.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn a_step_may_have_more_tokens_than_a_grid_is_high() {
    let tokens = 65_600;
    let cuda = &mut Cuda::new(CudaOptions::default()).unwrap();
    let out = Layer::new(cuda, SIZE, tokens).run(cuda, 3, tokens);
    let first = &out[..DIFFERENT * SIZE[0]];
    assert!(first.iter().any(|value| value.abs() > 0.1));
    for (index, (value, expected)) in out.iter().zip(first.iter().cycle()).enumerate() {
        let token = index / SIZE[0];
        assert!(
            (value - expected).abs() < 1e-3,
            "token {token}: {value} for {expected}"
        );
    }
}

/// Memory between kernels grows with the second step; the first was captured before, and runs again.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn a_captured_step_goes_on_when_a_larger_one_has_come() {
    let (few, many) = (300, 5000);
    let cuda = &mut Cuda::new(CudaOptions::default()).unwrap();
    let layer = &mut Layer::new(cuda, SIZE, many);
    let [first, second] = [4, 5].map(|seed| layer.run(cuda, seed, few));
    assert_ne!(first, second);
    for round in 1..4 {
        layer.run(cuda, 6, round * many / 3);
        assert!(layer.run(cuda, 4, few) == first, "round {round}");
        assert!(layer.run(cuda, 5, few) == second, "round {round}");
    }
}

/// With so many tokens gates, ups and their activation are one launch on some devices: whole tiles of 256, and a
/// last one whose second half has no tokens. Each token becomes what it becomes among few, by another kernel.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn many_tokens_become_what_few_do() {
    const TOKENS: usize = 2900;
    let size = [320, 1408];
    let activations = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::ClampedSwiglu {
            alpha: 1.702,
            limit: 7.0,
        },
    ];
    for (kind, activation) in activations.into_iter().enumerate() {
        let cuda = &mut Cuda::new(CudaOptions::default()).unwrap();
        let layer = &mut Layer::new(cuda, size, TOKENS);
        layer.activation = activation;
        let few = layer.run(cuda, 7, DIFFERENT);
        let many = layer.run(cuda, 7, TOKENS);
        for (token, made) in many.chunks(size[0]).enumerate() {
            let expected = few.chunks(size[0]).nth(token % DIFFERENT).unwrap();
            let off = distance(made, expected);
            assert!(off < 5e-3, "activation {kind}, token {token}: off by {off}");
        }
    }
}

/// How far numbers are from others, as a part of these.
fn distance(made: &[f32], expected: &[f32]) -> f32 {
    let length = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
    let error = length(&mut made.iter().zip(expected).map(|(a, b)| a - b));
    error / length(&mut expected.iter().copied())
}

/// From tokens to what attention makes of them: heads of Q for each of K, which are three, and what they are.
struct Prompts {
    group: usize,
    dim: usize,
    kept: KvType,
    style: RopeStyle,
    norms: bool,
    magnitude: f32,
}

/// Rows of a step: of which sequence each is, and how many more of its tokens it has.
type Rows = Vec<(usize, usize)>;

/// Inputs of a projection.
const WIDTH: usize = 320;
const KV_HEADS: usize = 3;
const PAGE: usize = 32;

impl Prompts {
    /// Attends step by step. What becomes of each sequence's tokens.
    fn run(&self, steps: &[Rows]) -> Vec<Vec<f32>> {
        let cuda = &mut Cuda::new(CudaOptions::default()).unwrap();
        let (heads, dim) = ((self.group + 2) * KV_HEADS, self.dim);
        let stride = heads * dim;
        let at = |first: usize, count: usize| Heads {
            stride,
            offset: first * dim,
            count,
            dim,
        };
        let q = at(0, self.group * KV_HEADS);
        let [k, v] = [q.count, q.count + KV_HEADS].map(|first| at(first, KV_HEADS));
        let mut vector = |seed: u64, values: Vec<f32>| {
            let mut data = Vec::new();
            DType::F32.encode(&values, &mut data);
            let (name, shape) = (format!("{seed}"), [values.len()]);
            cuda.upload(&[TensorView {
                name: &name,
                dtype: DType::F32,
                shape: &shape,
                data: &data,
            }])
            .unwrap()
        };
        let norms = [1, 2].map(|seed| {
            vector(
                seed,
                numbers(seed, dim).iter().map(|value| 1.5 + value).collect(),
            )
        });
        let frequencies = vector(
            3,
            (0..dim / 2).map(|pair| 0.8_f32.powi(pair as i32)).collect(),
        );
        let projection = matrix(cuda, 4, [stride, WIDTH]);

        let sequences = 1 + steps.iter().flatten().map(|row| row.0).max().unwrap();
        let mut lengths = vec![0; sequences];
        steps
            .iter()
            .flatten()
            .for_each(|(sequence, len)| lengths[*sequence] += len);
        let most: usize = steps
            .iter()
            .map(|rows| rows.iter().map(|row| row.1).sum())
            .max()
            .unwrap();
        let pages = lengths.iter().map(|len| len.div_ceil(PAGE)).sum();
        let shape = KvShape {
            pages,
            page_size: PAGE,
            kv_heads: KV_HEADS,
            k_dim: dim,
            v_dim: dim,
            element: self.kept,
        };
        let mut kv = cuda.alloc_kv(&shape).unwrap();
        let capacity = StepCapacity {
            rows: sequences,
            tokens: most,
            groups: vec![(PAGE, pages)],
        };
        let mut step = cuda.alloc_step(&capacity).unwrap();
        let mut floats = |width: usize| cuda.alloc(Element::F32, most * width).unwrap();
        let (mut x, mut qkv, mut out) = (floats(WIDTH), floats(stride), floats(q.count * dim));
        // Pages in no order: the last ones first.
        let mut free = (0..pages as u32).rev();
        let tables: Vec<Vec<u32>> = lengths
            .iter()
            .map(|len| free.by_ref().take(len.div_ceil(PAGE)).collect())
            .collect();
        let width = q.count * dim;
        let mut made = vec![Vec::new(); sequences];
        for step_rows in steps {
            let (mut rows, mut values) = (StepRows::default(), Vec::new());
            for &(sequence, len) in step_rows {
                let (start, cached) = (values.len() / WIDTH, made[sequence].len() / width);
                rows.rows.push(RowSpan { start, len, cached });
                let own = numbers(10 + sequence as u64, (cached + len) * WIDTH);
                values.extend_from_slice(&own[cached * WIDTH..]);
            }
            let n = values.len() / WIDTH;
            rows.tokens = vec![0; n];
            let used = step_rows.iter().map(|row| tables[row.0].clone());
            rows.tables = vec![used.collect()];
            cuda.prepare(&mut step, &rows);
            cuda.write_f32(&mut x, &values);
            let turn = QkvSpec {
                group: 0,
                q,
                k,
                v,
                norms: self.norms.then_some((&norms[0], &norms[1])),
                eps: 1e-6,
                rope: RopeSpec {
                    style: self.style,
                    rotary: dim,
                    frequencies: &frequencies,
                    magnitude: self.magnitude,
                },
            };
            let attention = AttentionSpec {
                group: 0,
                queries: Queries::All,
                q,
                kv_heads: KV_HEADS,
                v_dim: dim,
                scale: 1.0 / (dim as f32).sqrt(),
                window: None,
                soft_cap: None,
                sinks: None,
            };
            let done = cuda.record(&rows.shape(), |cuda| {
                cuda.linear(&mut qkv, &projection, None, &x, n);
                cuda.qk_norm_rope_store(&mut qkv, &mut kv, &step, turn, n);
                cuda.attention(&mut out, &qkv, &kv, &step, attention, n);
            });
            done.unwrap();
            let mut own = vec![f32::NAN; n * width];
            cuda.read_f32(&out, &mut own).unwrap();
            for (row, (sequence, len)) in rows.rows.iter().zip(step_rows) {
                made[*sequence].extend_from_slice(&own[row.start * width..][..len * width]);
            }
        }
        made
    }

    /// Whether each token becomes the same by some steps as by others.
    fn check(&self, steps: &[Rows], others: &[Rows]) {
        let Self { kept, style, .. } = self;
        let width = self.group * KV_HEADS * self.dim;
        let expected = self.run(others);
        for (sequence, (made, expected)) in self.run(steps).iter().zip(&expected).enumerate() {
            assert_eq!(made.len(), expected.len());
            let tokens = made.chunks(width).zip(expected.chunks(width));
            for (token, (made, expected)) in tokens.enumerate() {
                let off = distance(made, expected);
                assert!(
                    off < 2e-2,
                    "{kept:?}, {style:?}, token {token} of {sequence}: off by {off}"
                );
            }
        }
    }
}

/// With so many tokens heads are normed, turned and kept by the product that makes them, on some devices: tiles that
/// heads of two kinds share, a last one that is half empty, and tokens that do not fill theirs.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn many_prompts_see_what_few_do() {
    let (halves, pairs) = (RopeStyle::HalfSplit, RopeStyle::AdjacentPairs);
    check_prompts(
        [(KvType::Bf16, halves, true), (KvType::Q8_0, pairs, false)].map(|(kept, style, norms)| {
            Prompts {
                group: 3,
                dim: 128,
                kept,
                style,
                norms,
                magnitude: if norms { 1.0 } else { 1.25 },
            }
        }),
    );
}

/// The same with heads that are as wide as what is written at once.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn many_prompts_see_what_few_do_with_small_heads() {
    let (halves, pairs) = (RopeStyle::HalfSplit, RopeStyle::AdjacentPairs);
    check_prompts(
        [(KvType::F16, pairs), (KvType::Q8_0, halves)].map(|(kept, style)| Prompts {
            group: 8,
            dim: 64,
            kept,
            style,
            norms: true,
            magnitude: 1.0,
        }),
    );
}

fn check_prompts(all: [Prompts; 2]) {
    // And some of one token, which are attended to apart.
    let mut lengths: Vec<usize> = (0..42).map(|index| 20 + 13 * index % 53).collect();
    (1..10).for_each(|index| lengths.insert(4 * index, 1));
    let tokens: usize = lengths.iter().sum();
    assert!((1970..2048).contains(&tokens), "{tokens}");
    let rows: Vec<_> = lengths.into_iter().enumerate().collect();
    let few: Vec<_> = rows.chunks(5).map(<[_]>::to_vec).collect();
    let most = few
        .iter()
        .map(|rows| rows.iter().map(|row| row.1).sum::<usize>());
    assert!(most.max() <= Some(256));
    for prompts in all {
        prompts.check(std::slice::from_ref(&rows), &few);
    }
}

/// Answers of many sequences at once, behind what they have of their prompts, on pages that some devices bring near
/// before: blocks have several heads, of which some are of a step and others of many.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn many_answers_see_what_one_does() {
    const SEQUENCES: usize = 16;
    let prompts = (0..SEQUENCES).map(|sequence| (sequence, 1 + 29 * sequence % 150));
    let prompts: Rows = prompts.collect();
    let answers: Rows = (0..SEQUENCES).map(|sequence| (sequence, 1)).collect();
    let many = [prompts.clone(), answers.clone(), answers.clone()];
    let alone = answers.iter().chain(&answers).map(|answer| vec![*answer]);
    let one: Vec<_> = [prompts].into_iter().chain(alone).collect();
    for (kept, norms) in [(KvType::Bf16, true), (KvType::Q8_0, false)] {
        let attended = Prompts {
            group: 2,
            dim: 128,
            kept,
            style: RopeStyle::HalfSplit,
            norms,
            magnitude: 1.0,
        };
        attended.check(&many, &one);
    }
}
