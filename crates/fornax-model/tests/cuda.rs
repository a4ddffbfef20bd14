//! Through the engine on an NVIDIA GPU: the reference's text, and what must not change a result.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;

use common::{MODELS, generate, logits, open, options, run_on, tokens};
use fornax_backend::{Backend, KvType, Reference};
use fornax_cuda::{Cuda, CudaOptions, LargeProducts};
use fornax_engine::{EventKind, KvPolicy, Request, SamplingParams, Task, TokenLogprob};
use fornax_gguf::Gguf;
use fornax_model::{ModelRunner, RunnerOptions};

/// ‖a − b‖ / ‖b‖ of logits that were computed in another order, on keys and values of 16 bits.
const ORDER: f64 = 3e-3;

fn cuda(large_products: LargeProducts) -> Cuda {
    let options = CudaOptions {
        large_products,
        ..CudaOptions::default()
    };
    Cuda::new(options).unwrap_or_else(|error| panic!("{error}"))
}

fn on_device(model: &str, options: &RunnerOptions) -> ModelRunner<Cuda> {
    ModelRunner::load(
        &open(&format!("{model}.gguf")),
        cuda(LargeProducts::Single),
        options,
    )
    .unwrap()
}

/// A token with the two most likely ones beside it.
type Step = (u32, Vec<TokenLogprob>);

/// Greedy answers of 60 tokens to some prompts at once.
fn greedy<B: Backend>(file: &Gguf, backend: B, kv_type: KvType) -> Vec<Vec<Step>> {
    let options = RunnerOptions {
        max_rows: 6,
        kv_type,
        ..options()
    };
    let requests = (1..7).map(|seed| {
        let mut request = generate(&tokens(seed, 12), SamplingParams::greedy(), 60);
        if let Task::Generate(generation) = &mut request.task {
            generation.top_logprobs = 2;
        }
        request
    });
    let runner = ModelRunner::load(file, backend, &options).unwrap();
    let told = run_on(runner, KvPolicy::Paged, requests.collect());
    let text = |events: Vec<EventKind>| {
        let steps = events.into_iter().filter_map(|event| match event {
            EventKind::Token { token, top } => Some((token.token, top)),
            EventKind::Failed(failure) => panic!("{failure}"),
            _ => None,
        });
        steps.collect()
    };
    told.into_iter().map(text).collect()
}

/// Where a text parts from the reference's, the two best tokens there are nearer to one another than
/// the backends' log-probabilities of all tokens before; both are measured.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn greedy_text_of_the_built_in_model_is_the_references_but_for_near_ties() {
    let path = "../fornax-cli/model/fornax-mini.gguf";
    let file = Gguf::open(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let expected = greedy(&file, Reference, kv_type);
        for products in [LargeProducts::Single, LargeProducts::Copied] {
            let texts = greedy(&file, cuda(products), kv_type);
            let (mut same, mut all) = (0, 0);
            for (text, expected) in texts.iter().zip(&expected) {
                let parts = text.iter().zip(expected).position(|(a, b)| a.0 != b.0);
                let agreed = parts.unwrap_or(text.len());
                (same, all) = (same + agreed, all + expected.len());
                let off = |(a, b): (&Step, &Step)| {
                    (0..2)
                        .map(|rank| (a.1[rank].logprob - b.1[rank].logprob).abs())
                        .fold(0.0, f32::max)
                };
                let noise = text
                    .iter()
                    .zip(expected)
                    .take(agreed)
                    .map(off)
                    .fold(1e-3, f32::max);
                if let Some(at) = parts {
                    let top = &expected[at].1;
                    let gap = top[0].logprob - top[1].logprob;
                    println!(
                        "{kv_type:?}, {products:?}: parts at {at}, gap {gap:e}, noise {noise:e}"
                    );
                    assert!(gap <= 2.0 * noise, "no tie: {gap} with noise of {noise}");
                    assert_eq!(text[at].0, top[1].token, "not even the second");
                }
            }
            println!("{kv_type:?}, {products:?}: {same} of {all} tokens before any parting");
            assert!(2 * same > all, "{same} of {all} tokens");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn a_sequence_has_the_same_logits_alone_batched_in_chunks_and_behind_a_cached_prefix() {
    for model in MODELS {
        for kv_type in [KvType::F32, KvType::F16] {
            let options = RunnerOptions {
                kv_type,
                ..options()
            };
            let small_steps = RunnerOptions {
                max_tokens: 7,
                ..options.clone()
            };
            let in_turns = RunnerOptions {
                max_rows: 1,
                ..options.clone()
            };
            let score = |seed, len: usize| Request::score(tokens(seed, len), len / 2..len);
            let requests = || vec![score(1, 37), score(2, 5), score(3, 16), score(4, 33)];
            let whole = run_on(on_device(model, &options), KvPolicy::Paged, requests());
            let chunked = run_on(on_device(model, &small_steps), KvPolicy::Paged, requests());
            let twice = [requests(), requests()].concat();
            let again = run_on(on_device(model, &in_turns), KvPolicy::Paged, twice);
            for (index, request) in requests().into_iter().enumerate() {
                let alone = run_on(on_device(model, &options), KvPolicy::Basic, vec![request]);
                let alone = logits(alone.into_iter().next().unwrap());
                for (what, told) in [
                    ("batched", &whole[index]),
                    ("in chunks", &chunked[index]),
                    ("behind a cached prefix", &again[index + 4]),
                ] {
                    let error = relative_error(&logits(told.clone()), &alone);
                    assert!(
                        error < ORDER,
                        "{model}, {kv_type:?}, {what}, sequence {index}: {error:e}"
                    );
                }
            }
        }
    }
}

fn relative_error(values: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(values.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off = values.iter().zip(expected).map(|(x, e)| square(x - e));
    let off: f64 = off.sum();
    (off / expected.iter().map(|e| square(*e)).sum::<f64>()).sqrt()
}
