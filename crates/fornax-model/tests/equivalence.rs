//! What must not change a result: the KV policy, other sequences, chunks, where a token comes
//! from. On the reference bit for bit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{MODELS, generate, load, logits, open, options, run, run_on, texts, tokens};
use fornax_backend::conformance::Replay;
use fornax_backend::{KvType, Reference};
use fornax_cpu::{Cpu, CpuOptions};
use fornax_engine::{
    Admission, EngineOptions, EventKind, KvPolicy, PageCopy, Pooling, Request, RowOutput, Runner,
    SamplingParams, StepBatch, StepOutput, Task, Token, Want,
};
use fornax_model::{ModelRunner, RunnerOptions};

const POLICIES: [KvPolicy; 3] = [KvPolicy::None, KvPolicy::Basic, KvPolicy::Paged];

/// `(model, prompt, greedy text)` as llama.cpp wrote them; see the golden folder's README.
fn llama_cpp_texts() -> Vec<(String, Vec<Token>, Vec<Token>)> {
    let json: serde_json::Value = serde_json::from_str(include_str!("golden/greedy.json")).unwrap();
    let ids = |value: &serde_json::Value| -> Vec<Token> {
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap() as Token)
            .collect()
    };
    let text = |text: &serde_json::Value| {
        let model = text["file"]
            .as_str()
            .unwrap()
            .strip_suffix(".gguf")
            .unwrap();
        (model.to_owned(), ids(&text["prompt"]), ids(&text["greedy"]))
    };
    json["texts"].as_array().unwrap().iter().map(text).collect()
}

#[test]
fn greedy_text_equals_llama_cpp_under_every_policy() {
    let golden = llama_cpp_texts();
    assert_eq!(golden.len(), 4);
    for (model, prompt, expected) in golden {
        assert_eq!(expected.len(), 64);
        for policy in POLICIES {
            let request = generate(&prompt, SamplingParams::greedy(), 64);
            let texts = texts(&model, &options(), policy, vec![request]);
            assert_eq!(texts, [expected.as_slice()], "{model}, {policy:?}");
        }
    }
}

/// With probabilities all logits are computed, without them only those that can be drawn.
#[test]
fn a_head_with_a_sketch_draws_what_the_whole_head_does() {
    let likely = SamplingParams {
        temperature: 1.5,
        top_k: 3,
        seed: 5,
        ..SamplingParams::greedy()
    };
    for model in MODELS {
        let texts = |logprobs: Option<usize>| {
            let cpu = Cpu::new(CpuOptions {
                sketched_from: Some(0),
                ..CpuOptions::default()
            });
            let file = open(&format!("{model}.gguf"));
            let runner = ModelRunner::load(&file, cpu.unwrap(), &options()).unwrap();
            assert!(runner.sketched().is_some(), "{model}: a sketch");
            let request = |(seed, sampling): (u32, &SamplingParams)| {
                let mut request = generate(&tokens(seed, 9), sampling.clone(), 40);
                if let Task::Generate(generation) = &mut request.task {
                    generation.logprobs = logprobs;
                }
                request
            };
            let greedy = SamplingParams::greedy();
            let requests = [&greedy, &likely, &greedy].into_iter();
            let requests = (1..).zip(requests).map(request).collect();
            let drawn = run_on(runner, KvPolicy::Paged, requests).into_iter();
            let token = |event| match event {
                EventKind::Token { token, logprob, .. } => {
                    assert_eq!(logprob.is_some(), logprobs.is_some());
                    Some(token)
                }
                EventKind::Failed(failure) => panic!("{failure}"),
                _ => None,
            };
            let tokens_of = |events: Vec<EventKind>| events.into_iter().filter_map(token);
            drawn
                .map(|events| tokens_of(events).collect())
                .collect::<Vec<Vec<Token>>>()
        };
        assert_eq!(texts(None), texts(Some(0)), "{model}");
    }
}

#[test]
fn a_sequence_has_the_same_logits_alone_batched_and_in_chunks() {
    for model in MODELS {
        let score = |seed, len| Request::score(tokens(seed, len), 0..len);
        let requests = || vec![score(1, 37), score(2, 5), score(3, 16), score(4, 33)];
        let whole = run(model, &options(), KvPolicy::Paged, requests());
        let small_steps = RunnerOptions {
            max_tokens: 7,
            ..options()
        };
        let chunked = run(model, &small_steps, KvPolicy::Paged, requests());
        for (index, request) in requests().into_iter().enumerate() {
            let alone = logits(run(model, &options(), KvPolicy::Basic, vec![request]).remove(0));
            assert_eq!(
                logits(whole[index].clone()),
                alone,
                "{model}: batched, sequence {index}"
            );
            assert_eq!(
                logits(chunked[index].clone()),
                alone,
                "{model}: chunked, sequence {index}"
            );
        }
    }
}

/// Behind the last attention a step goes on with the tokens alone that are asked for: some of a prompt,
/// one of each, or none while a prompt is read in chunks.
#[test]
fn a_position_has_the_same_logits_whichever_others_are_asked_for() {
    let whole = options();
    let chunks = RunnerOptions {
        max_tokens: 20,
        ..whole.clone()
    };
    for model in MODELS {
        for (seed, len) in [(1, 60), (2, 37)] {
            let score = |positions| vec![Request::score(tokens(seed, len), positions)];
            let logits_of = |options, requests| {
                logits(run(model, options, KvPolicy::Paged, requests).remove(0))
            };
            let all = logits_of(&whole, score(0..len));
            let width = all.len() / len;
            for positions in [len - 1..len, 3..7, 0..len - 17, 0..len - 15] {
                let expected = &all[positions.start * width..positions.end * width];
                for options in [&whole, &chunks] {
                    let some = logits_of(options, score(positions.clone()));
                    assert_eq!(some, expected, "{model}: {positions:?} of {len}");
                }
            }
        }
        let both = || {
            vec![
                Request::score(tokens(1, 60), 59..60),
                Request::score(tokens(2, 37), 30..37),
            ]
        };
        for (index, events) in run(model, &whole, KvPolicy::Paged, both())
            .into_iter()
            .enumerate()
        {
            let alone = run(model, &whole, KvPolicy::Paged, vec![both().remove(index)]).remove(0);
            assert_eq!(
                logits(events),
                logits(alone),
                "{model}: sequence {index} of two"
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_text_whatever_the_batch() {
    let sampling = |seed| SamplingParams {
        temperature: 1.0,
        top_p: 0.9,
        repetition_penalty: 1.1,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        seed,
        ..SamplingParams::greedy()
    };
    let request = |seed| generate(&tokens(seed as u32, 9), sampling(seed), 40);
    for policy in POLICIES {
        let together = texts(
            "tiny-qwen3",
            &options(),
            policy,
            (1..7).map(request).collect(),
        );
        for (index, text) in together.iter().enumerate() {
            let alone = vec![request(index as u64 + 1)];
            assert_eq!(
                texts("tiny-qwen3", &options(), KvPolicy::Paged, alone),
                [text.as_slice()]
            );
        }
    }
    let other = texts(
        "tiny-qwen3",
        &options(),
        KvPolicy::Paged,
        vec![
            generate(&tokens(1, 9), sampling(1), 40),
            generate(&tokens(1, 9), sampling(2), 40),
        ],
    );
    assert_ne!(other[0], other[1], "another seed gives another text");
}

/// A step that took anything but its shape from the host would repeat the first such step.
#[test]
fn steps_recorded_once_and_replayed_give_the_same_events() {
    let requests = || {
        let mut requests = vec![
            Request::score(tokens(9, 40), 3..40),
            Request::embed(tokens(10, 25), Pooling::Mean),
        ];
        let sampling = |seed| SamplingParams {
            temperature: 0.8,
            repetition_penalty: 1.2,
            seed,
            ..SamplingParams::greedy()
        };
        requests.extend((1..7).map(|seed| generate(&tokens(seed, 11), sampling(seed.into()), 30)));
        requests
    };
    let options = RunnerOptions {
        max_tokens: 16,
        pages: 12,
        ..options()
    };
    for model in MODELS {
        let file = open(&format!("{model}.gguf"));
        let replayed = ModelRunner::load(&file, Replay::new(Reference), &options).unwrap();
        let replayed = run_on(replayed, KvPolicy::Paged, requests());
        assert_eq!(
            replayed,
            run(model, &options, KvPolicy::Paged, requests()),
            "{model}"
        );
    }
}

#[test]
fn sequences_that_lose_their_pages_write_the_same_text() {
    let tight = RunnerOptions {
        pages: 8,
        ..options()
    };
    let request = |seed| generate(&tokens(seed, 30), SamplingParams::greedy(), 60);
    let requests = || (1..5).map(request).collect::<Vec<_>>();
    let squeezed = texts("tiny-llama", &tight, KvPolicy::Paged, requests());
    assert_eq!(
        squeezed,
        texts("tiny-llama", &options(), KvPolicy::Paged, requests())
    );
}

/// Pages have 16 tokens: the prompts part in the middle of the third one, an answer ends in the
/// middle of another, and more prefixes are left behind than there are pages.
#[test]
fn shared_prefixes_change_no_bit() {
    for model in MODELS {
        let system = tokens(1, 37);
        let first = [system.clone(), tokens(2, 8)].concat();
        let answer = generate(&first, SamplingParams::greedy(), 9);
        let answer = texts(model, &options(), KvPolicy::Basic, vec![answer]).remove(0);
        let sampling = SamplingParams {
            temperature: 0.9,
            repetition_penalty: 1.2,
            seed: 5,
            ..SamplingParams::greedy()
        };
        let requests = || {
            let next_turn = [&first[..], &answer, &tokens(3, 5)].concat();
            let mut requests = vec![
                generate(&first, SamplingParams::greedy(), 9),
                Request::score([system.clone(), tokens(4, 20)].concat(), 45..57),
                Request::embed([system.clone(), tokens(5, 3)].concat(), Pooling::Last),
                Request::embed([system.clone(), tokens(6, 3)].concat(), Pooling::Mean),
            ];
            requests.extend(
                [&next_turn, &first, &system].map(|prompt| generate(prompt, sampling.clone(), 20)),
            );
            requests
        };
        let one_by_one = RunnerOptions {
            max_rows: 1,
            ..options()
        };
        let tight = RunnerOptions {
            pages: 12,
            ..options()
        };
        let off = EngineOptions {
            prefix_cache: false,
            ..KvPolicy::Paged.into()
        };
        let plain = run_on(load(model, &options()), off, requests());
        assert_eq!(cached(&plain), [0; 7]);
        // A prompt known to its end computes its last token. The answer is not known before its
        // end, and its last token drawn never goes through the model.
        let together = run(model, &options(), KvPolicy::Paged, requests());
        assert_eq!(cached(&together), [0, 37, 37, 0, 45, 44, 36], "{model}");
        let in_turns = run(model, &one_by_one, KvPolicy::Paged, requests());
        assert_eq!(cached(&in_turns), [0, 37, 37, 0, 53, 44, 36], "{model}");
        let evicting = run(model, &tight, KvPolicy::Paged, requests());
        assert!(cached(&evicting).iter().any(|&tokens| tokens > 0));
        for told in [together, in_turns, evicting] {
            for (index, (told, plain)) in told.into_iter().zip(&plain).enumerate() {
                let (told, plain) = (answers(told), answers(plain.clone()));
                assert_eq!(told, plain, "{model}, request {index}");
            }
        }
    }
}

/// How many tokens of each request's prompt were not computed for it.
fn cached(told: &[Vec<EventKind>]) -> Vec<usize> {
    let cached = |events: &Vec<EventKind>| match events.last() {
        Some(EventKind::Finished { usage, .. }) => usage.cached,
        other => panic!("{other:?}"),
    };
    told.iter().map(cached).collect()
}

/// All that was told but how it ended.
fn answers(mut events: Vec<EventKind>) -> Vec<EventKind> {
    events.pop();
    events
}

#[test]
fn half_precision_caches_stay_close() {
    let score = || vec![Request::score(tokens(5, 60), 0..60)];
    // DeepSeek's routers choose groups and then experts: with random weights some token stands so
    // near an edge that a rounding turns the choice.
    let steady = |model: &&str| !model.starts_with("tiny-deepseek");
    for model in MODELS.into_iter().filter(steady) {
        let exact = logits(run(model, &options(), KvPolicy::Paged, score()).remove(0));
        for (kv_type, bound) in [(KvType::F16, 4e-3), (KvType::Bf16, 4e-2)] {
            let options = RunnerOptions {
                kv_type,
                ..options()
            };
            let rounded = logits(run(model, &options, KvPolicy::Paged, score()).remove(0));
            let error = relative_error(&rounded, &exact);
            assert!(
                error > 0.0 && error < bound,
                "{model}, {kv_type:?}: {error}"
            );
        }
    }
}

#[test]
fn a_token_of_the_step_before_needs_no_visit_to_the_host() {
    let prompt = tokens(3, 20);
    let mut runner = load("tiny-qwen3", &options());
    let sample = Want::Sample { logprobs: None };
    let mut batch = StepBatch::default();
    batch.admissions.push(Admission {
        slot: 2,
        params: SamplingParams::greedy(),
        tokens: prompt.clone(),
        prompt: prompt.len(),
    });
    batch.push_tokens(2, &prompt, 0, sample.clone());
    batch.push_table(&[4, 9]);
    let first = sampled(&step(&mut runner, &batch)[0]);

    let next = |runner: &mut ModelRunner<_>, from_step: bool| {
        let mut batch = StepBatch::default();
        match from_step {
            true => batch.push_from_step(2, 0, prompt.len(), Want::Logits(0..1)),
            false => batch.push_tokens(2, &[first], prompt.len(), Want::Logits(0..1)),
        }
        batch.push_table(&[4, 9]);
        step(runner, &batch).remove(0)
    };
    let fed_by_device = next(&mut runner, true);
    assert_eq!(fed_by_device, next(&mut runner, false));
}

#[test]
fn a_copied_page_continues_as_its_original() {
    let prompt = tokens(8, 21);
    for model in MODELS {
        let mut runner = load(model, &options());
        let mut batch = StepBatch::default();
        batch.push_tokens(0, &prompt, 0, Want::Logits(20..21));
        batch.push_table(&[3, 5]);
        step(&mut runner, &batch);
        // The first page is shared, the second copied with the 5 tokens it holds.
        let mut fork = StepBatch::default();
        fork.copies.push(PageCopy {
            group: 0,
            source: 5,
            destination: 7,
            tokens: 5,
        });
        fork.push_tokens(0, &[65, 66], 21, Want::Logits(0..2));
        fork.push_table(&[3, 5]);
        fork.push_tokens(1, &[97, 98], 21, Want::Logits(0..2));
        fork.push_table(&[3, 7]);
        let forked = step(&mut runner, &fork);
        for (output, end) in forked.iter().zip([[65, 66], [97, 98]]) {
            let whole = [prompt.as_slice(), &end].concat();
            let alone = run(
                model,
                &options(),
                KvPolicy::Paged,
                vec![Request::score(whole, 21..23)],
            );
            assert_eq!(
                *output,
                RowOutput::Logits(logits(alone[0].clone())),
                "{model}"
            );
        }
    }
}

#[test]
fn pooled_states_are_those_of_the_final_norm() {
    for model in MODELS {
        let golden = open(&format!("{model}.golden.gguf"));
        let prompt = golden.metadata().u32s("golden.tokens").unwrap();
        let norm = golden.tensor("golden.final_norm").unwrap();
        let (states, width) = (norm.decode(), norm.cols());
        let mut runner = load(model, &options());
        let mut batch = StepBatch::default();
        batch.push_tokens(0, &prompt, 0, Want::Pooled(Pooling::Mean));
        batch.push_table(&[0, 1, 2]);
        batch.push_tokens(1, &prompt, 0, Want::Pooled(Pooling::Last));
        batch.push_table(&[3, 4, 5]);
        let rows = step(&mut runner, &batch);
        let mean: Vec<f32> = (0..width)
            .map(|column| {
                states.iter().skip(column).step_by(width).sum::<f32>() / prompt.len() as f32
            })
            .collect();
        for (row, expected) in rows
            .iter()
            .zip([&mean, &states[states.len() - width..].to_vec()])
        {
            let RowOutput::Pooled(vector) = row else {
                panic!("{row:?}")
            };
            assert!(relative_error(vector, expected) < 1e-4, "{model}");
        }
    }
}

fn step<B: fornax_backend::Backend>(
    runner: &mut ModelRunner<B>,
    batch: &StepBatch,
) -> Vec<RowOutput> {
    let mut output = StepOutput::default();
    let ticket = runner.submit(batch).unwrap();
    runner.wait(ticket, &mut output).unwrap();
    output.rows
}

fn sampled(row: &RowOutput) -> Token {
    match row {
        RowOutput::Sampled { token, .. } => *token,
        other => panic!("{other:?}"),
    }
}

fn relative_error(values: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(values.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = values
        .iter()
        .zip(expected)
        .map(|(x, e)| square(x - e))
        .sum();
    (off / expected.iter().map(|e| square(*e)).sum::<f64>()).sqrt()
}
