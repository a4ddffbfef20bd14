//! Steps larger than any before, and what becomes of those that were captured.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fornax_backend::{Activation, Backend, Element, StepShape, uniform};
use fornax_cuda::{Buffer, Cuda, CudaOptions, Weight};
use fornax_gguf::{DType, TensorView};

const WIDTH: usize = 64;
const HIDDEN: usize = 128;
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
    gate_up: Weight,
    down: Weight,
    x: Buffer,
    projected: Buffer,
    activated: Buffer,
    out: Buffer,
}

impl Layer {
    /// With room for so many tokens.
    fn new(cuda: &mut Cuda, tokens: usize) -> Self {
        let mut floats = |width: usize| cuda.alloc(Element::F32, tokens * width).unwrap();
        let (x, projected, activated, out) = (
            floats(WIDTH),
            floats(2 * HIDDEN),
            floats(HIDDEN),
            floats(WIDTH),
        );
        Self {
            gate_up: matrix(cuda, 1, [2 * HIDDEN, WIDTH]),
            down: matrix(cuda, 2, [WIDTH, HIDDEN]),
            x,
            projected,
            activated,
            out,
        }
    }

    /// What it makes of `tokens` tokens, every one the same as another [`DIFFERENT`] before it.
    fn run(&mut self, cuda: &mut Cuda, seed: u64, tokens: usize) -> Vec<f32> {
        let different = numbers(seed, DIFFERENT * WIDTH);
        let x: Vec<f32> = different.into_iter().cycle().take(tokens * WIDTH).collect();
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
            cuda.glu(activated, projected, Activation::Silu, HIDDEN, tokens);
            cuda.linear(&mut self.out, &self.down, None, activated, tokens);
        };
        cuda.record(&shape, step).unwrap();
        let mut out = vec![f32::NAN; tokens * WIDTH];
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
    let out = Layer::new(cuda, tokens).run(cuda, 3, tokens);
    let first = &out[..DIFFERENT * WIDTH];
    assert!(first.iter().any(|value| value.abs() > 0.1));
    for (index, (value, expected)) in out.iter().zip(first.iter().cycle()).enumerate() {
        let token = index / WIDTH;
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
    let layer = &mut Layer::new(cuda, many);
    let [first, second] = [4, 5].map(|seed| layer.run(cuda, seed, few));
    assert_ne!(first, second);
    for round in 1..4 {
        layer.run(cuda, 6, round * many / 3);
        assert!(layer.run(cuda, 4, few) == first, "round {round}");
        assert!(layer.run(cuda, 5, few) == second, "round {round}");
    }
}
