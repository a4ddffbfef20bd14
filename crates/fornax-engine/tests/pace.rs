//! Running answers keep their pace while prompts arrive: clients on a clock that is only counted.

use std::collections::BTreeMap;
use std::time::Duration;

use fornax_engine::testing::{FakeRunner, Random, kv_group};
use fornax_engine::{
    Engine, EngineOptions, EventKind, KvPolicy, Limits, PromptPace, Request, RequestId,
    SamplingParams, Task, Token,
};

/// What a machine takes for a step, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// To read the weights.
    step: f64,
    answer: f64,
    prompt_token: f64,
}

/// Memory holds it up, as most do.
const CPU: Machine = Machine {
    step: 25_000.0,
    answer: 2_000.0,
    prompt_token: 1_300.0,
};
/// Eight answers take twice as long as one.
const WEAK_CPU: Machine = Machine {
    step: 50_000.0,
    answer: 9_000.0,
    prompt_token: 2_900.0,
};
const GPU: Machine = Machine {
    step: 800.0,
    answer: 15.0,
    prompt_token: 5.0,
};

/// Users who each ask again as soon as they are answered.
struct Load {
    clients: usize,
    requests: usize,
    prompt: usize,
    answer: usize,
}

/// What those users saw, in milliseconds.
struct Seen {
    /// Between the tokens of an answer. Sorted.
    gaps: Vec<f64>,
    /// To the first token. Sorted.
    firsts: Vec<f64>,
}

impl Seen {
    fn gap(&self, percent: usize) -> f64 {
        self.gaps[(self.gaps.len() - 1) * percent / 100]
    }

    fn median_first(&self) -> f64 {
        self.firsts[self.firsts.len() / 2]
    }
}

fn limits() -> Limits {
    Limits {
        max_rows: 8,
        max_tokens: 512,
        context: 2048,
        vocabulary: 1000,
        kv_groups: vec![kv_group(64, 256)],
    }
}

fn run(machine: Machine, load: &Load, prompt_pace: PromptPace) -> Seen {
    let options = EngineOptions {
        prompt_pace,
        ..KvPolicy::Paged.into()
    };
    let mut engine = Engine::new(FakeRunner::new(limits()), options).expect("limits with room");
    let mut random = Random(1);
    let mut seen = Seen {
        gaps: Vec::new(),
        firsts: Vec::new(),
    };
    // Since when each request waits for its next token, and whether that is the first.
    let mut waiting = BTreeMap::<RequestId, (f64, bool)>::new();
    let (mut now, mut asked) = (0.0, 0);
    loop {
        while asked < load.requests && waiting.len() < load.clients {
            // Users are not in step with each other.
            let answer = load.answer / 2 + random.below(load.answer);
            let id = engine.submit(request(&mut random, load.prompt, answer));
            waiting.insert(id.expect("a request within bounds"), (now, true));
            asked += 1;
        }
        let Some(step) = engine.step() else {
            seen.gaps.sort_by(f64::total_cmp);
            seen.firsts.sort_by(f64::total_cmp);
            return seen;
        };
        let prompt_tokens = step.tokens - step.going_on;
        let took = machine.step
            + machine.answer * step.going_on as f64
            + machine.prompt_token * prompt_tokens as f64;
        // No machine is the same all the time.
        let took = took * (1.0 + random.below(100) as f64 / 1000.0);
        engine.took(&step, Duration::from_nanos((took * 1e3) as u64));
        now += took / 1e3;
        for event in engine.events() {
            match event.kind {
                EventKind::Token { .. } => {
                    let (since, is_first) = waiting[&event.request];
                    let times = if is_first {
                        &mut seen.firsts
                    } else {
                        &mut seen.gaps
                    };
                    times.push(now - since);
                    waiting.insert(event.request, (now, false));
                }
                EventKind::Finished { .. } => drop(waiting.remove(&event.request)),
                _ => {}
            }
        }
    }
}

fn request(random: &mut Random, prompt: usize, answer: usize) -> Request {
    let prompt = (0..prompt).map(|_| random.below(1000) as Token).collect();
    let mut request = Request::generate(prompt, SamplingParams::greedy());
    if let Task::Generate(generation) = &mut request.task {
        generation.max_tokens = Some(answer);
    }
    request
}

const CHATS: Load = Load {
    clients: 8,
    requests: 96,
    prompt: 150,
    answer: 64,
};

#[test]
fn answers_keep_their_pace_on_any_machine() {
    for machine in [CPU, WEAK_CPU, GPU] {
        for prompt in [150, 1000] {
            let load = Load { prompt, ..CHATS };
            let seen = run(machine, &load, PromptPace::Slowdown(2.5));
            let (p50, p99) = (seen.gap(50), seen.gap(99));
            assert!(
                p99 <= 2.5 * p50,
                "{machine:?}, prompts of {prompt}: p50 {p50} p99 {p99}"
            );
        }
    }
}

#[test]
fn without_a_bound_or_with_one_size_for_all_they_do_not() {
    let slow = run(CPU, &CHATS, PromptPace::Whole);
    assert!(slow.gap(99) > 3.0 * slow.gap(50), "{}", slow.gap(99));
    // What suits a CPU wastes a GPU: a prompt that could go in one step takes five of them.
    let fixed = run(GPU, &CHATS, PromptPace::Tokens(32));
    let paced = run(GPU, &CHATS, PromptPace::Slowdown(2.5));
    assert!(paced.median_first() < fixed.median_first() / 2.0);
}

#[test]
fn who_is_alone_has_whole_steps_for_a_prompt() {
    let alone = Load {
        clients: 1,
        requests: 4,
        prompt: 1024,
        answer: 2,
    };
    let seen = run(CPU, &alone, PromptPace::Slowdown(2.5));
    // Two steps of 512.
    let two = (2.0 * CPU.step + 1024.0 * CPU.prompt_token) / 1e3;
    assert!(seen.median_first() < two * 1.1, "{}", seen.median_first());
}

#[test]
fn a_prompt_comes_to_its_end_whatever_answers_go_on() {
    // An answer's token costs as much as a prompt's, so there is hardly a share to give.
    let scalar = Machine {
        step: 0.0,
        answer: 10_000.0,
        prompt_token: 10_000.0,
    };
    let load = Load {
        clients: 2,
        requests: 8,
        prompt: 200,
        answer: 200,
    };
    let seen = run(scalar, &load, PromptPace::Slowdown(1.001));
    assert_eq!(seen.firsts.len(), 8);
}
