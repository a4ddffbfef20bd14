//! What may be asked, what is refused, and how each answer ends.

use fornax_engine::testing::{
    FakeRunner, Transcript, expected_logits, expected_pooled, expected_token, kv_group,
    small_limits,
};
use fornax_engine::{
    Bounds, Engine, EventKind, FinishReason, Generation, KvPolicy, Pooling, Request, RequestError,
    SamplingError, SamplingParams, Task, Token, Usage,
};

const BOUNDS: Bounds = Bounds {
    context: 64,
    vocabulary: 100,
    cache_tokens: 40,
};

/// A request, with its generation changed.
fn generate(prompt: &[Token], change: impl FnOnce(&mut Generation)) -> Request {
    let mut request = Request::generate(prompt.to_vec(), SamplingParams::greedy());
    if let Task::Generate(generation) = &mut request.task {
        change(generation);
    }
    request
}

/// Everything that the request is told on an engine of its own.
fn events(request: Request) -> Vec<EventKind> {
    let mut engine =
        Engine::new(FakeRunner::new(small_limits()), KvPolicy::Paged).expect("limits with room");
    engine.submit(request).expect("a valid request");
    let mut events = Vec::new();
    while engine.step().is_some() {
        engine.check();
        events.extend(engine.events().map(|event| event.kind));
    }
    events
}

fn told(request: Request) -> Transcript {
    Transcript::of(events(request))
}

fn refused(request: Request) -> RequestError {
    request.validate(&BOUNDS).expect_err("a bad request")
}

#[test]
fn a_bad_prompt_is_refused_with_what_and_where() {
    let ask = |prompt: &[Token]| generate(prompt, |_| {});
    assert_eq!(refused(ask(&[])), RequestError::EmptyPrompt);
    let error = refused(ask(&[1; 65]));
    assert_eq!(
        error.to_string(),
        "the prompt has 65 tokens and the context holds 64; \
         shorten the prompt or enlarge the context"
    );
    assert_eq!(
        refused(ask(&[1; 64])),
        RequestError::NoRoomForAnswer { context: 64 }
    );
    let error = refused(ask(&[1, 2, 100]));
    assert_eq!(
        error.to_string(),
        "token 100 at position 2 of the prompt is unknown; \
         the vocabulary has 100 tokens, from 0: was it made with another tokenizer?"
    );
}

#[test]
fn a_bad_generation_is_refused() {
    let ask = |change: fn(&mut Generation)| refused(generate(&[1], change));
    assert_eq!(ask(|g| g.max_tokens = Some(0)), RequestError::NoTokens);
    let unknown = RequestError::UnknownStopToken {
        token: 100,
        vocabulary: 100,
    };
    assert_eq!(ask(|g| g.stop_tokens = vec![99, 100]), unknown);
    let top = RequestError::TopLogprobs {
        asked: 21,
        most: 20,
    };
    assert_eq!(ask(|g| g.logprobs = Some(21)), top);
    let error = ask(|g| g.sampling.temperature = f32::NAN);
    assert!(
        matches!(error, RequestError::Sampling(SamplingError::Range { .. })),
        "{error}"
    );
    // With it logits would be no numbers, which would be the weights' fault.
    for penalty in [0.0, 1e-45, 1e7, f32::INFINITY] {
        let mut request = generate(&[1], |_| {});
        if let Task::Generate(generation) = &mut request.task {
            generation.sampling.repetition_penalty = penalty;
        }
        let error = refused(request);
        assert!(error.to_string().contains("1e-6 to 1e6"), "{error}");
    }
    let error = ask(|g| g.sampling.logit_bias = vec![(100, 1.0)]);
    assert!(
        matches!(
            error,
            RequestError::Sampling(SamplingError::UnknownToken { .. })
        ),
        "{error}"
    );
}

#[test]
fn a_bad_range_to_score_is_refused() {
    for (start, end) in [(0, 0), (2, 2), (0, 4), (3, 2), (usize::MAX, usize::MAX)] {
        let error = refused(Request::score(vec![1, 2, 3], start..end));
        assert_eq!(
            error,
            RequestError::Positions {
                start,
                end,
                prompt: 3
            }
        );
    }
    assert_eq!(
        Request::score(vec![1, 2, 3], 2..3).validate(&BOUNDS),
        Ok(())
    );
}

#[test]
fn what_could_never_fit_alone_is_refused() {
    // The last token drawn needs no K and V: 20 + 21 tokens fit in 40 places.
    let ask = |max_tokens| generate(&[1; 20], |g| g.max_tokens = max_tokens);
    assert_eq!(ask(Some(21)).validate(&BOUNDS), Ok(()));
    assert_eq!(
        refused(ask(Some(22))),
        RequestError::BeyondCache {
            tokens: 41,
            cache: 40
        }
    );
    assert_eq!(
        refused(ask(None)),
        RequestError::BeyondCache {
            tokens: 63,
            cache: 40
        }
    );
    assert_eq!(refused(ask(Some(usize::MAX))), refused(ask(None)));
    assert_eq!(
        Request::embed(vec![1; 40], Pooling::Mean).validate(&BOUNDS),
        Ok(())
    );
    let error = refused(Request::embed(vec![1; 41], Pooling::Mean));
    assert_eq!(
        error,
        RequestError::BeyondCache {
            tokens: 41,
            cache: 40
        }
    );
    // What follows the last scored position is not computed, so it needs no place either.
    assert_eq!(
        Request::score(vec![1; 60], 10..40).validate(&BOUNDS),
        Ok(())
    );
}

#[test]
fn an_engine_refuses_what_its_bounds_refuse() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 10), kv_group(3, 20)];
    let mut engine = Engine::new(FakeRunner::new(limits), KvPolicy::Paged).unwrap();
    assert_eq!(engine.bounds(), BOUNDS);
    assert_eq!(
        engine.submit(generate(&[], |_| {})),
        Err(RequestError::EmptyPrompt)
    );
    assert!(engine.is_idle() && engine.step().is_none());
}

#[test]
fn a_request_that_just_fits_ends() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 10)];
    for policy in [KvPolicy::None, KvPolicy::Paged] {
        let mut engine = Engine::new(FakeRunner::new(limits.clone()), policy).unwrap();
        for max_tokens in [1, 2] {
            let prompt = vec![1; 41 - max_tokens];
            let request = generate(&prompt, |g| g.max_tokens = Some(max_tokens));
            engine.submit(request).unwrap();
        }
        engine.submit(Request::score(vec![1; 40], 39..40)).unwrap();
        while engine.step().is_some() {}
        let ended = engine.events().filter(|event| event.kind.is_last()).count();
        assert_eq!(ended, 3, "{policy:?}");
    }
}

#[test]
fn a_stop_token_is_the_reason_and_no_part_of_the_answer() {
    let free = told(generate(&[1, 2], |g| g.max_tokens = Some(10)));
    let stop = free.tokens[4];
    assert!(
        !free.tokens[..4].contains(&stop),
        "a prompt whose fifth token is new"
    );
    let stopped = told(generate(&[1, 2], |g| {
        g.max_tokens = Some(10);
        g.stop_tokens = vec![0, stop];
    }));
    assert_eq!(stopped.tokens, free.tokens[..4]);
    let usage = Usage {
        prompt: 2,
        generated: 5,
        cached: 0,
    };
    let reason = FinishReason::Stop(stop);
    assert_eq!(stopped.end, Some(EventKind::Finished { reason, usage }));
}

#[test]
fn a_stop_token_counts_even_as_the_last_one_allowed() {
    let stop = told(generate(&[1, 2], |g| g.max_tokens = Some(3))).tokens[2];
    let stopped = told(generate(&[1, 2], |g| {
        g.max_tokens = Some(3);
        g.stop_tokens = vec![stop];
    }));
    assert_eq!(stopped.reason(), Some(FinishReason::Stop(stop)));
}

#[test]
fn length_and_context_are_told_apart() {
    let length = told(generate(&[1; 10], |g| g.max_tokens = Some(7)));
    assert_eq!(
        (length.reason(), length.tokens.len()),
        (Some(FinishReason::Length), 7)
    );
    let context = told(generate(&[1; 10], |_| {}));
    assert_eq!(
        (context.reason(), context.tokens.len()),
        (Some(FinishReason::Context), 54)
    );
    let context = told(generate(&[1; 63], |g| g.max_tokens = Some(2)));
    assert_eq!(
        (context.reason(), context.tokens.len()),
        (Some(FinishReason::Context), 1)
    );
    let both = told(generate(&[1; 60], |g| g.max_tokens = Some(4)));
    assert_eq!(both.reason(), Some(FinishReason::Length));
}

#[test]
fn the_seed_and_the_prompt_decide_the_answer() {
    let ask = |seed| {
        told(generate(&[1, 2], |g| {
            g.sampling.seed = seed;
            g.max_tokens = Some(3);
        }))
    };
    let mut all = vec![1, 2];
    for _ in 0..3 {
        all.push(expected_token(&all, 2, 9, 100));
    }
    assert_eq!(ask(9).tokens, all[2..]);
    assert_ne!(ask(9).tokens, ask(10).tokens);
}

#[test]
fn alternatives_come_with_their_token() {
    let events = events(generate(&[1, 2], |g| {
        g.logprobs = Some(3);
        g.max_tokens = Some(2);
    }));
    assert_eq!(events[0], EventKind::Started);
    for event in &events[1..3] {
        let EventKind::Token {
            token,
            logprob,
            top,
        } = event
        else {
            panic!("{event:?} instead of a token");
        };
        assert_eq!((top[0].token, Some(top[0].logprob)), (*token, *logprob));
        assert_eq!(top.len(), 3);
    }
}

#[test]
fn a_score_answers_each_wanted_position_once() {
    // 50 tokens take four steps of 16; the range begins and ends within a chunk.
    let prompt: Vec<Token> = (0..50).collect();
    let told = told(Request::score(prompt.clone(), 13..41));
    assert_eq!(told.first_position, Some(13));
    let expected = (13..41).map(|position| expected_logits(&prompt[..=position], 100));
    assert_eq!(told.logits, expected.collect::<Vec<_>>());
    let usage = Usage {
        prompt: 41,
        generated: 0,
        cached: 0,
    };
    let reason = FinishReason::Complete;
    assert_eq!(told.end, Some(EventKind::Finished { reason, usage }));
}

#[test]
fn an_embedding_in_chunks_is_that_of_the_whole() {
    let prompt: Vec<Token> = (0..50).collect();
    let last = told(Request::embed(prompt.clone(), Pooling::Last));
    assert_eq!(last.pooled, Some(expected_pooled(&prompt, Pooling::Last)));
    let mean = told(Request::embed(prompt.clone(), Pooling::Mean))
        .pooled
        .unwrap();
    let expected = expected_pooled(&prompt, Pooling::Mean);
    for (a, b) in mean.iter().zip(&expected) {
        assert!(
            (a - b).abs() <= 1e-6 * b.abs(),
            "{mean:?} instead of {expected:?}"
        );
    }
    let short = told(Request::embed(prompt[..16].to_vec(), Pooling::Mean));
    assert_eq!(
        short.pooled,
        Some(expected_pooled(&prompt[..16], Pooling::Mean))
    );
}
