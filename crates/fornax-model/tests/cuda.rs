//! Through the engine on an NVIDIA GPU: the reference's text, and what must not change a result.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;

use common::{MODELS, generate, logits, open, options, rewritten, run_on, same, tokens};
use fornax_backend::{Backend, KvType, Reference};
use fornax_cuda::{Cuda, CudaOptions, LargeProducts};
use fornax_engine::{EventKind, KvPolicy, Request, SamplingParams, Task, TokenLogprob};
use fornax_gguf::synthetic::{self, Formats, Shape};
use fornax_gguf::{DType, Gguf, Value};
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
            generation.logprobs = Some(2);
        }
        request
    });
    let runner = ModelRunner::load(file, backend, &options).unwrap();
    let told = run_on(runner, KvPolicy::Paged, requests.collect());
    told.into_iter().map(steps).collect()
}

fn steps(events: Vec<EventKind>) -> Vec<Step> {
    let steps = events.into_iter().filter_map(|event| match event {
        EventKind::Token { token, top, .. } => Some((token, top)),
        EventKind::Failed(failure) => panic!("{failure}"),
        _ => None,
    });
    steps.collect()
}

/// How many tokens two texts share before they part, and how far the log-probabilities of these are from one another.
fn apart(text: &[Step], expected: &[Step]) -> (usize, f32) {
    let parts = text.iter().zip(expected).position(|(a, b)| a.0 != b.0);
    let agreed = parts.unwrap_or(text.len());
    let off = |(a, b): (&Step, &Step)| {
        (0..2)
            .map(|rank| (a.1[rank].logprob - b.1[rank].logprob).abs())
            .fold(0.0, f32::max)
    };
    let before = text.iter().zip(expected).take(agreed);
    (agreed, before.map(off).fold(0.0, f32::max))
}

/// How many tokens two texts share before they part, and that in words; where they part, the two best
/// tokens are nearer to one another than the log-probabilities of all tokens before were.
fn same_but_for_near_ties(text: &[Step], expected: &[Step]) -> (usize, String) {
    let (at, noise) = apart(text, expected);
    let noise = noise.max(1e-3);
    assert!(noise < 0.5, "{noise} before {at}");
    if at == text.len() {
        return (at, format!("{at} tokens, noise {noise:e}"));
    }
    let top = &expected[at].1;
    let gap = top[0].logprob - top[1].logprob;
    assert!(gap <= 2.0 * noise, "no tie: {gap} with noise of {noise}");
    assert_eq!(text[at].0, top[1].token, "not even the second");
    let said = format!("parts at {at}, gap {gap:e}, noise {noise:e}");
    (at, said)
}

/// The built-in model with its matrices in another format.
fn in_format(file: &Gguf, format: DType) -> Gguf {
    in_formats(file, |_| format)
}

/// The same with a format for each matrix by its name.
fn in_formats(file: &Gguf, format_of: impl Fn(&str) -> DType) -> Gguf {
    let keep = |key: &str, value: &Value| match key {
        "general.file_type" => None,
        "qwen3.context_length" => Some(Value::U32(4096)),
        _ => Some(value.clone()),
    };
    rewritten(file, keep, |tensor| {
        let (name, shape, data, dtype) = same(tensor)?;
        if shape.len() < 2 {
            return Some((name, shape, data, dtype));
        }
        let format = format_of(&name);
        let mut encoded = Vec::new();
        format.encode(&tensor.decode(), &mut encoded);
        Some((name, shape, encoded, format))
    })
}

/// The same as files of `Q4_K_M` are: what adds to the sums of a layer most is finer than the rest.
fn in_q4_k_m(file: &Gguf) -> Gguf {
    in_formats(file, |name| {
        let is_fine = name.contains("attn_v") || name.contains("ffn_down");
        if is_fine { DType::Q6_K } else { DType::Q4_K }
    })
}

/// The built-in model.
fn built_in() -> Gguf {
    let path = "../fornax-cli/model/fornax-mini.gguf";
    Gguf::open(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// A model whose feed-forward parts have each unit so many times, each for as small a part of what it gives: the same
/// function, with long rows.
fn widened(file: &Gguf, times: usize) -> Gguf {
    let keep = |key: &str, value: &Value| match (key, value) {
        ("general.file_type", _) => None,
        ("qwen3.feed_forward_length", Value::U32(units)) => Some(Value::U32(units * times as u32)),
        _ => Some(value.clone()),
    };
    rewritten(file, keep, |tensor| {
        let (name, mut shape, data, dtype) = same(tensor)?;
        let [is_in, is_out] = [["ffn_gate", "ffn_up"], ["ffn_down", "ffn_down"]]
            .map(|names| names.iter().any(|part| name.contains(part)));
        if !is_in && !is_out {
            return Some((name, shape, data, dtype));
        }
        let values = tensor.decode();
        let values: Vec<f32> = match is_in {
            true => values.repeat(times),
            false => values
                .chunks(shape[1])
                .flat_map(|row| row.repeat(times))
                .map(|weight| weight / times as f32)
                .collect(),
        };
        shape[usize::from(is_out)] *= times;
        let mut encoded = Vec::new();
        DType::F32.encode(&values, &mut encoded);
        Some((name, shape, encoded, DType::F32))
    })
}

/// How the text of one sequence through a chain compares with that of launches one by one, from which it is off where
/// there is a chain: it adds in another order.
fn chained(file: &Gguf, kv_type: KvType, lengths: [usize; 2]) -> String {
    let [together, single] = [false, true].map(|apart| {
        let options = CudaOptions {
            apart,
            ..CudaOptions::default()
        };
        alone(file, Cuda::new(options).unwrap(), kv_type, lengths)
    });
    let (_, said) = same_but_for_near_ties(&together, &single);
    let (agreed, off) = apart(&together, &single);
    assert!(
        off > 0.0 || agreed < together.len(),
        "the same to the last bit, so there was no chain"
    );
    format!("{kv_type:?}, behind {} tokens: {said}", lengths[0])
}

/// A greedy answer to one prompt.
fn alone<B: Backend>(
    file: &Gguf,
    backend: B,
    kv_type: KvType,
    [prompt, answer]: [usize; 2],
) -> Vec<Step> {
    let options = RunnerOptions {
        context: 4096,
        max_rows: 1,
        pages: 256,
        kv_type,
        ..options()
    };
    let mut request = generate(&tokens(3, prompt), SamplingParams::greedy(), answer);
    if let Task::Generate(generation) = &mut request.task {
        generation.logprobs = Some(2);
    }
    let runner = ModelRunner::load(file, backend, &options).unwrap();
    let told = run_on(runner, KvPolicy::Paged, vec![request]);
    steps(told.into_iter().next().unwrap())
}

/// One sequence at a time, past all numbers of blocks that share a row of attention, and behind a prompt
/// of which each warp of a team sees four slices.
#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 9.0 or more: run with --ignored where there is one"]
fn a_chain_gives_what_its_launches_give() {
    for format in [
        DType::Q8_0,
        DType::Q4_0,
        DType::BF16,
        DType::F16,
        DType::Q4_K,
        DType::Q6_K,
    ] {
        let file = in_format(&built_in(), format);
        for kv_type in [KvType::F16, KvType::Bf16, KvType::Q8_0] {
            for lengths in [[12, 1400], [3300, 60]] {
                println!("{format}, {}", chained(&file, kv_type, lengths));
            }
        }
    }
    let mixed = chained(&in_q4_k_m(&built_in()), KvType::F16, [12, 1400]);
    println!("Q4_K and Q6_K, {mixed}");
    // Tiles of fewer rows.
    let long = widened(&built_in(), 8);
    for file in [in_format(&long, DType::F16), in_q4_k_m(&long)] {
        println!("long rows, {}", chained(&file, KvType::F16, [12, 1400]));
    }
}

/// A model of random weights with the built-in one's vocabulary.
fn random(shape: &Shape, format: DType, layers: usize) -> Gguf {
    let written = synthetic::Options {
        formats: Formats::Of(format),
        seed: 5,
        deviation: None,
        layers: Some(layers),
        vocabulary: &built_in(),
    };
    let shape = Shape {
        vocabulary: None,
        ..*shape
    };
    let bytes = synthetic::write(&shape, &written, Vec::new()).unwrap();
    Gguf::from_bytes(shape.name, bytes).unwrap()
}

/// Each block has more rows there than it begins with, in tiles of fewer of all products of a feed-forward part.
#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 9.0 or more: run with --ignored where there is one"]
fn a_chain_of_wide_layers_gives_what_its_launches_give() {
    let shape = Shape::named("llama-3.2-1b").unwrap();
    for format in [DType::F16, DType::Q8_0, DType::MXFP4] {
        let file = random(shape, format, 2);
        println!("{format}, {}", chained(&file, KvType::F16, [12, 300]));
    }
}

/// A mixture, whose experts of a single token have kernels of their own.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn a_mixture_alone_says_what_the_reference_says() {
    let shape = Shape::named("tiny-qwen3moe").unwrap();
    for format in [DType::Q8_0, DType::Q4_K, DType::F16] {
        let file = random(shape, format, 2);
        let on_device = alone(&file, cuda(LargeProducts::Single), KvType::F32, [5, 24]);
        let expected = alone(&file, Reference, KvType::F32, [5, 24]);
        let (_, said) = same_but_for_near_ties(&on_device, &expected);
        println!("{format}: {said}");
    }
}

/// Chains of a few tokens in formats with kernels of their own, for a device that takes its time.
#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 9.0 or more: run with --ignored where there is one"]
fn a_chain_begins_as_its_launches_do() {
    for (format, kv_type) in [
        (DType::Q8_0, KvType::Q8_0),
        (DType::Q4_0, KvType::F16),
        (DType::BF16, KvType::Bf16),
    ] {
        let file = in_format(&built_in(), format);
        println!("{format}, {}", chained(&file, kv_type, [70, 3]));
    }
    let mixed = in_q4_k_m(&widened(&built_in(), 8));
    let said = chained(&mixed, KvType::F16, [70, 3]);
    println!("Q4_K and Q6_K in long rows, {said}");
}

/// Greedy answers to some prompts at once, each with a length and a seed of its own.
fn together(
    file: &Gguf,
    kv_type: KvType,
    prompts: &[(usize, u32)],
    answer: usize,
) -> Vec<Vec<Step>> {
    let requests = prompts.iter().map(|&(length, seed)| {
        let mut request = generate(&tokens(seed, length), SamplingParams::greedy(), answer);
        if let Task::Generate(generation) = &mut request.task {
            generation.logprobs = Some(2);
        }
        request
    });
    let longest = prompts.iter().map(|prompt| prompt.0).max().unwrap() + answer;
    let context = longest.next_multiple_of(128);
    let options = RunnerOptions {
        context,
        pages: 4 * context / 16,
        kv_type,
        ..options()
    };
    let runner = ModelRunner::load(file, cuda(LargeProducts::Copied), &options).unwrap();
    let told = run_on(runner, KvPolicy::Paged, requests.collect());
    told.into_iter().map(steps).collect()
}

/// A few sequences together, in formats whose results are those of single precision then, and each alone.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn few_sequences_together_say_what_each_says_alone() {
    for (format, rows) in [(DType::Q8_0, 6), (DType::BF16, 2)] {
        let file = in_format(&built_in(), format);
        let prompts: Vec<_> = (0..rows).map(|row| (5 + 9 * row, row as u32 + 3)).collect();
        let all = together(&file, KvType::F32, &prompts, 4);
        for (row, (text, prompt)) in all.iter().zip(prompts).enumerate() {
            let alone = together(&file, KvType::F32, &[prompt], 4);
            let (_, said) = same_but_for_near_ties(text, &alone[0]);
            println!("{format}, row {row} of {rows}: {said}");
        }
    }
}

/// Two or three sequences take turns in a launch like that which one alone has, from their only token on, for prompts
/// are multiplied together. Where they do not, log-probabilities are 2e-3 and more from those of one alone; so they are
/// 7e-5 at most on the emulated device and 4e-4 on an H200: the head is another one's, and so are shares of sums.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn sequences_in_turn_are_what_each_is_alone() {
    for (format, kv_type, prompts, answer) in [
        (DType::Q8_0, KvType::Q8_0, &[(1, 3), (1, 4), (1, 5)][..], 3),
        (DType::BF16, KvType::Bf16, &[(1, 6), (1, 7)], 2),
    ] {
        let file = in_format(&built_in(), format);
        let all = together(&file, kv_type, prompts, answer);
        for (text, prompt) in all.iter().zip(prompts) {
            let alone = together(&file, kv_type, &[*prompt], answer);
            let (agreed, off) = apart(text, &alone[0]);
            println!("{format}: {agreed} tokens, off by {off:e}");
            assert!(
                agreed == answer && off < 1e-3,
                "{agreed} tokens, off by {off:e}"
            );
        }
    }
}

/// The same for long, past all numbers of slices that a warp has of its own, of formats and caches with kernels of
/// their own, behind prompts of different lengths.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn sequences_stay_in_turn_for_long() {
    let prompts = &[(1, 3), (300, 4), (2000, 5)];
    for (format, kv_type, rows) in [
        (DType::Q8_0, KvType::Q8_0, 3),
        (DType::Q8_0, KvType::F16, 2),
        (DType::Q4_0, KvType::F16, 3),
        (DType::BF16, KvType::Bf16, 2),
    ] {
        let file = in_format(&built_in(), format);
        let all = together(&file, kv_type, &prompts[..rows], 1400);
        for (row, (text, prompt)) in all.iter().zip(prompts).enumerate() {
            let alone = together(&file, kv_type, &[*prompt], 1400);
            let (_, said) = same_but_for_near_ties(text, &alone[0]);
            println!("{format}, {kv_type:?}, row {row} of {rows}: {said}");
        }
    }
}

/// Where a text parts from the reference's, the two best tokens there are nearer to one another than
/// the backends' log-probabilities of all tokens before; both are measured.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn greedy_text_of_the_built_in_model_is_the_references_but_for_near_ties() {
    let file = built_in();
    for kv_type in [KvType::F16, KvType::Q8_0] {
        let expected = greedy(&file, Reference, kv_type);
        for products in [LargeProducts::Single, LargeProducts::Copied] {
            let texts = greedy(&file, cuda(products), kv_type);
            let (mut same, mut all) = (0, 0);
            for (text, expected) in texts.iter().zip(&expected) {
                let (agreed, said) = same_but_for_near_ties(text, expected);
                println!("{kv_type:?}, {products:?}: {said}");
                same += agreed;
                all += expected.len();
            }
            println!("{kv_type:?}, {products:?}: {same} of {all} tokens before any parting");
            assert!(2 * same > all, "{same} of {all} tokens");
        }
    }
}

/// Who asks for no probabilities gets a token of which only the largest logits were computed.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn greedy_text_is_the_same_where_nobody_asks_for_probabilities() {
    let vocabulary = built_in();
    for (shape, format) in [
        ("smollm-135m", DType::Q4_0),
        ("smollm-135m", DType::F16),
        ("qwen3-0.6b", DType::Q8_0),
        ("qwen3-0.6b", DType::BF16),
    ] {
        let written = synthetic::Options {
            formats: Formats::Of(format),
            seed: 5,
            deviation: None,
            layers: Some(2),
            vocabulary: &vocabulary,
        };
        let shape = Shape::named(shape).unwrap();
        let bytes = synthetic::write(shape, &written, Vec::new()).unwrap();
        let file = Gguf::from_bytes(shape.name, bytes).unwrap();
        let options = RunnerOptions {
            context: 512,
            max_rows: 1,
            kv_type: KvType::F16,
            ..options()
        };
        let text = |logprobs: Option<usize>, prompt: u32| -> Vec<u32> {
            let backend = cuda(LargeProducts::Copied);
            let runner = ModelRunner::load(&file, backend, &options).unwrap();
            assert!(runner.sketched().is_some());
            let mut request = generate(&tokens(prompt, 12), SamplingParams::greedy(), 200);
            if let Task::Generate(generation) = &mut request.task {
                generation.logprobs = logprobs;
            }
            let told = run_on(runner, KvPolicy::Paged, vec![request]);
            let steps = steps(told.into_iter().next().unwrap());
            steps.into_iter().map(|(token, _)| token).collect()
        };
        for prompt in [1, 2] {
            let [told, not_told] = [Some(1), None].map(|logprobs| text(logprobs, prompt));
            assert!(told.len() > 20);
            assert_eq!(told, not_told, "{} in {format}", shape.name);
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
