//! Which tokens go into the next step.
//!
//! Pure policy over sequences and pages: no device, no clock, no event. Knows no token's meaning;
//! what a sequence still wants is its own business.
//!
//! Who is due earlier goes first, always: it is admitted first, is fed first, and the one that is
//! due last gives up its pages when they are short. A priority moves the time that a request is
//! due, so a request has only so many before it, however many come later. The first of those
//! running never stops, and every request ends.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::pace::StepCosts;
use crate::pages::{KvCache, PageTables};
use crate::radix::common_prefix;
use crate::sequence::Sequence;
use crate::{
    Admission, EngineOptions, KvPolicy, Limits, LimitsError, Load, PromptPace, Request, RequestId,
    StepBatch, StepStats, Token, Want,
};

/// What is under way while a step is planned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    /// All that was submitted has ended.
    Nothing,
    /// One step, whose rows were [assumed](Scheduler::assume) to have run.
    Step,
}

pub(crate) struct Scheduler {
    options: EngineOptions,
    /// New tokens of one step.
    max_tokens: usize,
    /// Accepted and without a slot, in the order of their ranks.
    waiting: VecDeque<Sequence>,
    /// The running sequences by slot. `[max_rows]`
    slots: Vec<Option<Running>>,
    /// The taken slots, in the order of their sequences' ranks.
    order: Vec<usize>,
    cache: KvCache,
    /// Steps planned so far: the time by which requests are due.
    steps: i64,
    /// What steps took, as far as that is told.
    costs: StepCosts,
}

/// A sequence that has a slot and pages.
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    /// Tokens whose K and V are in the pages.
    cached: usize,
    tables: PageTables,
}

impl Running {
    /// Tokens that must go through the model before the next one can be drawn; 0 only while the
    /// last ones are under way.
    fn pending(&self) -> usize {
        self.sequence.tokens.len() - self.cached
    }
}

/// New tokens that the step being planned has room for.
struct Budget {
    /// Of any sequence.
    tokens: usize,
    /// Of sequences with more than one pending.
    prompt_tokens: usize,
}

impl Scheduler {
    pub(crate) fn new(limits: &Limits, options: EngineOptions) -> Result<Self, LimitsError> {
        let beside_answers = match options.prompt_pace {
            PromptPace::Tokens(most) => most,
            PromptPace::Slowdown(times) if times.is_nan() || times <= 1.0 => {
                return Err(LimitsError::Slowdown);
            }
            PromptPace::Slowdown(_) | PromptPace::Whole => 1,
        };
        let sizes = [
            ("max_rows", limits.max_rows),
            ("max_tokens", limits.max_tokens),
            ("context", limits.context),
            ("vocabulary", limits.vocabulary),
            ("prompt_pace", beside_answers),
        ];
        match sizes.into_iter().find(|(_, size)| *size == 0) {
            Some((name, _)) => Err(LimitsError::Zero { name }),
            None => Ok(Self {
                options,
                max_tokens: limits.max_tokens,
                waiting: VecDeque::new(),
                slots: (0..limits.max_rows).map(|_| None).collect(),
                order: Vec::with_capacity(limits.max_rows),
                cache: KvCache::new(limits, options.kv, options.prefix_cache)?,
                steps: 0,
                costs: StepCosts::default(),
            }),
        }
    }

    /// Tokens of the longest sequence whose K and V fit, if it has every page.
    pub(crate) fn cache_tokens(&self) -> usize {
        self.cache.capacity()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.order.is_empty() && self.waiting.is_empty()
    }

    /// When a request is due that comes now with this priority.
    pub(crate) fn due(&self, priority: i8) -> i64 {
        self.steps - i64::from(priority) * i64::from(Request::STEPS_OF_A_PRIORITY)
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            running: self.order.len(),
            waiting: self.waiting.len(),
            live_pages: self.cache.live(),
            cached_pages: self.cache.cached(),
        }
    }

    /// Whose sequence took this slot, if it never had one before.
    pub(crate) fn starts(&mut self, slot: usize) -> Option<RequestId> {
        let sequence = &mut self.running_mut(slot).sequence;
        let is_first = !std::mem::replace(&mut sequence.started, true);
        is_first.then_some(sequence.id)
    }

    /// Puts a sequence behind all that wait and are due earlier.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        let rank = sequence.rank();
        let place = self.waiting.partition_point(|other| other.rank() < rank);
        self.waiting.insert(place, sequence);
    }

    /// Fills `batch` with the next step; `None` when nothing is left to do.
    ///
    /// Rows with a single token first, so that running answers keep their pace; then what is left
    /// of prompts; then whoever can be admitted.
    ///
    /// Behind a step that is under way nobody gives up pages, for whose tokens are unknown cannot
    /// come again; where that would be needed, and where all waits for that step, the answer is
    /// `None` too.
    pub(crate) fn plan(&mut self, batch: &mut StepBatch, behind: Behind) -> Option<StepStats> {
        batch.clear();
        let is_last = behind == Behind::Nothing;
        if !is_last && (self.options.kv == KvPolicy::None || !self.grow()) {
            return None;
        }
        self.cache.end_copies();
        self.steps += 1;
        let evicted_before = self.cache.evicted();
        let mut stats = StepStats {
            preempted: self.grow_or_preempt(),
            ..StepStats::default()
        };
        let mut budget = Budget {
            tokens: self.max_tokens,
            prompt_tokens: self.max_tokens,
        };
        self.feed_running(batch, &mut budget, |pending| pending == 1);
        stats.going_on = batch.rows().len();
        if stats.going_on > 0 {
            budget.prompt_tokens = self.prompt_tokens_beside(stats.going_on);
        }
        self.feed_running(batch, &mut budget, |pending| pending > 1);
        self.admit(batch, &mut budget, &mut stats);
        stats.rows = batch.rows().len();
        stats.tokens = self.max_tokens - budget.tokens;
        let wanted = batch.rows().iter().filter(|row| row.want != Want::Nothing);
        stats.wanted = wanted.count();
        stats.evicted_pages = self.cache.evicted() - evicted_before;
        Load {
            running: stats.running,
            waiting: stats.waiting,
            live_pages: stats.live_pages,
            cached_pages: stats.cached_pages,
        } = self.load();
        assert!(
            stats.rows > 0 || !is_last || self.is_idle(),
            "invariant: the first sequence never stops"
        );
        (stats.rows > 0).then_some(stats)
    }

    /// How long a step took.
    pub(crate) fn took(&mut self, step: &StepStats, duration: Duration) {
        self.costs.observe(step, duration);
    }

    fn prompt_tokens_beside(&self, answers: usize) -> usize {
        match self.options.prompt_pace {
            PromptPace::Whole => self.max_tokens,
            PromptPace::Tokens(most) => most,
            PromptPace::Slowdown(times) => self.costs.prompt_tokens(answers, times),
        }
    }

    /// Whose rows a batch has that was just planned. `owners` is overwritten. `[n_rows]`
    pub(crate) fn owners(&self, batch: &StepBatch, owners: &mut Vec<RequestId>) {
        owners.clear();
        let rows = batch.rows().iter();
        owners.extend(rows.map(|row| self.running(row.slot).sequence.id));
    }

    /// The sequence that has this slot, if it still is that one.
    pub(crate) fn sequence(&mut self, slot: usize, owner: RequestId) -> Option<&mut Sequence> {
        let running = self.slots[slot].as_mut();
        let sequence = running.map(|running| &mut running.sequence);
        sequence.filter(|sequence| sequence.id == owner)
    }

    /// The step is submitted: its tokens are in the pages before any step behind it reads them, and
    /// a token that it draws can be the next one's input. Those who ended since are left out.
    pub(crate) fn assume(&mut self, batch: &StepBatch, owners: &[RequestId]) {
        for (index, (row, &owner)) in batch.rows().iter().zip(owners).enumerate() {
            if self.sequence(row.slot, owner).is_none() {
                continue;
            }
            let fed = self.advance(row.slot, batch.new_tokens(index));
            if let Want::Sample { .. } = row.want {
                self.running_mut(row.slot).sequence.await_token(index);
            }
            self.publish(row.slot, fed);
        }
    }

    /// The tokens of this slot's row are in the pages. Answers where in the sequence they are.
    fn advance(&mut self, slot: usize, tokens: usize) -> Range<usize> {
        let policy = self.options.kv;
        let running = self.running_mut(slot);
        let fed = running.cached..running.cached + tokens;
        running.cached = match policy {
            KvPolicy::None if fed.end == running.sequence.tokens.len() => 0,
            KvPolicy::None | KvPolicy::Basic | KvPolicy::Paged => fed.end,
        };
        fed
    }

    /// Lets others share the tokens at `fed` if they are of a prompt; those of an answer follow
    /// when it has ended.
    fn publish(&mut self, slot: usize, fed: Range<usize>) {
        let running = self.slots[slot].as_ref().expect(SLOT_TAKEN);
        if fed.start < running.sequence.prompt {
            let computed = &running.sequence.tokens[..running.cached];
            self.cache.publish(computed, &running.tables);
        }
    }

    /// Frees a slot and leaves its pages to those who begin with the same tokens.
    pub(crate) fn retire(&mut self, slot: usize) -> Sequence {
        let mut running = self.vacate(slot);
        let computed = &running.sequence.tokens[..running.cached];
        self.cache.publish(computed, &running.tables);
        self.cache.release(&mut running.tables);
        running.sequence
    }

    /// Frees a slot and its pages. Something went wrong there, so nobody shall begin with what
    /// began like it.
    pub(crate) fn discard(&mut self, slot: usize) -> Sequence {
        let mut running = self.vacate(slot);
        self.cache.forget(&running.sequence.tokens);
        self.cache.release(&mut running.tables);
        running.sequence
    }

    /// Takes a sequence out, wherever it is.
    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Sequence> {
        let is_it = |&slot: &usize| self.running(slot).sequence.id == id;
        if let Some(slot) = self.order.iter().copied().find(is_it) {
            return Some(self.retire(slot));
        }
        let index = self.waiting.iter().position(|sequence| sequence.id == id)?;
        self.waiting.remove(index)
    }

    /// Asserts that each page, slot and sequence is where it should be, exactly once.
    pub(crate) fn check(&self) {
        let running = self.order.iter().map(|&slot| self.running(slot));
        self.cache.check(
            running
                .clone()
                .map(|running| (&running.tables, running.cached)),
        );
        assert_eq!(
            self.order.len(),
            self.slots.iter().flatten().count(),
            "a slot is lost"
        );
        for running in running.clone() {
            assert!(
                running.pending() > 0,
                "a running sequence has nothing to do"
            );
        }
        let in_order = running.map(|running| running.sequence.rank());
        assert!(in_order.is_sorted(), "those running are out of order");
        let in_queue = self.waiting.iter().map(Sequence::rank);
        assert!(in_queue.is_sorted(), "those waiting are out of order");
    }

    /// Makes room for every running sequence's tokens, in order; false where pages are short.
    fn grow(&mut self) -> bool {
        let Self {
            order,
            slots,
            cache,
            ..
        } = self;
        order.iter().all(|&slot| {
            let running = slots[slot].as_mut().expect(SLOT_TAKEN);
            cache.reserve(&mut running.tables, running.sequence.tokens.len())
        })
    }

    /// As [`grow`](Self::grow), but the last one gives up its own when pages are short, be it the
    /// one that needs more.
    fn grow_or_preempt(&mut self) -> usize {
        let mut preempted = 0;
        let mut index = 0;
        while let Some(&slot) = self.order.get(index) {
            let running = self.slots[slot].as_mut().expect(SLOT_TAKEN);
            if self
                .cache
                .reserve(&mut running.tables, running.sequence.tokens.len())
            {
                index += 1;
            } else {
                self.preempt_last();
                preempted += 1;
            }
        }
        preempted
    }

    /// It goes back to its place in the queue. What it computed stays as long as it can.
    fn preempt_last(&mut self) {
        assert!(
            self.order.len() > 1,
            "invariant: a request that could not run alone is refused"
        );
        let last = *self.order.last().expect("invariant: two are running");
        let sequence = self.retire(last);
        self.enqueue(sequence);
    }

    /// Gives a row to each running sequence whose count of pending tokens is of this kind.
    fn feed_running(&self, batch: &mut StepBatch, budget: &mut Budget, kind: fn(usize) -> bool) {
        for &slot in &self.order {
            if kind(self.running(slot).pending()) {
                self.feed(slot, batch, budget);
            }
        }
    }

    /// Adds a row with as many of a sequence's pending tokens as the budget allows.
    fn feed(&self, slot: usize, batch: &mut StepBatch, budget: &mut Budget) {
        let running = self.running(slot);
        let new = match running.pending() {
            1 => budget.tokens.min(1),
            pending => pending.min(budget.tokens).min(budget.prompt_tokens),
        };
        if new == 0 {
            return;
        }
        let fed = running.cached..running.cached + new;
        let want = running.sequence.want(fed.clone());
        match running.sequence.awaited {
            Some(row) => batch.push_from_step(slot, row, fed.start, want),
            None => {
                let tokens = &running.sequence.tokens[fed.clone()];
                batch.push_tokens(slot, tokens, fed.start, want);
            }
        }
        for pages in self.cache.pages_of(&running.tables, fed.end) {
            batch.push_table(pages);
        }
        budget.tokens -= new;
        budget.prompt_tokens = budget.prompt_tokens.saturating_sub(new);
    }

    /// Admits the first of those waiting, while there is a slot, pages for all its known tokens,
    /// and budget left to start with. One that would compute what a running sequence is about to
    /// waits for that.
    fn admit(&mut self, batch: &mut StepBatch, budget: &mut Budget, stats: &mut StepStats) {
        while budget.tokens.min(budget.prompt_tokens) > 0
            && let Some(sequence) = self.waiting.front()
            && let Some(slot) = self.slots.iter().position(Option::is_none)
            && !self.is_being_computed(sequence.reusable())
            && let Some((tables, cached)) = self.cache.open(
                sequence.reusable(),
                sequence.tokens_at_admission(),
                sequence.most_tokens,
                &mut batch.copies,
            )
        {
            let sequence = self.waiting.pop_front();
            let mut sequence = sequence.expect("invariant: there is a front");
            if sequence.cached.is_none() && self.options.prefix_cache {
                stats.prefix_queries += sequence.prompt;
                stats.prefix_hits += cached;
                sequence.cached = Some(cached);
            }
            batch.admissions.push(Admission {
                slot,
                params: sequence.sampling(),
                tokens: sequence.tokens.clone(),
                prompt: sequence.prompt,
            });
            sequence.reserve();
            self.occupy(
                slot,
                Running {
                    sequence,
                    cached,
                    tables,
                },
            );
            self.feed(slot, batch, budget);
        }
    }

    /// Whether a running sequence will soon have computed a page more of these tokens than are
    /// known.
    fn is_being_computed(&self, tokens: &[Token]) -> bool {
        let Some(known) = self.cache.known(tokens) else {
            return false;
        };
        let worth_waiting = known + self.cache.largest_page();
        self.order.iter().any(|&slot| {
            let running = self.running(slot);
            let prompt = &running.sequence.tokens[..running.sequence.prompt];
            let common = common_prefix(prompt, tokens);
            common >= worth_waiting && common > running.cached
        })
    }

    fn occupy(&mut self, slot: usize, running: Running) {
        let rank = running.sequence.rank();
        let is_before = |&other: &usize| self.running(other).sequence.rank() < rank;
        let place = self.order.partition_point(is_before);
        self.order.insert(place, slot);
        self.slots[slot] = Some(running);
    }

    fn vacate(&mut self, slot: usize) -> Running {
        self.order.retain(|&taken| taken != slot);
        self.slots[slot]
            .take()
            .expect("invariant: a slot that is left was taken")
    }

    fn running(&self, slot: usize) -> &Running {
        self.slots[slot].as_ref().expect(SLOT_TAKEN)
    }

    fn running_mut(&mut self, slot: usize) -> &mut Running {
        self.slots[slot].as_mut().expect(SLOT_TAKEN)
    }
}

const SLOT_TAKEN: &str = "invariant: a slot in a step or in the order is taken";
