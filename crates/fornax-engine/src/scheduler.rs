//! Which tokens go into the next step.
//!
//! Pure policy over sequences and pages: no device, no clock, no event. Knows no token's meaning;
//! what a sequence still wants is its own business.
//!
//! Older requests go first, always: the running sequences are all older than the waiting ones,
//! and the youngest gives up its pages when they are short. So the oldest one never stops, and
//! every request ends.

use std::collections::VecDeque;
use std::ops::Range;

use crate::pages::{KvCache, KvPolicy, PageTables};
use crate::sequence::Sequence;
use crate::{Admission, Limits, LimitsError, RequestId, StepBatch, Want};

/// What one step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Sequences that took part.
    pub rows: usize,
    /// Tokens that went through the model.
    pub tokens: usize,
    /// Rows that were run for an answer, not only for their K and V.
    pub wanted: usize,
    /// Sequences that lost their pages to older ones and will be computed anew.
    pub preempted: usize,
}

pub(crate) struct Scheduler {
    policy: KvPolicy,
    /// New tokens of one step.
    max_tokens: usize,
    /// Accepted and without a slot, oldest first.
    waiting: VecDeque<Sequence>,
    /// The running sequences by slot. `[max_rows]`
    slots: Vec<Option<Running>>,
    /// The taken slots, oldest sequence first.
    order: Vec<usize>,
    cache: KvCache,
}

/// A sequence that has a slot and pages.
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    /// Tokens whose K and V are in the pages.
    cached: usize,
    tables: PageTables,
}

impl Running {
    /// Tokens that must go through the model before the next one can be drawn; never 0.
    fn pending(&self) -> usize {
        self.sequence.tokens.len() - self.cached
    }
}

impl Scheduler {
    pub(crate) fn new(limits: &Limits, policy: KvPolicy) -> Result<Self, LimitsError> {
        let sizes = [
            ("max_rows", limits.max_rows),
            ("max_tokens", limits.max_tokens),
            ("context", limits.context),
            ("vocabulary", limits.vocabulary),
        ];
        match sizes.into_iter().find(|(_, size)| *size == 0) {
            Some((name, _)) => Err(LimitsError::Zero { name }),
            None => Ok(Self {
                policy,
                max_tokens: limits.max_tokens,
                waiting: VecDeque::new(),
                slots: (0..limits.max_rows).map(|_| None).collect(),
                order: Vec::with_capacity(limits.max_rows),
                cache: KvCache::new(limits, policy)?,
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

    /// Puts a new sequence behind all others.
    pub(crate) fn enqueue(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Fills `batch` with the next step; `None` when nothing is left to do.
    ///
    /// Rows with a single token first, so that running answers keep their pace; then what is left
    /// of prompts, oldest first; then whoever can be admitted.
    pub(crate) fn plan(&mut self, batch: &mut StepBatch) -> Option<StepStats> {
        batch.clear();
        let preempted = self.grow_or_preempt();
        let mut budget = self.max_tokens;
        self.feed_running(batch, &mut budget, |pending| pending == 1);
        self.feed_running(batch, &mut budget, |pending| pending > 1);
        self.admit(batch, &mut budget);
        let wanted = batch.rows().iter().filter(|row| row.want != Want::Nothing);
        let stats = StepStats {
            rows: batch.rows().len(),
            tokens: self.max_tokens - budget,
            wanted: wanted.count(),
            preempted,
        };
        assert!(
            stats.rows > 0 || self.is_idle(),
            "invariant: the oldest sequence never stops"
        );
        (stats.rows > 0).then_some(stats)
    }

    /// The row of this slot has run: its tokens are in the pages. Answers the sequence and where
    /// in it those tokens are.
    pub(crate) fn advance(&mut self, slot: usize, tokens: usize) -> (&mut Sequence, Range<usize>) {
        let policy = self.policy;
        let running = self.running_mut(slot);
        let fed = running.cached..running.cached + tokens;
        running.cached = match policy {
            KvPolicy::None if fed.end == running.sequence.tokens.len() => 0,
            KvPolicy::None | KvPolicy::Basic | KvPolicy::Paged => fed.end,
        };
        (&mut running.sequence, fed)
    }

    /// Frees a slot and its pages.
    pub(crate) fn retire(&mut self, slot: usize) -> Sequence {
        self.order.retain(|&taken| taken != slot);
        let mut running = self.slots[slot]
            .take()
            .expect("invariant: a retired slot is taken");
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
        self.cache
            .check(running.clone().map(|running| &running.tables));
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
        let ids: Vec<_> = running
            .map(|running| running.sequence.id)
            .chain(self.waiting.iter().map(|sequence| sequence.id))
            .collect();
        assert!(
            ids.is_sorted(),
            "a younger request overtook an older one: {ids:?}"
        );
    }

    /// Makes room for every running sequence's known tokens, oldest first; the youngest gives up
    /// its own when pages are short, be it the one that needs more.
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
                self.preempt_youngest();
                preempted += 1;
            }
        }
        preempted
    }

    /// It goes back to the front of the queue: it is older than all who wait.
    fn preempt_youngest(&mut self) {
        assert!(
            self.order.len() > 1,
            "invariant: a request that could not run alone is refused"
        );
        let youngest = *self.order.last().expect("invariant: two are running");
        let sequence = self.retire(youngest);
        self.waiting.push_front(sequence);
    }

    /// Gives a row to each running sequence whose count of pending tokens is of this kind.
    fn feed_running(&self, batch: &mut StepBatch, budget: &mut usize, kind: fn(usize) -> bool) {
        for &slot in &self.order {
            if kind(self.running(slot).pending()) {
                self.feed(slot, batch, budget);
            }
        }
    }

    /// Adds a row with as many of a sequence's pending tokens as the budget allows.
    fn feed(&self, slot: usize, batch: &mut StepBatch, budget: &mut usize) {
        let running = self.running(slot);
        let new = running.pending().min(*budget);
        if new == 0 {
            return;
        }
        let fed = running.cached..running.cached + new;
        let want = running.sequence.want(fed.clone());
        batch.push_tokens(slot, &running.sequence.tokens[fed.clone()], fed.start, want);
        for pages in self.cache.pages_of(&running.tables, fed.end) {
            batch.push_table(pages);
        }
        *budget -= new;
    }

    /// Admits the oldest of those waiting, while there is a slot, pages for all its known tokens,
    /// and budget left to start with.
    fn admit(&mut self, batch: &mut StepBatch, budget: &mut usize) {
        while *budget > 0
            && let Some(sequence) = self.waiting.front()
            && let Some(slot) = self.slots.iter().position(Option::is_none)
        {
            let mut tables = self.cache.empty_tables(sequence.most_tokens);
            if !self
                .cache
                .reserve(&mut tables, sequence.tokens_at_admission())
            {
                return;
            }
            let mut sequence = self
                .waiting
                .pop_front()
                .expect("invariant: there is a front");
            batch.admissions.push(Admission {
                slot,
                params: sequence.sampling(),
                tokens: sequence.tokens.clone(),
                prompt: sequence.prompt,
            });
            sequence.reserve();
            self.slots[slot] = Some(Running {
                sequence,
                cached: 0,
                tables,
            });
            self.order.push(slot);
            self.feed(slot, batch, budget);
        }
    }

    fn running(&self, slot: usize) -> &Running {
        self.slots[slot].as_ref().expect(SLOT_TAKEN)
    }

    fn running_mut(&mut self, slot: usize) -> &mut Running {
        self.slots[slot].as_mut().expect(SLOT_TAKEN)
    }
}

const SLOT_TAKEN: &str = "invariant: a slot in a step or in the order is taken";
