//! What sequences share, each rule by itself, on the fake runner.

mod spy;

use fornax_engine::testing::{
    FakeRunner, Faults, Transcript, expected_logits, expected_token, kv_group, small_limits,
};
use fornax_engine::{
    Engine, EngineOptions, KvPolicy, Limits, LimitsError, PageCopy, Pooling, Request, RequestId,
    Runner, SamplingParams, StepStats, Task, Token,
};
use spy::{Batches, Spy};

fn generate(prompt: &[Token], max_tokens: usize) -> Request {
    let mut request = Request::generate(prompt.to_vec(), SamplingParams::greedy());
    if let Task::Generate(generation) = &mut request.task {
        generation.max_tokens = Some(max_tokens);
    }
    request
}

fn expected(prompt: &[Token], tokens: usize) -> Vec<Token> {
    let mut all = prompt.to_vec();
    for _ in 0..tokens {
        all.push(expected_token(&all, prompt.len(), 0, 100));
    }
    all.split_off(prompt.len())
}

/// These tokens and then one more.
fn and(tokens: &[Token], last: Token) -> Vec<Token> {
    [tokens, &[last]].concat()
}

/// As many different tokens.
fn text(tokens: usize) -> Vec<Token> {
    (1..=tokens as Token).collect()
}

/// Pages of four tokens, 16 tokens a step.
fn spied(limits: Limits) -> (Engine<Spy>, Batches) {
    let (spy, batches) = Spy::on(FakeRunner::new(limits));
    let engine = Engine::new(spy, KvPolicy::Paged).expect("limits with room");
    (engine, batches)
}

fn with_pages(pages: usize) -> Limits {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, pages)];
    limits
}

/// Steps to the end, checking at each.
fn run<R: Runner>(engine: &mut Engine<R>) -> Vec<StepStats> {
    let mut steps = Vec::new();
    while let Some(stats) = engine.step() {
        engine.check();
        steps.push(stats);
    }
    engine.check();
    steps
}

/// What these were told; everything else is dropped.
fn told<R: Runner>(engine: &mut Engine<R>, ids: &[RequestId]) -> Vec<Transcript> {
    let mut told = vec![Transcript::default(); ids.len()];
    for event in engine.events() {
        if let Some(index) = ids.iter().position(|&id| id == event.request) {
            told[index].record(event.kind);
        }
    }
    told
}

/// Runs one request to its end: its transcript, and how many tokens it had computed for it.
fn ask<R: Runner>(engine: &mut Engine<R>, request: Request) -> (Transcript, usize) {
    let id = engine.submit(request).expect("a valid request");
    let steps = run(engine);
    let told = told(engine, &[id]).remove(0);
    (told, steps.iter().map(|stats| stats.tokens).sum())
}

fn cached(told: &Transcript) -> usize {
    told.usage().expect("it finished").cached
}

#[test]
fn the_next_turn_computes_only_what_is_new() {
    let (mut engine, batches) = spied(small_limits());
    let (first, computed) = ask(&mut engine, generate(&text(10), 7));
    assert_eq!((cached(&first), computed), (0, 16));
    // Prompt and answer are there, but for the last token drawn, which was never fed.
    let turn = [&text(10)[..], &first.tokens, &[50, 51]].concat();
    let (second, computed) = ask(&mut engine, generate(&turn, 1));
    assert_eq!((cached(&second), computed), (16, 3));
    assert_eq!(second.tokens, expected(&turn, 1));
    // They end a page, so nothing was copied.
    let batches = batches.lock().unwrap();
    assert!(batches.iter().all(|batch| batch.copies.is_empty()));
    assert_eq!(batches.last().unwrap().table(0, 0)[..4], [0, 1, 2, 3]);
}

#[test]
fn a_page_in_which_prompts_part_is_copied_before_it_is_written() {
    let (mut engine, batches) = spied(small_limits());
    ask(&mut engine, generate(&text(10), 1));
    let other = and(&text(6), 60);
    let (told, computed) = ask(&mut engine, generate(&other, 1));
    assert_eq!((cached(&told), computed), (6, 1));
    assert_eq!(told.tokens, expected(&other, 1));
    let batches = batches.lock().unwrap();
    let copy = PageCopy {
        group: 0,
        source: 1,
        destination: 3,
        tokens: 2,
    };
    assert_eq!(batches[1].copies, [copy]);
    assert_eq!(batches[1].table(0, 0), [0, 3]);
}

#[test]
fn those_who_come_together_compute_what_they_share_once() {
    let (mut engine, _) = spied(small_limits());
    let prompts = [40, 41, 42].map(|last| and(&text(22), last));
    let ids = prompts
        .each_ref()
        .map(|prompt| engine.submit(generate(prompt, 2)).unwrap());
    let steps = run(&mut engine);
    // 23 tokens in two steps, and then one of each other beside the answer.
    let tokens: Vec<_> = steps.iter().map(|stats| stats.tokens).collect();
    assert_eq!(tokens, [16, 7, 3, 2]);
    for (told, prompt) in told(&mut engine, &ids).iter().zip(&prompts) {
        assert_eq!(told.tokens, expected(prompt, 2));
    }
    let hits: usize = steps.iter().map(|stats| stats.prefix_hits).sum();
    let queries: usize = steps.iter().map(|stats| stats.prefix_queries).sum();
    assert_eq!((hits, queries), (44, 69));
}

#[test]
fn less_than_a_page_is_not_waited_for() {
    let (mut engine, _) = spied(small_limits());
    for last in [40, 41] {
        engine.submit(generate(&and(&text(3), last), 1)).unwrap();
    }
    let steps = run(&mut engine);
    assert_eq!((steps.len(), steps[0].rows, steps[0].tokens), (1, 2, 8));
}

#[test]
fn who_waits_goes_on_alone_when_the_other_is_cancelled() {
    let (mut engine, _) = spied(small_limits());
    let first = engine.submit(generate(&and(&text(40), 70), 2)).unwrap();
    let second = engine.submit(generate(&and(&text(40), 71), 2)).unwrap();
    engine.step();
    engine.cancel(first);
    engine.check();
    let steps = run(&mut engine);
    // The first had 16 tokens computed.
    assert_eq!(steps.iter().map(|stats| stats.tokens).sum::<usize>(), 26);
    let told = told(&mut engine, &[second]).remove(0);
    assert_eq!(
        (cached(&told), told.tokens),
        (16, expected(&and(&text(40), 71), 2))
    );
}

#[test]
fn what_a_score_wants_is_computed_and_what_is_before_is_not() {
    let (mut engine, _) = spied(small_limits());
    ask(&mut engine, generate(&text(12), 1));
    let (told, computed) = ask(&mut engine, Request::score(text(12), 7..11));
    assert_eq!((cached(&told), computed), (7, 4));
    let logits: Vec<_> = (8..=11)
        .map(|end| expected_logits(&text(end), 100))
        .collect();
    assert_eq!((told.first_position, told.logits), (Some(7), logits));
}

#[test]
fn a_mean_needs_every_token_and_the_last_state_only_one() {
    let (mut engine, _) = spied(small_limits());
    ask(&mut engine, generate(&text(12), 1));
    let (_, computed) = ask(&mut engine, Request::embed(text(12), Pooling::Mean));
    assert_eq!(computed, 12);
    let (_, computed) = ask(&mut engine, Request::embed(text(12), Pooling::Last));
    assert_eq!(computed, 1);
}

#[test]
fn the_least_recently_used_prefix_goes_first_and_its_end_before_its_beginning() {
    let prompts = [10, 30, 50].map(|first| (first..first + 12).collect::<Vec<Token>>());
    for (index, left) in [12, 0, 4].into_iter().enumerate() {
        let (mut engine, _) = spied(with_pages(9));
        for prompt in &prompts {
            ask(&mut engine, generate(prompt, 1));
        }
        // All pages are cached. The first is used again, for which the second loses one to the
        // copy; a new one takes that, what is left of the second, and then the end of the third.
        ask(&mut engine, generate(&prompts[0], 1));
        let id = engine.submit(generate(&[9; 18], 1)).unwrap();
        let steps = run(&mut engine);
        assert_eq!(told(&mut engine, &[id])[0].tokens, expected(&[9; 18], 1));
        let evicted: usize = steps.iter().map(|stats| stats.evicted_pages).sum();
        assert_eq!(evicted, 4);
        let (told, _) = ask(&mut engine, generate(&and(&prompts[index], 99), 1));
        assert_eq!(cached(&told), left);
    }
}

#[test]
fn prefixes_are_evicted_before_anybody_is_preempted() {
    let (mut engine, _) = spied(with_pages(8));
    ask(&mut engine, generate(&text(30), 1));
    let ids = [60, 70].map(|token| engine.submit(generate(&[token], 15)).unwrap());
    let steps = run(&mut engine);
    assert!(steps.iter().all(|stats| stats.preempted == 0));
    assert_eq!(
        steps.iter().map(|stats| stats.evicted_pages).sum::<usize>(),
        8
    );
    for (told, token) in told(&mut engine, &ids).iter().zip([60, 70]) {
        assert_eq!(told.tokens, expected(&[token], 15));
    }
}

#[test]
fn a_preempted_sequence_finds_what_is_left_of_it() {
    let (mut engine, batches) = spied(with_pages(9));
    let ids = [60, 70].map(|token| engine.submit(generate(&[token; 8], 20)).unwrap());
    let steps = run(&mut engine);
    assert!(steps.iter().any(|stats| stats.preempted > 0));
    let batches = batches.lock().unwrap();
    let again = batches.iter().skip(1).find(|b| !b.admissions.is_empty());
    let again = again.expect("the second came back");
    let row = again
        .rows()
        .iter()
        .find(|row| row.slot == again.admissions[0].slot);
    assert!(row.expect("with a row").cached > 0);
    for (told, token) in told(&mut engine, &ids).iter().zip([60, 70]) {
        assert_eq!(told.tokens, expected(&[token; 8], 20));
        assert_eq!(cached(told), 0, "its own work is no hit");
    }
}

#[test]
fn a_request_that_needs_every_page_gets_them_whatever_is_cached() {
    let (mut engine, _) = spied(with_pages(8));
    ask(&mut engine, generate(&text(30), 2));
    // It parts from what is cached within a page; the copy's source is needed as well.
    let prompt = [&text(26)[..], &[90; 4]].concat();
    let (told, _) = ask(&mut engine, generate(&prompt, 2));
    assert_eq!(told.tokens, expected(&prompt, 2));
    assert_eq!(cached(&told), 24);
}

#[test]
fn nothing_is_shared_with_what_went_wrong() {
    let faults = Faults {
        not_finite: Some(20),
        wait: vec![4],
        ..Faults::default()
    };
    let runner = FakeRunner::with_faults(small_limits(), faults);
    let mut engine = Engine::new(runner, KvPolicy::Paged).unwrap();
    // Steps 0 and 1: the second chunk has the bad token. Then the first chunk is forgotten too.
    let (bad, _) = ask(&mut engine, generate(&text(20), 2));
    assert!(bad.failure().is_some());
    let (good, computed) = ask(&mut engine, generate(&text(18), 1));
    assert_eq!((cached(&good), computed), (0, 18));
    // Step 4 fails.
    let (failed, _) = ask(&mut engine, generate(&text(19), 1));
    assert!(failed.failure().is_some());
    let (good, computed) = ask(&mut engine, generate(&text(19), 1));
    assert_eq!((cached(&good), computed), (0, 19));
    assert_eq!(good.tokens, expected(&text(19), 1));
}

#[test]
fn nobody_goes_on_from_a_step_that_failed_before_it() {
    let faults = Faults {
        wait: vec![0],
        ..Faults::default()
    };
    let runner = FakeRunner::with_faults(small_limits(), faults).ahead();
    let mut engine = Engine::new(runner, KvPolicy::Paged).unwrap();
    // Step 0 computes the first; step 1 is under way by its end, and begins the second with that.
    let ids = [1, 2].map(|_| engine.submit(generate(&text(12), 3)).unwrap());
    run(&mut engine);
    for told in told(&mut engine, &ids) {
        let failure = told.failure().expect("nothing it had was sound");
        assert!(failure.to_string().contains("step 0"), "{failure}");
        assert_eq!(told.tokens, []);
    }
    // And nothing is left of it.
    let (good, computed) = ask(&mut engine, generate(&text(12), 3));
    assert_eq!((cached(&good), computed), (0, 14));
    assert_eq!(good.tokens, expected(&text(12), 3));
}

#[test]
fn a_prefix_cache_can_be_switched_off_and_must_be_where_there_are_no_pages() {
    let options = EngineOptions {
        prefix_cache: false,
        ..KvPolicy::Paged.into()
    };
    let mut engine = Engine::new(FakeRunner::new(small_limits()), options).unwrap();
    for _ in 0..2 {
        let (told, computed) = ask(&mut engine, generate(&text(12), 1));
        assert_eq!((cached(&told), computed), (0, 12));
    }
    for kv in [KvPolicy::None, KvPolicy::Basic] {
        let options = EngineOptions {
            kv,
            prefix_cache: true,
            ..options
        };
        let error = Engine::new(FakeRunner::new(small_limits()), options).err();
        assert_eq!(error, Some(LimitsError::PrefixCache));
    }
}

#[test]
fn pages_are_counted_by_who_holds_them() {
    let (mut engine, _) = spied(with_pages(16));
    ask(&mut engine, generate(&text(12), 1));
    engine.submit(generate(&and(&text(8), 60), 3)).unwrap();
    engine.submit(generate(&and(&text(8), 70), 3)).unwrap();
    let stats = engine.step().unwrap();
    assert_eq!((stats.running, stats.waiting), (2, 0));
    // Two pages shared by both, one of each; the third page of the first prompt is only cached.
    assert_eq!((stats.live_pages, stats.cached_pages), (4, 1));
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (18, 16));
}
