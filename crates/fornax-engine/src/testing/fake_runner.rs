//! A runner that keeps tokens where a real one keeps K and V, and believes nothing.
//!
//! Each thing a step says is checked against the fake pages, and a lie is a panic. The next token
//! is a hash of the whole sequence *as read back from its pages*, so that whatever goes wrong with
//! the cache changes the answer. Knows nothing of the engine: it sees the seam only.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use super::oracle::{draw, logits, next_state, pool, state_after};
use crate::{
    Admission, Input, Limits, PageId, RowOutput, Runner, RunnerError, SamplingParams, StepBatch,
    StepOutput, Ticket, Token, TokenLogprob, Want,
};

/// Faults to inject; none by default. Steps count from 0.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// A row with this token among its new ones answers `NotFinite`.
    pub not_finite: Option<Token>,
    /// Steps whose submission fails.
    pub submit: Vec<u64>,
    /// Steps that fail when waited for, with K and V that are worth nothing.
    pub wait: Vec<u64>,
    /// The step that panics.
    pub panic: Option<u64>,
}

/// See the module.
pub struct FakeRunner {
    limits: Limits,
    faults: Faults,
    /// What each place of each page holds. `[n_groups][n_pages][page_size]`
    pages: Vec<Vec<Vec<Option<Cell>>>>,
    /// What each slot has been told. `[max_rows]`
    slots: Vec<Option<Slot>>,
    /// Steps submitted and not yet waited for, oldest first.
    in_flight: VecDeque<(u64, Vec<RowOutput>)>,
    /// What the last submitted step answered where it drew or failed to. `[n_rows]`
    drawn: Vec<RowOutput>,
    /// Steps submitted so far.
    steps: u64,
    /// Whether the step that runs is not to fail.
    sound: bool,
    runs_ahead: bool,
}

/// Stands for one token's K and V, which depend on all tokens before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    token: Token,
    state: u64,
    /// Whether it came of a step that did not fail, and of such cells only.
    sound: bool,
}

#[derive(Clone)]
struct Slot {
    params: SamplingParams,
    prompt: usize,
    /// All tokens of the sequence, those drawn here among them.
    tokens: Vec<Token>,
}

impl FakeRunner {
    /// A runner without faults.
    pub fn new(limits: Limits) -> Self {
        Self::with_faults(limits, Faults::default())
    }

    /// A runner with these faults.
    pub fn with_faults(limits: Limits, faults: Faults) -> Self {
        let groups = limits.kv_groups.iter();
        Self {
            faults,
            pages: groups
                .map(|group| vec![vec![None; group.page_size]; group.pages])
                .collect(),
            slots: vec![None; limits.max_rows],
            in_flight: VecDeque::new(),
            drawn: Vec::new(),
            steps: 0,
            sound: true,
            runs_ahead: false,
            limits,
        }
    }

    /// The same, taking a second step before the first is waited for.
    pub fn ahead(self) -> Self {
        Self {
            runs_ahead: true,
            ..self
        }
    }

    fn run(&mut self, batch: &StepBatch) -> Vec<RowOutput> {
        self.admit(&batch.admissions, batch);
        self.copy_pages(batch);
        self.check_sizes(batch);
        self.check_ownership(batch);
        let drawn_before = std::mem::take(&mut self.drawn);
        let rows = 0..batch.rows().len();
        rows.map(|row| self.run_row(batch, row, &drawn_before))
            .collect()
    }

    fn admit(&mut self, admissions: &[Admission], batch: &StepBatch) {
        for admission in admissions {
            assert!(
                batch.rows().iter().any(|row| row.slot == admission.slot),
                "an idle admission"
            );
            assert!(
                (1..=admission.tokens.len()).contains(&admission.prompt),
                "a wrong prompt"
            );
            self.slots[admission.slot] = Some(Slot {
                params: admission.params.clone(),
                prompt: admission.prompt,
                tokens: admission.tokens.clone(),
            });
        }
    }

    /// A device may do them all at once, so no page is in one as its source and in another as
    /// its destination.
    fn copy_pages(&mut self, batch: &StepBatch) {
        let all = || batch.copies.iter();
        let written: HashSet<_> = all().map(|copy| (copy.group, copy.destination)).collect();
        assert_eq!(
            written.len(),
            batch.copies.len(),
            "two copies onto one page"
        );
        assert!(
            all().all(|copy| !written.contains(&(copy.group, copy.source))),
            "a copy of a copy"
        );
        for copy in &batch.copies {
            let pages = &mut self.pages[copy.group];
            assert_ne!(copy.source, copy.destination, "a page copied onto itself");
            let cells = pages[copy.source as usize][..copy.tokens].to_vec();
            assert!(
                cells.iter().all(Option::is_some),
                "a copy of what was never written"
            );
            let destination = &mut pages[copy.destination as usize];
            destination.fill(None);
            destination[..copy.tokens].copy_from_slice(&cells);
        }
    }

    fn check_sizes(&self, batch: &StepBatch) {
        let slots: HashSet<_> = batch.rows().iter().map(|row| row.slot).collect();
        assert_eq!(slots.len(), batch.rows().len(), "one row a slot and step");
        assert!(!slots.is_empty(), "a step without rows");
        assert!(slots.len() <= self.limits.max_rows, "more rows than fit");
        assert!(
            batch.total_tokens() <= self.limits.max_tokens,
            "more tokens than fit"
        );
        for (index, row) in batch.rows().iter().enumerate() {
            let end = row.cached + batch.new_tokens(index);
            assert!(
                end <= self.limits.context,
                "a sequence longer than the context"
            );
            for (group, shape) in self.limits.kv_groups.iter().enumerate() {
                let table = batch.table(index, group);
                let distinct: HashSet<_> = table.iter().collect();
                assert_eq!(distinct.len(), table.len(), "a page twice in a table");
                assert_eq!(
                    table.len(),
                    end.div_ceil(shape.page_size),
                    "a table of another length"
                );
                assert!(
                    table.iter().all(|&page| (page as usize) < shape.pages),
                    "no such page"
                );
            }
        }
    }

    /// A page that one row writes is in no other row's table.
    fn check_ownership(&self, batch: &StepBatch) {
        for (group, shape) in self.limits.kv_groups.iter().enumerate() {
            let mut readers = vec![0; shape.pages];
            let rows = 0..batch.rows().len();
            for &page in rows.clone().flat_map(|row| batch.table(row, group)) {
                readers[page as usize] += 1;
            }
            for row in rows {
                let first_written = batch.rows()[row].cached / shape.page_size;
                for &page in &batch.table(row, group)[first_written..] {
                    assert_eq!(
                        readers[page as usize], 1,
                        "page {page} is written while shared"
                    );
                }
            }
        }
    }

    fn run_row(&mut self, batch: &StepBatch, row: usize, drawn: &[RowOutput]) -> RowOutput {
        let (slot, cached) = (batch.rows()[row].slot, batch.rows()[row].cached);
        let new = match &batch.rows()[row].input {
            Input::Tokens(_) => batch.tokens(row).to_vec(),
            Input::FromStep(earlier) => match &drawn[*earlier] {
                RowOutput::Sampled { token, .. } => vec![*token],
                RowOutput::NotFinite => {
                    // A device would compute something of no worth here.
                    self.drawn.push(RowOutput::NotFinite);
                    return RowOutput::NotFinite;
                }
                other => panic!("a token of a row that drew none: {other:?}"),
            },
        };
        let told = &self.slots[slot]
            .as_ref()
            .expect("a row in a slot that nobody took")
            .tokens;
        let fed = cached..cached + new.len();
        assert_eq!(
            told.get(fed.clone()),
            Some(&new[..]),
            "other tokens than the sequence's"
        );
        let told = told[..cached].to_vec();
        let groups = 0..self.pages.len();
        let sound = groups
            .clone()
            .map(|group| self.check_cached(group, batch.table(row, group), &told))
            .fold(self.sound, |all, one| all && one);
        for group in groups {
            let before = Cell {
                token: 0,
                state: state_after(&told),
                sound,
            };
            self.write(group, batch.table(row, group), cached, before, &new);
        }
        let mut states = self.states(batch.table(row, 0), fed);
        if !sound {
            // Whoever is told this is told something else than alone.
            states.iter_mut().for_each(|state| *state = !*state);
        }
        let output = match self.faults.not_finite {
            Some(bad) if new.contains(&bad) => RowOutput::NotFinite,
            _ => self.answer(slot, &batch.rows()[row].want, &states),
        };
        self.drawn.push(match &output {
            RowOutput::Sampled { .. } | RowOutput::NotFinite => output.clone(),
            _ => RowOutput::Nothing,
        });
        output
    }

    /// What is said to be cached must have been written, for this very sequence. Answers whether
    /// no step failed that wrote it.
    fn check_cached(&self, group: usize, table: &[PageId], tokens: &[Token]) -> bool {
        let (mut state, mut sound) = (0, true);
        for (position, &token) in tokens.iter().enumerate() {
            state = next_state(state, token);
            let cell = self.pages[group][table[position / self.page_size(group)] as usize]
                [position % self.page_size(group)];
            let written = cell.map(|cell| (cell.token, cell.state));
            assert_eq!(
                written,
                Some((token, state)),
                "position {position} is not cached"
            );
            sound &= cell.is_some_and(|cell| cell.sound);
        }
        sound
    }

    fn write(
        &mut self,
        group: usize,
        table: &[PageId],
        cached: usize,
        before: Cell,
        new: &[Token],
    ) {
        let size = self.page_size(group);
        let mut cell = before;
        for (position, &token) in (cached..).zip(new) {
            let state = next_state(cell.state, token);
            cell = Cell {
                token,
                state,
                ..cell
            };
            let page = &mut self.pages[group][table[position / size] as usize];
            page[position % size] = Some(cell);
        }
    }

    /// The states at these positions, read back from the first group's pages.
    fn states(&self, table: &[PageId], positions: Range<usize>) -> Vec<u64> {
        let size = self.page_size(0);
        let cells = positions.map(|at| self.pages[0][table[at / size] as usize][at % size]);
        cells
            .map(|cell| cell.expect("just written").state)
            .collect()
    }

    fn answer(&mut self, slot: usize, want: &Want, states: &[u64]) -> RowOutput {
        let vocabulary = self.limits.vocabulary;
        match want {
            Want::Nothing => RowOutput::Nothing,
            Want::Logits(wanted) => {
                assert!(!wanted.is_empty(), "logits wanted of no position");
                let wanted = states[wanted.clone()].iter();
                RowOutput::Logits(
                    wanted
                        .flat_map(|&state| logits(state, vocabulary))
                        .collect(),
                )
            }
            Want::Pooled(pooling) => RowOutput::Pooled(pool(states, *pooling)),
            Want::Sample { logprobs } => {
                let slot = self.slots[slot].as_mut().expect("checked by the row");
                let state = *states.last().expect("a row has tokens");
                let token = draw(state, slot.prompt, slot.params.seed, vocabulary);
                slot.tokens.push(token);
                let top = (0..logprobs.unwrap_or(0)).map(|rank| TokenLogprob {
                    token: (token + rank as Token) % vocabulary as Token,
                    logprob: -1.0 - rank as f32,
                });
                RowOutput::Sampled {
                    token,
                    logprob: logprobs.map(|_| -1.0),
                    top: top.collect(),
                }
            }
        }
    }

    fn page_size(&self, group: usize) -> usize {
        self.limits.kv_groups[group].page_size
    }
}

impl Runner for FakeRunner {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<Ticket, RunnerError> {
        let step = self.steps;
        self.steps += 1;
        assert!(self.in_flight.len() < 2, "too many steps under way");
        assert_ne!(self.faults.panic, Some(step), "step {step} was to panic");
        if self.faults.submit.contains(&step) {
            return Err(RunnerError(format!(
                "step {step} was to fail at submission"
            )));
        }
        self.sound = !self.faults.wait.contains(&step);
        let answers = self.run(batch);
        self.in_flight.push_back((step, answers));
        Ok(Ticket(step))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), RunnerError> {
        let (step, answers) = self
            .in_flight
            .pop_front()
            .expect("waited for a step not submitted");
        assert_eq!(step, ticket.0, "waited for steps out of their order");
        assert!(
            output.rows.is_empty(),
            "answers of an earlier step are left"
        );
        output.rows.extend(answers);
        match self.faults.wait.contains(&step) {
            true => Err(RunnerError(format!(
                "step {step} was to fail when waited for"
            ))),
            false => Ok(()),
        }
    }
}
