//! Steps larger than any before, and what becomes of those that were captured.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fornax_backend::{Activation, Backend, Element, StepShape, uniform};
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
    let size = [320, 1408];
    let length = |values: &mut dyn Iterator<Item = f32>| values.map(|v| v * v).sum::<f32>().sqrt();
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
        let layer = &mut Layer::new(cuda, size, 3072);
        layer.activation = activation;
        let few = layer.run(cuda, 7, DIFFERENT);
        for tokens in [3072, 2900] {
            let many = layer.run(cuda, 7, tokens);
            for (token, made) in many.chunks(size[0]).enumerate() {
                let expected = few.chunks(size[0]).nth(token % DIFFERENT).unwrap();
                let of_all = length(&mut expected.iter().copied());
                let error = length(&mut made.iter().zip(expected).map(|(a, b)| a - b));
                assert!(
                    error < 5e-3 * of_all,
                    "activation {kind}, token {token} of {tokens}: off by {error} of {of_all}"
                );
            }
        }
    }
}
