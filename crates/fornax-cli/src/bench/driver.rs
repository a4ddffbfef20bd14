//! Runs a test on a model: prompts of random tokens, then one token after the other.
//!
//! The protocol of `llama-bench`: prompts go through in steps of a batch, every further token by
//! itself, each drawn at random whatever the model says. Beyond it, after each row that ends a
//! prompt or an answer so far a token is drawn, as an engine must.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use fornax::engine::{
    Admission, PageId, Runner, SamplingParams, StepBatch, StepOutput, Ticket, Want,
};
use fornax::{KvPolicy, Operation, Profile, Spent, Token};

use super::random::Random;
use super::work::{Cost, Row, Work};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens after it, one a step.
    pub generate: usize,
    /// Tokens that stand before the prompt and are not measured.
    pub depth: usize,
    /// Sequences at once.
    pub parallel: usize,
    /// New tokens of one step.
    pub batch: usize,
}

impl Test {
    /// Tokens that count, over all sequences.
    pub fn tokens(&self) -> usize {
        (self.prompt + self.generate) * self.parallel
    }

    /// Tokens of a sequence at its end; what cannot be counted is more than any model's context.
    pub fn context(&self) -> usize {
        let measured = self.prompt.saturating_add(self.generate);
        self.depth.saturating_add(measured)
    }
}

/// As `llama-bench` calls it: `pp512 @ d1024`; of several sequences `tg128 x8`.
impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.prompt, self.generate) {
            (prompt, 0) => write!(f, "pp{prompt}")?,
            (0, generate) => write!(f, "tg{generate}")?,
            (prompt, generate) => write!(f, "pp{prompt}+tg{generate}")?,
        }
        if self.depth > 0 {
            write!(f, " @ d{}", self.depth)?;
        }
        if self.parallel > 1 {
            write!(f, " x{}", self.parallel)?;
        }
        Ok(())
    }
}

/// One run of a test.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// All that counts.
    pub total: Duration,
    /// From its start to the first token drawn of every sequence.
    pub first_token: Duration,
    /// Each step of a prompt, and each further token of all sequences.
    pub forwards: Vec<Duration>,
    /// What it cost.
    pub cost: Cost,
    /// What each operation took, of a runner that counts it.
    pub spent: BTreeMap<Operation, Spent>,
}

/// A runner and sequences on it.
pub struct Driver {
    runner: Box<dyn Runner>,
    work: Work,
    kv: KvPolicy,
    profile: Option<Profile>,
    random: Random,
    sequences: Vec<Sequence>,
    batch: StepBatch,
    output: StepOutput,
}

/// What a sequence has.
struct Sequence {
    tokens: Vec<Token>,
    /// Tokens whose K and V are in the pages.
    cached: usize,
    /// By KV group: a context's worth of pages.
    tables: Vec<Vec<PageId>>,
}

impl Sequence {
    /// Whether the model has seen, or is about to see, all of it.
    fn is_cached(&self) -> bool {
        self.cached == self.tokens.len()
    }
}

impl Driver {
    /// A driver whose runs on equal runners feed equal tokens.
    pub fn new(
        runner: Box<dyn Runner>,
        work: Work,
        kv: KvPolicy,
        profile: Option<Profile>,
    ) -> Self {
        Self {
            runner,
            work,
            kv,
            profile,
            random: Random::new(1),
            sequences: Vec::new(),
            batch: StepBatch::default(),
            output: StepOutput::default(),
        }
    }

    /// Runs what a test will, so that no run pays for what happens once.
    pub fn warm_up(&mut self, test: &Test) -> Result<()> {
        self.run(&Test {
            generate: test.generate.min(1),
            depth: 0,
            ..*test
        })?;
        Ok(())
    }

    /// Runs a test from empty pages.
    pub fn run(&mut self, test: &Test) -> Result<Run> {
        self.start(test);
        if test.depth > 0 {
            self.feed(1, test.depth, test, &mut Run::default())?;
        }
        let mut run = Run::default();
        // What went before is not of this run.
        drop(self.profile.as_ref().map(Profile::take));
        let start = Instant::now();
        if test.prompt > 0 {
            self.feed(1, test.prompt, test, &mut run)?;
            run.first_token = start.elapsed();
        }
        self.feed(test.generate, 1, test, &mut run)?;
        run.total = start.elapsed();
        if let (0, Some(first)) = (test.prompt, run.forwards.first()) {
            run.first_token = *first;
        }
        run.spent = self.profile.as_ref().map(Profile::take).unwrap_or_default();
        Ok(run)
    }

    /// New sequences, each in its slot.
    fn start(&mut self, test: &Test) {
        self.sequences.clear();
        self.batch.clear();
        let groups = self.runner.limits().kv_groups.len();
        let mut pages: Vec<Vec<Vec<PageId>>> = (0..groups)
            .map(|group| self.deal_pages(group, test))
            .collect();
        for slot in (0..test.parallel).rev() {
            let tables = pages
                .iter_mut()
                .map(|group| group.pop().expect("invariant: pages for every sequence"))
                .collect();
            self.sequences.push(Sequence {
                tokens: Vec::new(),
                cached: 0,
                tables,
            });
            self.batch.admissions.push(Admission {
                slot,
                params: SamplingParams::greedy(),
                tokens: Vec::new(),
                prompt: 0,
            });
        }
    }

    /// Each sequence's pages in a group: in order, or under the policy `paged` as scattered as
    /// they are in an engine that has run for a while.
    fn deal_pages(&mut self, group: usize, test: &Test) -> Vec<Vec<PageId>> {
        let group = &self.runner.limits().kv_groups[group];
        let each = test.context().div_ceil(group.page_size);
        let mut pages: Vec<PageId> = (0..group.pages as PageId).collect();
        if self.kv == KvPolicy::Paged {
            self.random.shuffle(&mut pages);
        }
        let dealt = pages.chunks(each).take(test.parallel);
        dealt.map(<[PageId]>::to_vec).collect()
    }

    /// So many times: gives every sequence `new` random tokens and runs the model over what it has not
    /// seen. Notes how long each step of a prompt took, or each token of all sequences. As in an engine,
    /// a runner that runs ahead has the next step before the answer of the last one is taken; a step's
    /// time is that from the last answer to its own.
    fn feed(&mut self, times: usize, new: usize, test: &Test, run: &mut Run) -> Result<()> {
        let most = usize::from(self.runner.runs_ahead());
        let step_tokens = test.batch.min(self.runner.limits().max_tokens);
        let mut under_way = VecDeque::new();
        let mut before = Instant::now();
        for _ in 0..times {
            self.extend(new);
            // Without a cache, or with more tokens than a step holds, it takes several.
            while self.fill_step(step_tokens, run) {
                let is_noted = new > 1 || self.sequences.iter().all(Sequence::is_cached);
                under_way.push_back((self.runner.submit(&self.batch)?, is_noted));
                self.batch.clear();
                while under_way.len() > most {
                    self.take_oldest(&mut under_way, &mut before, run)?;
                }
            }
        }
        while !under_way.is_empty() {
            self.take_oldest(&mut under_way, &mut before, run)?;
        }
        Ok(())
    }

    /// Takes the answer of the step that was submitted first, and its time where that is to be noted.
    fn take_oldest(
        &mut self,
        under_way: &mut VecDeque<(Ticket, bool)>,
        before: &mut Instant,
        run: &mut Run,
    ) -> Result<()> {
        let Some((ticket, is_noted)) = under_way.pop_front() else {
            return Ok(());
        };
        self.output.rows.clear();
        self.runner.wait(ticket, &mut self.output)?;
        if !is_noted {
            return Ok(());
        }
        let now = Instant::now();
        run.forwards.push(now - *before);
        *before = now;
        Ok(())
    }

    /// Gives every sequence `new` random tokens.
    fn extend(&mut self, new: usize) {
        let vocabulary = self.runner.limits().vocabulary;
        for sequence in &mut self.sequences {
            if self.kv == KvPolicy::None {
                sequence.cached = 0;
            }
            let random = (0..new).map(|_| self.random.below(vocabulary) as Token);
            sequence.tokens.extend(random);
        }
    }

    /// Puts up to `room` tokens into the step; false where none was left.
    fn fill_step(&mut self, mut room: usize, run: &mut Run) -> bool {
        let mut rows = Vec::new();
        for (slot, sequence) in self.sequences.iter_mut().enumerate() {
            let new: Range<usize> =
                sequence.cached..sequence.tokens.len().min(sequence.cached + room);
            if new.is_empty() {
                continue;
            }
            room -= new.len();
            let output = new.end == sequence.tokens.len();
            let want = match output {
                true => Want::Sample { logprobs: None },
                false => Want::Nothing,
            };
            let tokens = &sequence.tokens[new.clone()];
            self.batch.push_tokens(slot, tokens, new.start, want);
            for (table, group) in sequence.tables.iter().zip(&self.runner.limits().kv_groups) {
                let pages = new.end.div_ceil(group.page_size);
                self.batch.push_table(&table[..pages]);
            }
            rows.push(Row {
                new: new.len(),
                cached: new.start,
                output,
            });
            sequence.cached = new.end;
        }
        if !rows.is_empty() {
            run.cost += self.work.of_step(&rows);
        }
        !rows.is_empty()
    }
}
