//! Every stage of every architecture against Hugging Face `transformers`: the golden activations
//! of `tests/golden`, whose README says how they were made. A failure names its stage.

use std::path::PathBuf;

use fornax_backend::{Backend, KvType, Reference};
use fornax_cpu::{Cpu, CpuOptions};
use fornax_cuda::{Cuda, CudaOptions, LargeProducts};
use fornax_engine::{StepBatch, Want};
use fornax_gguf::Gguf;

use super::{ModelRunner, RunnerOptions};
use crate::decoder::Rows;
use crate::{Architecture, WeightStorage, step};

/// Worst relative error of a row: between rounding (5e-6) and the mildest wrong model (3e-3).
const TOLERANCE: f32 = 1e-4;

const MODELS: [&str; 15] = [
    "tiny-llama",
    "tiny-llama3",
    "tiny-llama-linear",
    "tiny-llama-yarn",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen2moe",
    "tiny-qwen3",
    "tiny-qwen3moe",
    "tiny-qwen3-q8_0",
    "tiny-qwen3-q4_0",
    "tiny-gemma3",
    "tiny-gpt-oss",
    "tiny-deepseek2",
    "tiny-deepseek3",
];

#[test]
fn the_reference_equals_transformers_at_every_stage() {
    for model in MODELS {
        for storage in [WeightStorage::Native, WeightStorage::F32] {
            check(model, storage, Reference, TOLERANCE);
        }
    }
}

/// In single precision as the reference; with large products in bf16 only near it, for tiny models
/// amplify what 8 bits of mantissa round away.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn cuda_equals_transformers_at_every_stage() {
    for (large_products, tolerance) in [
        (LargeProducts::Single, TOLERANCE),
        (LargeProducts::Copied, 1e-1),
        (LargeProducts::Decoded, 1e-1),
    ] {
        for model in MODELS {
            for storage in [WeightStorage::Native, WeightStorage::F32] {
                let options = CudaOptions {
                    large_products,
                    ..CudaOptions::default()
                };
                check(model, storage, Cuda::new(options).unwrap(), tolerance);
            }
        }
    }
}

/// Weights in blocks meet rounded activations on the CPU; decoded, they do not.
#[test]
fn the_cpu_equals_transformers_at_every_stage() {
    for model in MODELS {
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        check(model, WeightStorage::F32, cpu, TOLERANCE);
    }
}

#[test]
fn every_architecture_has_a_golden_model() {
    let of = |model: &&str| Architecture::of(&open(&format!("{model}.gguf"))).unwrap();
    let golden: Vec<Architecture> = MODELS.iter().map(of).collect();
    for architecture in Architecture::ALL {
        assert!(golden.contains(architecture), "{}", architecture.name());
    }
}

/// Runs the golden tokens through a model and compares stage after stage.
fn check<B: Backend>(model: &str, storage: WeightStorage, backend: B, tolerance: f32) {
    let golden = open(&format!("{model}.golden.gguf"));
    let tokens = golden.metadata().u32s("golden.tokens").unwrap();
    let stages = stages(&open(&format!("{model}.gguf")), storage, backend, &tokens);
    let expected: Vec<_> = golden.tensors().collect();
    assert_eq!(stages.len(), expected.len(), "{model}: number of stages");
    for (name, values) in stages {
        let tensor = golden.tensor(&name).unwrap();
        let error = worst_row_error(&values, &tensor.decode(), tensor.cols());
        assert!(
            error < tolerance,
            "{model} ({storage:?}), stage {name}: relative error {error:e}"
        );
    }
}

/// Each stage's name and values, `[tokens, width]`.
fn stages<B: Backend>(
    file: &Gguf,
    storage: WeightStorage,
    backend: B,
    tokens: &[u32],
) -> Vec<(String, Vec<f32>)> {
    let n = tokens.len();
    let options = RunnerOptions {
        context: 64,
        max_rows: 1,
        max_tokens: n,
        page_size: 16,
        pages: 4,
        kv_type: KvType::F32,
        weights: storage,
    };
    let mut runner = ModelRunner::load(file, backend, &options).unwrap();
    let mut batch = StepBatch::default();
    batch.push_tokens(0, tokens, 0, Want::Logits(0..n));
    batch.push_table(&[2, 0, 3, 1]);

    let ModelRunner {
        backend,
        decoder,
        activations,
        kv,
        step,
        rows,
        largest,
        ..
    } = &mut runner;
    let shape = step::describe(&batch, 1, largest, rows);
    backend.prepare(step, rows);
    let mut stages = Vec::new();
    let mut keep = |backend: &mut B, name: String, buffer: &B::Buffer, width: usize| {
        let mut values = vec![f32::NAN; n * width];
        backend.read_f32(buffer, &mut values).unwrap();
        stages.push((name, values));
    };
    let width = decoder.config.width;
    decoder.embed(backend, activations, step, n);
    keep(
        backend,
        "golden.embedding".into(),
        &activations.residual,
        width,
    );
    for (index, kv) in kv.iter_mut().enumerate() {
        decoder.block(index, backend, activations, kv, step, n);
        keep(
            backend,
            format!("golden.block.{index}"),
            &activations.residual,
            width,
        );
    }
    keep(
        backend,
        "golden.final_norm".into(),
        &activations.normed,
        width,
    );
    decoder.head(backend, activations, step, Rows::All, &shape);
    keep(
        backend,
        "golden.logits".into(),
        &activations.logits,
        decoder.config.vocabulary,
    );
    stages
}

fn open(name: &str) -> Gguf {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"));
    Gguf::open(folder.join(name)).unwrap()
}

/// The greatest difference in a row over its greatest magnitude, in the worst row.
fn worst_row_error(values: &[f32], expected: &[f32], width: usize) -> f32 {
    assert_eq!(values.len(), expected.len());
    let rows = values.chunks(width).zip(expected.chunks(width));
    let error = |(values, expected): (&[f32], &[f32])| {
        let greatest = expected
            .iter()
            .fold(0f32, |greatest, x| greatest.max(x.abs()));
        let off = values
            .iter()
            .zip(expected)
            .fold(0f32, |worst, (x, e)| match (x - e).abs() {
                difference if difference.is_nan() => f32::INFINITY,
                difference => worst.max(difference),
            });
        off / greatest
    };
    rows.map(error).fold(0.0, f32::max)
}
