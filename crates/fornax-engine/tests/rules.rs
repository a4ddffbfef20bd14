//! Each rule of the schedule by itself, on the fake runner.

mod spy;

use std::collections::BTreeMap;

use fornax_engine::testing::{
    FakeRunner, Faults, Transcript, expected_token, kv_group, small_limits,
};
use fornax_engine::{
    Engine, EngineOptions, Failure, FinishReason, KvPolicy, Limits, LimitsError, PromptPace,
    Request, RequestId, Runner, SamplingParams, StepStats, Task, Token, Want,
};
use spy::{Batches, Spy};

/// A request for so many tokens after this prompt.
fn generate(prompt: &[Token], max_tokens: usize) -> Request {
    let mut request = Request::generate(prompt.to_vec(), SamplingParams::greedy());
    if let Task::Generate(generation) = &mut request.task {
        generation.max_tokens = Some(max_tokens);
    }
    request
}

/// The answer that every correct engine gives.
fn expected(prompt: &[Token], tokens: usize) -> Vec<Token> {
    let mut all = prompt.to_vec();
    for _ in 0..tokens {
        all.push(expected_token(&all, prompt.len(), 0, 100));
    }
    all.split_off(prompt.len())
}

fn engine(limits: Limits, policy: KvPolicy) -> Engine<FakeRunner> {
    Engine::new(FakeRunner::new(limits), policy).expect("limits with room")
}

fn spied(limits: Limits, policy: KvPolicy) -> (Engine<Spy>, Batches) {
    let (spy, batches) = Spy::on(FakeRunner::new(limits));
    (Engine::new(spy, policy).expect("limits with room"), batches)
}

/// Steps to the end, checking at each. What was done, and what each request was told.
fn run<R: Runner>(engine: &mut Engine<R>) -> (Vec<StepStats>, BTreeMap<RequestId, Transcript>) {
    let mut steps = Vec::new();
    let mut told = BTreeMap::<_, Transcript>::new();
    loop {
        let stats = engine.step();
        engine.check();
        for event in engine.events() {
            told.entry(event.request).or_default().record(event.kind);
        }
        match stats {
            Some(stats) => steps.push(stats),
            None => return (steps, told),
        }
    }
}

#[test]
fn decodes_go_first_and_long_prompts_come_in_chunks() {
    let mut engine = engine(small_limits(), KvPolicy::Paged);
    let running = engine.submit(generate(&[1, 2], 8)).unwrap();
    engine.step();
    let long = engine.submit(generate(&[3; 40], 1)).unwrap();
    let (steps, told) = run(&mut engine);
    // 16 tokens a step: one goes on decoding, 15 are left for the prompt.
    let tokens: Vec<_> = steps
        .iter()
        .map(|stats| (stats.rows, stats.tokens, stats.wanted))
        .collect();
    assert_eq!(tokens[..4], [(2, 16, 1), (2, 16, 1), (2, 11, 2), (1, 1, 1)]);
    assert_eq!(told[&running].tokens, expected(&[1, 2], 8));
    assert_eq!(told[&long].tokens, expected(&[3; 40], 1));
}

#[test]
fn requests_are_admitted_in_order_as_slots_allow() {
    let (mut engine, batches) = spied(small_limits(), KvPolicy::Paged);
    for first in 0..7 {
        engine.submit(generate(&[first], 3)).unwrap();
    }
    run(&mut engine);
    let batches = batches.lock().unwrap();
    let admitted = |batch: &fornax_engine::StepBatch| -> Vec<Token> {
        batch
            .admissions
            .iter()
            .map(|admission| admission.tokens[0])
            .collect()
    };
    let admitted: Vec<_> = batches
        .iter()
        .map(admitted)
        .filter(|a| !a.is_empty())
        .collect();
    assert_eq!(admitted, [vec![0, 1, 2, 3], vec![4, 5, 6]]);
}

#[test]
fn admission_waits_for_the_pages_of_all_known_tokens_and_one_more() {
    // 5 pages of 4: the first takes 2 (7 + 1 tokens). The second needs 3 for 11 + 1 and fits; with
    // 12 + 1 it would need 4 and waits until the first has ended.
    for (second, rows) in [(11, 2), (12, 1)] {
        let mut limits = small_limits();
        limits.max_tokens = 64;
        limits.kv_groups = vec![kv_group(4, 5)];
        let mut engine = engine(limits, KvPolicy::Paged);
        engine.submit(generate(&[1; 7], 2)).unwrap();
        engine.submit(generate(&vec![2; second], 2)).unwrap();
        let (steps, _) = run(&mut engine);
        assert_eq!(steps[0].rows, rows);
    }
}

#[test]
fn nobody_overtakes_a_request_that_waits_for_pages() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 5)];
    let (mut engine, batches) = spied(limits, KvPolicy::Paged);
    engine.submit(generate(&[1; 7], 4)).unwrap();
    engine.submit(generate(&[2; 14], 2)).unwrap();
    engine.submit(generate(&[3], 2)).unwrap();
    run(&mut engine);
    let admissions = batches
        .lock()
        .unwrap()
        .iter()
        .flat_map(|b| b.admissions.clone())
        .collect::<Vec<_>>();
    assert_eq!(
        admissions.iter().map(|a| a.tokens[0]).collect::<Vec<_>>(),
        [1, 2, 3]
    );
}

#[test]
fn the_youngest_gives_up_its_pages_and_says_the_same_in_the_end() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 9)];
    let (mut engine, batches) = spied(limits, KvPolicy::Paged);
    let prompts = [[1, 1, 1], [2, 2, 2], [3, 3, 3]];
    let ids = prompts.map(|prompt| engine.submit(generate(&prompt, 20)).unwrap());
    let (steps, told) = run(&mut engine);
    for (prompt, id) in prompts.iter().zip(ids) {
        assert_eq!(told[&id].tokens, expected(prompt, 20));
        assert_eq!(told[&id].reason(), Some(FinishReason::Length));
    }
    let batches = batches.lock().unwrap();
    let again: Vec<_> = batches
        .iter()
        .skip(1)
        .flat_map(|batch| &batch.admissions)
        .collect();
    assert_eq!(
        steps.iter().map(|stats| stats.preempted).sum::<usize>(),
        again.len()
    );
    // The first to be preempted is the third; it comes back with its answer so far, and the
    // first never stops.
    assert!(
        again
            .iter()
            .all(|admission| admission.prompt == 3 && admission.tokens.len() > 3)
    );
    assert!(again.iter().any(|admission| admission.tokens[0] == 3));
    assert!(again.iter().all(|admission| admission.tokens[0] != 1));
}

#[test]
fn a_cancelled_request_gives_its_pages_back_at_once() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 16)];
    let (mut engine, batches) = spied(limits, KvPolicy::Paged);
    // The first is in the middle of its prompt and has all the pages.
    let first = engine.submit(generate(&[1; 60], 4)).unwrap();
    let second = engine.submit(generate(&[2; 9], 1)).unwrap();
    let third = engine.submit(generate(&[3; 9], 1)).unwrap();
    assert_eq!(engine.step().unwrap().tokens, 16);
    assert!(engine.cancel(third) && engine.cancel(first));
    assert!(!engine.cancel(first), "it has ended already");
    engine.check();
    let (steps, told) = run(&mut engine);
    assert_eq!(told[&first].reason(), Some(FinishReason::Cancelled));
    assert_eq!(told[&third].reason(), Some(FinishReason::Cancelled));
    assert_eq!(told[&second].tokens, expected(&[2; 9], 1));
    assert_eq!(steps.len(), 1, "the pages were free for the very next step");
    assert_eq!(batches.lock().unwrap().len(), 2);
}

#[test]
fn numbers_that_are_none_fail_one_request_only() {
    let faults = Faults {
        not_finite: Some(99),
        ..Faults::default()
    };
    let runner = FakeRunner::with_faults(small_limits(), faults);
    let mut engine = Engine::new(runner, KvPolicy::Paged).unwrap();
    let bad = engine.submit(generate(&[5, 99], 5)).unwrap();
    let good = engine.submit(generate(&[5, 6], 5)).unwrap();
    let (_, told) = run(&mut engine);
    assert_eq!(
        told[&bad].failure(),
        Some(&Failure::NotFinite { tokens: 2 })
    );
    assert_eq!(told[&good].tokens, expected(&[5, 6], 5));
}

#[test]
fn a_failed_step_fails_its_rows_and_the_engine_goes_on() {
    for faults in [
        Faults {
            submit: vec![1],
            ..Faults::default()
        },
        Faults {
            wait: vec![1],
            ..Faults::default()
        },
    ] {
        let mut limits = small_limits();
        limits.max_rows = 2;
        let runner = FakeRunner::with_faults(limits, faults);
        let mut engine = Engine::new(runner, KvPolicy::Paged).unwrap();
        let ids = [1, 2, 3].map(|token| engine.submit(generate(&[token], 3)).unwrap());
        let (_, told) = run(&mut engine);
        for failed in &ids[..2] {
            let failure = told[failed].failure().unwrap().to_string();
            assert!(failure.starts_with("step 1 was to fail"), "{failure}");
            assert_eq!(told[failed].tokens.len(), 1, "the step before was answered");
        }
        assert_eq!(told[&ids[2]].tokens, expected(&[3], 3));
    }
}

#[test]
fn without_a_cache_the_whole_sequence_goes_through_each_time() {
    let (mut engine, batches) = spied(small_limits(), KvPolicy::None);
    let id = engine.submit(generate(&[1; 14], 5)).unwrap();
    let (steps, told) = run(&mut engine);
    assert_eq!(told[&id].tokens, expected(&[1; 14], 5));
    // 14, 15, 16, then 17 and 18 in two chunks each, which do keep their K and V in between.
    let tokens: Vec<_> = steps.iter().map(|stats| stats.tokens).collect();
    assert_eq!(tokens, [14, 15, 16, 16, 1, 16, 2]);
    let cached = |batch: &fornax_engine::StepBatch| batch.rows()[0].cached;
    let cached: Vec<_> = batches.lock().unwrap().iter().map(cached).collect();
    assert_eq!(cached, [0, 0, 0, 0, 16, 0, 16]);
}

#[test]
fn basic_reserves_a_context_of_contiguous_pages() {
    let mut limits = small_limits();
    limits.context = 20;
    // 13 pages: two contexts of 5 pages each for the first group, three for the second.
    limits.kv_groups = vec![kv_group(4, 13), kv_group(8, 9)];
    let (mut engine, batches) = spied(limits, KvPolicy::Basic);
    for token in 0..5 {
        engine.submit(generate(&[token], 19)).unwrap();
    }
    let (steps, _) = run(&mut engine);
    assert!(
        steps
            .iter()
            .all(|stats| stats.rows <= 2 && stats.preempted == 0)
    );
    for batch in batches.lock().unwrap().iter() {
        for (row, group) in (0..batch.rows().len()).flat_map(|row| [(row, 0), (row, 1)]) {
            let table = batch.table(row, group);
            assert!(
                table.windows(2).all(|pair| pair[1] == pair[0] + 1),
                "{table:?}"
            );
        }
    }
}

#[test]
fn paged_takes_a_page_when_the_last_one_is_full() {
    let (mut engine, batches) = spied(small_limits(), KvPolicy::Paged);
    engine.submit(generate(&[1; 3], 4)).unwrap();
    run(&mut engine);
    let batches = batches.lock().unwrap();
    let pages: Vec<_> = batches
        .iter()
        .map(|batch| batch.table(0, 0).len())
        .collect();
    assert_eq!(pages, [1, 1, 2, 2]);
}

#[test]
fn only_the_last_chunk_of_a_prompt_wants_a_token() {
    let (mut engine, batches) = spied(small_limits(), KvPolicy::Paged);
    engine.submit(generate(&[1; 33], 1)).unwrap();
    run(&mut engine);
    let batches = batches.lock().unwrap();
    let wants: Vec<_> = batches
        .iter()
        .map(|batch| batch.rows()[0].want.clone())
        .collect();
    let sample = Want::Sample { logprobs: None };
    assert_eq!(wants, [Want::Nothing, Want::Nothing, sample]);
}

#[test]
fn groups_of_other_page_sizes_run_out_by_themselves() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(2, 100), kv_group(16, 3)];
    let mut engine = engine(limits, KvPolicy::Paged);
    let ids = [1, 2].map(|token| engine.submit(generate(&[token; 10], 30)).unwrap());
    let (steps, told) = run(&mut engine);
    assert!(steps.iter().any(|stats| stats.preempted > 0));
    assert_eq!(told[&ids[0]].tokens, expected(&[1; 10], 30));
    assert_eq!(told[&ids[1]].tokens, expected(&[2; 10], 30));
}

#[test]
fn limits_that_leave_no_room_are_refused() {
    let refused = |change: fn(&mut Limits), policy| {
        let mut limits = small_limits();
        change(&mut limits);
        Engine::new(FakeRunner::new(limits), policy).err()
    };
    let zeros: [(fn(&mut Limits), _); 6] = [
        (|limits| limits.max_rows = 0, "max_rows"),
        (|limits| limits.max_tokens = 0, "max_tokens"),
        (|limits| limits.context = 0, "context"),
        (|limits| limits.vocabulary = 0, "vocabulary"),
        (|limits| limits.kv_groups[0].page_size = 0, "page_size"),
        (|limits| limits.kv_groups[0].pages = 0, "pages"),
    ];
    for (change, name) in zeros {
        assert_eq!(
            refused(change, KvPolicy::Paged),
            Some(LimitsError::Zero { name })
        );
    }
    let few = refused(|limits| limits.kv_groups[0].pages = 15, KvPolicy::Basic);
    let below = LimitsError::BelowOneContext {
        group: 0,
        pages: 15,
        needed: 16,
    };
    assert_eq!(few, Some(below));
    assert_eq!(
        refused(|limits| limits.kv_groups[0].pages = 15, KvPolicy::Paged),
        None
    );
}

/// The first token of each request in the order of their first admissions.
fn admitted(batches: &Batches) -> Vec<Token> {
    let batches = batches.lock().expect("no panic under the lock");
    let admissions = batches.iter().flat_map(|batch| &batch.admissions);
    admissions.map(|admission| admission.tokens[0]).collect()
}

fn with_priority(mut request: Request, priority: i8) -> Request {
    request.priority = priority;
    request
}

#[test]
fn a_higher_priority_goes_first_and_equal_ones_in_their_order() {
    let mut limits = small_limits();
    limits.max_rows = 1;
    let (mut engine, batches) = spied(limits, KvPolicy::Paged);
    for (token, priority) in [(1, 0), (2, -1), (3, 0), (4, 1), (5, 1), (6, 127), (7, -128)] {
        let request = with_priority(generate(&[token], 2), priority);
        engine.submit(request).unwrap();
    }
    run(&mut engine);
    assert_eq!(admitted(&batches), [6, 4, 5, 1, 3, 2, 7]);
}

#[test]
fn a_low_priority_waits_its_time_and_never_longer() {
    let mut limits = small_limits();
    limits.max_rows = 1;
    let (mut engine, batches) = spied(limits, KvPolicy::Paged);
    engine.submit(generate(&[1], 1)).unwrap();
    engine.submit(with_priority(generate(&[2], 1), -1)).unwrap();
    // There is always one that waits and has a higher priority; each takes a step.
    let mut steps = 0;
    while !admitted(&batches).contains(&2) {
        engine.submit(generate(&[3], 1)).unwrap();
        engine.step();
        engine.check();
        steps += 1;
    }
    let waited = Request::STEPS_OF_A_PRIORITY as usize;
    assert!((waited..waited + 4).contains(&steps), "{steps}");
}

#[test]
fn the_one_that_is_due_last_gives_up_its_pages() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 9)];
    let (mut engine, batches) = spied(limits, KvPolicy::Paged);
    let first = engine
        .submit(with_priority(generate(&[1; 3], 25), -1))
        .unwrap();
    engine.step();
    let second = engine.submit(generate(&[2; 3], 25)).unwrap();
    let (_, told) = run(&mut engine);
    assert_eq!(admitted(&batches), [1, 2, 1], "the older has the lower one");
    assert_eq!(told[&second].tokens, expected(&[2; 3], 25));
    assert_eq!(told[&first].reason(), Some(FinishReason::Length));
}

#[test]
fn prompts_beside_answers_come_in_chunks_of_the_size_chosen() {
    let options = EngineOptions {
        prompt_pace: PromptPace::Tokens(3),
        ..KvPolicy::Paged.into()
    };
    let mut engine = Engine::new(FakeRunner::new(small_limits()), options).unwrap();
    let running = engine.submit(generate(&[1; 20], 6)).unwrap();
    // Nothing else runs, so the first prompt has whole steps.
    engine.step();
    let long = engine.submit(generate(&[2; 10], 1)).unwrap();
    engine.submit(generate(&[3; 10], 1)).unwrap();
    let (steps, told) = run(&mut engine);
    let tokens: Vec<_> = steps.iter().map(|stats| stats.tokens).collect();
    // 4 of the first prompt and 12 of the others; an answer and 3, four times; the rest.
    assert_eq!(tokens, [16, 4, 4, 3, 1, 1]);
    assert_eq!(told[&running].tokens, expected(&[1; 20], 6));
    assert_eq!(told[&long].tokens, expected(&[2; 10], 1));
    let error = |prompt_pace| {
        let options = EngineOptions {
            prompt_pace,
            ..options
        };
        Engine::new(FakeRunner::new(small_limits()), options).err()
    };
    let name = "prompt_pace";
    assert_eq!(
        error(PromptPace::Tokens(0)),
        Some(LimitsError::Zero { name })
    );
    for none in [1.0, f32::NAN] {
        assert_eq!(
            error(PromptPace::Slowdown(none)),
            Some(LimitsError::Slowdown)
        );
    }
}
