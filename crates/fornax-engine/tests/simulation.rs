//! Thousands of random requests on random engines, by seed.
//!
//! Whatever is asked, whenever it is cancelled and however few pages there are: each request is
//! told what it would be told alone, the invariants hold after every call, every request ends, and
//! no page is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use fornax_engine::testing::{FakeRunner, Faults, Random, Transcript, kv_group};
use fornax_engine::{
    Engine, EngineOptions, EventKind, Failure, FinishReason, Generation, KvPolicy, Limits, Pooling,
    PromptPace, Request, RequestError, RequestId, SamplingParams, StepStats, Task, Token,
};

const POLICIES: [KvPolicy; 3] = [KvPolicy::None, KvPolicy::Basic, KvPolicy::Paged];

/// Seeds of the main simulation, each with an engine of its own.
const SEEDS: u64 = 250;
/// Requests of one seed.
const REQUESTS: usize = 30;

#[test]
fn every_request_is_told_what_it_would_be_told_alone() {
    let mut total = Totals::default();
    for seed in 0..SEEDS {
        for policy in POLICIES {
            let mut random = Random(seed);
            let limits = random_limits(&mut random, policy);
            let faults = Faults {
                not_finite: random.one_in(4).then_some(7),
                ..Faults::default()
            };
            let runner = FakeRunner::with_faults(limits.clone(), faults.clone());
            let ahead = seed % 2 == 1;
            let runner = if ahead { runner.ahead() } else { runner };
            let options = random_options(&mut random, policy);
            let mut simulation = Simulation::new(Engine::new(runner, options).unwrap(), limits);
            (simulation.turns, simulation.ahead) = (true, ahead);
            simulation.run(&mut random);
            for submitted in simulation.submitted.values() {
                let runner = FakeRunner::with_faults(simulation.limits.clone(), faults.clone());
                let engine = Engine::new(runner, policy).unwrap();
                assert_as_alone(submitted, engine, &format!("seed {seed}, {options:?}"));
            }
            assert!(options.prefix_cache || simulation.sum(|stats| stats.prefix_queries) == 0);
            total.add(&simulation);
        }
    }
    // Each thing that the simulation is for really happened, often.
    assert!(
        total.requests > 20_000 && total.refused > 1_000,
        "{total:?}"
    );
    assert!(
        total.preempted > 1_000 && total.cancelled > 2_000,
        "{total:?}"
    );
    assert!(
        total.not_finite > 1_000 && total.reasons.len() == 5,
        "{total:?}"
    );
    assert!(
        total.hits * 10 > total.queries && total.evicted > 10_000 && total.turns > 1_000,
        "{total:?}"
    );
}

#[test]
fn a_failing_step_takes_its_rows_and_nobody_else() {
    let (mut failed, mut unharmed) = (0, 0);
    for seed in 0..150 {
        let mut random = Random(seed);
        let limits = random_limits(&mut random, KvPolicy::Paged);
        let some_steps = |random: &mut Random| (0..3).map(|_| random.below(60) as u64).collect();
        let faults = Faults {
            submit: some_steps(&mut random),
            wait: some_steps(&mut random),
            ..Faults::default()
        };
        let runner = FakeRunner::with_faults(limits.clone(), faults);
        let ahead = seed % 2 == 1;
        let runner = if ahead { runner.ahead() } else { runner };
        let mut simulation = Simulation::new(Engine::new(runner, KvPolicy::Paged).unwrap(), limits);
        simulation.ahead = ahead;
        simulation.run(&mut random);
        for submitted in simulation.submitted.values() {
            if let Some(Failure::Runner(error)) = submitted.told.failure() {
                assert!(error.0.contains("was to fail"), "{error}");
                failed += 1;
                continue;
            }
            let runner = FakeRunner::new(simulation.limits.clone());
            let engine = Engine::new(runner, KvPolicy::Paged).unwrap();
            assert_as_alone(submitted, engine, &format!("seed {seed}"));
            unharmed += 1;
        }
    }
    assert!(
        failed > 500 && unharmed > 2_000,
        "{failed} failed, {unharmed} unharmed"
    );
}

#[test]
fn the_three_policies_answer_the_same() {
    for seed in 0..200 {
        let told = POLICIES.map(|policy| {
            let mut random = Random(seed);
            let limits = Limits {
                max_rows: 1 + random.below(5),
                max_tokens: 1 + random.below(40),
                context: 48,
                vocabulary: 60,
                kv_groups: vec![kv_group(1 + random.below(9), 60)],
            };
            let engine = Engine::new(FakeRunner::new(limits.clone()), policy).unwrap();
            let mut simulation = Simulation::new(engine, limits);
            simulation.cancels = false;
            simulation.run(&mut random);
            simulation
                .submitted
                .into_values()
                .map(|submitted| submitted.told)
                .collect::<Vec<_>>()
        });
        let [none, basic, paged] = told;
        for (index, paged) in paged.iter().enumerate() {
            assert_same(paged, &none[index], &format!("seed {seed}, none"));
            assert_same(paged, &basic[index], &format!("seed {seed}, basic"));
        }
    }
}

/// One engine and what is asked of it.
struct Simulation {
    engine: Engine<FakeRunner>,
    limits: Limits,
    /// Whether requests are cancelled now and then.
    cancels: bool,
    /// Whether some requests go on where the answer of another has ended.
    turns: bool,
    /// Whether a step is planned while another runs.
    ahead: bool,
    submitted: BTreeMap<RequestId, Submitted>,
    refused: usize,
    steps: Vec<StepStats>,
}

struct Submitted {
    request: Request,
    told: Transcript,
}

impl Simulation {
    fn new(engine: Engine<FakeRunner>, limits: Limits) -> Self {
        Self {
            engine,
            limits,
            cancels: true,
            turns: false,
            ahead: false,
            submitted: BTreeMap::new(),
            refused: 0,
            steps: Vec::new(),
        }
    }

    /// Requests arrive in bursts while steps run, until all have ended.
    fn run(&mut self, random: &mut Random) {
        let mut texts = Vec::new();
        let requests = (0..REQUESTS).map(|_| random_request(random, &self.limits, &mut texts));
        let mut arrivals: Vec<_> = requests.collect();
        while !arrivals.is_empty() || !self.engine.is_idle() {
            if (self.engine.is_idle() || random.one_in(3))
                && let Some(mut request) = arrivals.pop()
            {
                if self.turns && random.one_in(3) {
                    self.begin_with_an_answer(&mut request, random);
                }
                self.submit(request);
                continue;
            }
            if self.cancels && random.one_in(50) {
                self.cancel_one(random);
            }
            if let Some(stats) = self.engine.step() {
                let duration = Duration::from_micros(random.below(1000) as u64);
                self.engine.took(&stats, duration);
                assert!(stats.rows <= self.limits.max_rows, "{stats:?}");
                assert!(
                    (1..=self.limits.max_tokens).contains(&stats.tokens),
                    "{stats:?}"
                );
                // A step that was planned while another ran counts those whom that one ended.
                assert!(
                    self.ahead || stats.running + stats.waiting == self.unfinished(),
                    "{stats:?}"
                );
                self.steps.push(stats);
            }
            self.engine.check();
            self.listen();
            assert!(self.steps.len() < self.most_steps(), "somebody starves");
        }
        for (id, submitted) in &self.submitted {
            assert!(submitted.told.end.is_some(), "{id:?} never ended");
        }
        let cached = |told: &Transcript| told.usage().map_or(0, |usage| usage.cached);
        let told = self.submitted.values();
        let cached: usize = told.map(|submitted| cached(&submitted.told)).sum();
        assert!(cached <= self.sum(|stats| stats.prefix_hits), "hits told");
    }

    /// The next turn of a conversation: what another was asked and answered, and something new.
    fn begin_with_an_answer(&self, request: &mut Request, random: &mut Random) {
        if self.submitted.is_empty() || !matches!(request.task, Task::Generate(_)) {
            return;
        }
        let before = self
            .submitted
            .values()
            .nth(random.below(self.submitted.len()));
        let before = before.expect("one of them");
        let mut prompt = [&before.request.prompt[..], &before.told.tokens].concat();
        prompt.append(&mut request.prompt);
        prompt.truncate(self.limits.context - 1);
        request.prompt = prompt;
    }

    /// Requests that had not ended when the last step was planned.
    fn unfinished(&self) -> usize {
        let told = self.submitted.values();
        told.filter(|submitted| submitted.told.end.is_none())
            .count()
    }

    /// Of all steps together.
    fn sum(&self, count: fn(&StepStats) -> usize) -> usize {
        self.steps.iter().map(count).sum()
    }

    fn submit(&mut self, request: Request) {
        match self.engine.submit(request.clone()) {
            Ok(id) => {
                let told = Transcript::default();
                self.submitted.insert(id, Submitted { request, told });
            }
            Err(error) => {
                assert!(matches!(error, RequestError::BeyondCache { .. }), "{error}");
                self.refused += 1;
            }
        }
        self.engine.check();
    }

    fn cancel_one(&mut self, random: &mut Random) {
        let ids: Vec<_> = self.submitted.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[random.below(ids.len())];
        let was_running = self.submitted[&id].told.end.is_none();
        assert_eq!(self.engine.cancel(id), was_running);
        self.engine.check();
        self.listen();
        assert!(
            self.submitted[&id].told.end.is_some(),
            "a cancelled request goes on"
        );
    }

    fn listen(&mut self) {
        for event in self.engine.events() {
            let submitted = self
                .submitted
                .get_mut(&event.request)
                .expect("somebody's event");
            submitted.told.record(event.kind);
        }
    }

    /// More steps than any fair engine needs, were it to run each request by itself, compute each
    /// token of it from nothing, and lose it all once for every other request.
    fn most_steps(&self) -> usize {
        let context = self.limits.context;
        let passes = context * context.div_ceil(self.limits.max_tokens);
        REQUESTS * passes * 2
    }
}

#[derive(Debug, Default)]
struct Totals {
    requests: usize,
    refused: usize,
    preempted: usize,
    cancelled: usize,
    not_finite: usize,
    steps: usize,
    tokens: usize,
    queries: usize,
    hits: usize,
    evicted: usize,
    /// Prompts that begin with another's prompt and some of its answer.
    turns: usize,
    reasons: BTreeMap<&'static str, usize>,
}

impl Totals {
    fn add(&mut self, simulation: &Simulation) {
        self.refused += simulation.refused;
        self.steps += simulation.steps.len();
        self.preempted += simulation.sum(|stats| stats.preempted);
        self.tokens += simulation.sum(|stats| stats.tokens);
        self.queries += simulation.sum(|stats| stats.prefix_queries);
        self.hits += simulation.sum(|stats| stats.prefix_hits);
        self.evicted += simulation.sum(|stats| stats.evicted_pages);
        let all = simulation.submitted.values();
        let answers = all.filter(|submitted| !submitted.told.tokens.is_empty());
        let begins = Vec::from_iter(answers.map(|submitted| {
            [&submitted.request.prompt[..], &submitted.told.tokens[..1]].concat()
        }));
        let is_turn = |submitted: &&Submitted| {
            let prompt = &submitted.request.prompt;
            begins.iter().any(|begin| prompt.starts_with(begin))
        };
        self.turns += simulation.submitted.values().filter(is_turn).count();
        for Submitted { told, .. } in simulation.submitted.values() {
            self.requests += 1;
            let Some(reason) = told.reason() else {
                self.not_finite += 1;
                continue;
            };
            let name = match reason {
                FinishReason::Stop(_) => "stop",
                FinishReason::Length => "length",
                FinishReason::Context => "context",
                FinishReason::Complete => "complete",
                FinishReason::Cancelled => "cancelled",
            };
            self.cancelled += usize::from(reason == FinishReason::Cancelled);
            *self.reasons.entry(name).or_default() += 1;
        }
    }
}

/// Few rows, a small budget, pages of any size; often too few for two sequences.
fn random_limits(random: &mut Random, policy: KvPolicy) -> Limits {
    let context = 16 + random.below(48);
    let groups = 1 + random.below(3);
    let groups = (0..groups).map(|_| {
        let page_size = 1 + random.below(9);
        let one_context = context.div_ceil(page_size);
        // Basic cannot do with less than a context; the others refuse some requests then.
        let fewest = match policy {
            KvPolicy::Basic => one_context,
            KvPolicy::None | KvPolicy::Paged => (one_context * 3).div_ceil(4),
        };
        let more = random.below(one_context) * [1, 1, 6][random.below(3)];
        kv_group(page_size, fewest + more)
    });
    Limits {
        kv_groups: groups.collect(),
        max_rows: 1 + random.below(6),
        max_tokens: 1 + random.below(20),
        context,
        vocabulary: 30 + random.below(40),
    }
}

/// Most engines share prefixes where they can, and some hold prompts back.
fn random_options(random: &mut Random, kv: KvPolicy) -> EngineOptions {
    EngineOptions {
        prefix_cache: kv == KvPolicy::Paged && !random.one_in(5),
        prompt_pace: match random.below(4) {
            0 | 1 => PromptPace::Whole,
            2 => PromptPace::Tokens(1 + random.below(8)),
            _ => PromptPace::Slowdown(2.5),
        },
        ..EngineOptions::from(kv)
    }
}

/// Half of all prompts begin like an earlier one of `texts`.
fn random_request(random: &mut Random, limits: &Limits, texts: &mut Vec<Vec<Token>>) -> Request {
    let longest = [limits.context - 1, 8, 8][random.below(3)];
    let length = 1 + random.below(longest);
    let token = |random: &mut Random| random.below(limits.vocabulary) as Token;
    let mut prompt = Vec::new();
    if !texts.is_empty() && random.one_in(2) {
        prompt.clone_from(&texts[random.below(texts.len())]);
        prompt.truncate(length - random.below(length).min(random.below(length)));
    }
    prompt.resize_with(length, || token(random));
    texts.push(prompt.clone());
    let mut request = random_task(random, limits, prompt);
    request.priority = [0, 0, 0, 1, -1, i8::MAX, i8::MIN][random.below(7)];
    request
}

fn random_task(random: &mut Random, limits: &Limits, prompt: Vec<Token>) -> Request {
    let length = prompt.len();
    let token = |random: &mut Random| random.below(limits.vocabulary) as Token;
    match random.below(8) {
        0 => {
            let start = random.below(length);
            let end = start + 1 + random.below(length - start);
            Request::score(prompt, start..end)
        }
        1 => Request::embed(prompt, Pooling::Mean),
        2 => Request::embed(prompt, Pooling::Last),
        _ => Request {
            prompt,
            task: Task::Generate(Generation {
                sampling: SamplingParams {
                    seed: random.number(),
                    ..SamplingParams::greedy()
                },
                max_tokens: (!random.one_in(4)).then(|| 1 + random.below(limits.context)),
                stop_tokens: (0..random.below(3)).map(|_| token(random)).collect(),
                logprobs: random.below(4).checked_sub(1),
            }),
            priority: 0,
        },
    }
}

/// Runs the request on an engine of its own and compares.
fn assert_as_alone(submitted: &Submitted, mut engine: Engine<FakeRunner>, context: &str) {
    engine
        .submit(submitted.request.clone())
        .expect("a request that was taken before");
    let mut alone = Transcript::default();
    while engine.step().is_some() {
        engine.events().for_each(|event| alone.record(event.kind));
    }
    let told = &submitted.told;
    if told.reason() != Some(FinishReason::Cancelled) {
        return assert_same(told, &alone, context);
    }
    assert!(
        alone.tokens.starts_with(&told.tokens),
        "{context}: {told:?}, alone {alone:?}"
    );
    assert!(
        alone.logits.starts_with(&told.logits),
        "{context}: other logits than alone"
    );
}

fn assert_same(told: &Transcript, alone: &Transcript, context: &str) {
    assert_eq!(told.tokens, alone.tokens, "{context}");
    // With a failure in it, how much of the prompt was told before depends on the chunks.
    if let (Some(Failure::NotFinite { .. }), Some(Failure::NotFinite { .. })) =
        (told.failure(), alone.failure())
    {
        return;
    }
    assert_eq!(told.logits, alone.logits, "{context}");
    assert_eq!(told.first_position, alone.first_position, "{context}");
    assert_eq!(ending(told), ending(alone), "{context}");
    // A mean over chunks is summed in another order.
    for (a, b) in told
        .pooled
        .iter()
        .flatten()
        .zip(alone.pooled.iter().flatten())
    {
        assert!((a - b).abs() <= 1e-5 * b.abs(), "{context}: {a}, alone {b}");
    }
    assert_eq!(told.pooled.is_some(), alone.pooled.is_some(), "{context}");
}

/// How it ended, but for what others had computed before.
fn ending(told: &Transcript) -> Option<EventKind> {
    let mut end = told.end.clone();
    if let Some(EventKind::Finished { usage, .. }) = &mut end {
        usage.cached = 0;
    }
    end
}
