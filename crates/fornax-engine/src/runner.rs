//! The seam between the engine and the arithmetic: what one step is told and what it answers.
//!
//! A step is a list of rows, one a sequence. Prefill, a chunk of it, decode and verification
//! differ only in how many new tokens a row has; nothing here says which it is.

use std::ops::Range;

use crate::SamplingParams;

/// Index into the model's vocabulary.
pub type Token = u32;
/// Index of a KV page within its group.
pub type PageId = u32;

/// Runs the model over the rows of a step. The only place that touches a device.
pub trait Runner: Send {
    /// What fits in a step and in the cache; constant over the runner's life.
    fn limits(&self) -> &Limits;

    /// Starts a step. A CPU computes here; a GPU returns at once.
    ///
    /// # Errors
    /// A step that could not be started; its rows have not run.
    fn submit(&mut self, batch: &StepBatch) -> Result<Ticket, RunnerError>;

    /// Waits for a step and fills `output`, which has no rows, with one entry a row. Tickets are
    /// waited for in the order of their submission.
    ///
    /// # Errors
    /// What the device reported, naming the operation.
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), RunnerError>;

    /// Whether [`submit`](Self::submit) returns before its step has run, and another may be
    /// submitted meanwhile: two at most are under way at once.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Starts a step and waits for it.
    ///
    /// # Errors
    /// Those of [`submit`](Self::submit) and [`wait`](Self::wait).
    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), RunnerError> {
        let ticket = self.submit(batch)?;
        self.wait(ticket, output)
    }
}

/// So that a program can choose its runner while it runs.
impl<R: Runner + ?Sized> Runner for Box<R> {
    fn limits(&self) -> &Limits {
        (**self).limits()
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<Ticket, RunnerError> {
        (**self).submit(batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), RunnerError> {
        (**self).wait(ticket, output)
    }

    fn runs_ahead(&self) -> bool {
        (**self).runs_ahead()
    }
}

/// A step that was submitted and not yet waited for.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// Why a step failed: what, where and what to do, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RunnerError(pub String);

/// The sizes a runner was built for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of one step, and slots: sequences with sampler state at once.
    pub max_rows: usize,
    /// New tokens of one step, over all rows.
    pub max_tokens: usize,
    /// Tokens of the longest sequence, prompt and answer together.
    pub context: usize,
    /// Tokens of the vocabulary; every token is below it.
    pub vocabulary: usize,
    /// The layers' caches, by equal shape. A plain model has one group.
    pub kv_groups: Vec<KvGroup>,
}

/// Layers whose KV pages are handed out together: one page table serves them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// Tokens of one page.
    pub page_size: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// K elements of one token in one layer.
    pub k_width: usize,
    /// V elements of one token in one layer.
    pub v_width: usize,
    /// How many tokens back a query sees; `None` sees all.
    pub window: Option<usize>,
    /// Bytes of one page over all layers of the group.
    pub page_bytes: usize,
}

/// Everything one step is told, in flat buffers that are reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct StepBatch {
    /// Slots that a sequence takes with this step; their sampler state starts anew.
    pub admissions: Vec<Admission>,
    /// Done first: the start of a page copied into another, before anything is written.
    pub copies: Vec<PageCopy>,
    rows: Vec<Row>,
    /// New tokens of all rows, row after row.
    tokens: Vec<Token>,
    /// Page tables, row after row and in it group after group.
    pages: Vec<PageId>,
    /// Where each row's tables lie in `pages`. `[n_rows * n_groups]`
    tables: Vec<Range<usize>>,
}

/// One sequence's part in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The sequence's sampler state, below [`Limits::max_rows`]; one row a slot and step.
    pub slot: usize,
    /// The new tokens.
    pub input: Input,
    /// Tokens whose K and V are in the pages already; the new ones follow them.
    pub cached: usize,
    /// What to answer for this row.
    pub want: Want,
}

/// Where a row's new tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// These entries of the batch's tokens; never empty.
    Tokens(Range<usize>),
    /// The one token that this row of the step in flight samples; it never visits the host first.
    FromStep(usize),
}

/// What a row is run for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Want {
    /// Only its K and V.
    Nothing,
    /// A token drawn after the last new one.
    Sample {
        /// Whether its probability is told, and how many of the most likely tokens with theirs.
        logprobs: Option<usize>,
    },
    /// The logits after these of the row's new tokens, counted from the row's first.
    Logits(Range<usize>),
    /// One vector for the row's new tokens.
    Pooled(Pooling),
}

/// How hidden states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The last one.
    Last,
}

/// A sequence takes a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The slot taken.
    pub slot: usize,
    /// How its tokens are drawn.
    pub params: SamplingParams,
    /// Every token of the sequence so far: penalties count them, and afterwards each sampled one.
    pub tokens: Vec<Token>,
    /// How many of `tokens` are prompt; the rest was generated before a preemption.
    pub prompt: usize,
}

/// The first `tokens` tokens of a page, copied in every layer of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Which group's pages.
    pub group: usize,
    /// Copied from.
    pub source: PageId,
    /// Copied to.
    pub destination: PageId,
    /// Tokens of the page that count.
    pub tokens: usize,
}

impl StepBatch {
    /// Empties the batch and keeps its buffers.
    pub fn clear(&mut self) {
        self.admissions.clear();
        self.copies.clear();
        self.rows.clear();
        self.tokens.clear();
        self.pages.clear();
        self.tables.clear();
    }

    /// Adds a row with these new tokens. Its page tables follow by [`push_table`](Self::push_table),
    /// one for each KV group in order.
    pub fn push_tokens(&mut self, slot: usize, tokens: &[Token], cached: usize, want: Want) {
        assert!(!tokens.is_empty(), "a row has at least one new token");
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        let input = Input::Tokens(start..self.tokens.len());
        self.rows.push(Row {
            slot,
            input,
            cached,
            want,
        });
    }

    /// Adds a row whose one new token is sampled by `row` of the step in flight.
    pub fn push_from_step(&mut self, slot: usize, row: usize, cached: usize, want: Want) {
        self.rows.push(Row {
            slot,
            input: Input::FromStep(row),
            cached,
            want,
        });
    }

    /// Gives the last row its pages in the next KV group. They hold `cached` and new tokens.
    pub fn push_table(&mut self, pages: &[PageId]) {
        let start = self.pages.len();
        self.pages.extend_from_slice(pages);
        self.tables.push(start..self.pages.len());
    }

    /// The rows in order.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// A row's new tokens; empty when they come from the step in flight.
    pub fn tokens(&self, row: usize) -> &[Token] {
        match &self.rows[row].input {
            Input::Tokens(range) => &self.tokens[range.clone()],
            Input::FromStep(_) => &[],
        }
    }

    /// How many new tokens a row has.
    pub fn new_tokens(&self, row: usize) -> usize {
        match &self.rows[row].input {
            Input::Tokens(range) => range.len(),
            Input::FromStep(_) => 1,
        }
    }

    /// New tokens over all rows.
    pub fn total_tokens(&self) -> usize {
        (0..self.rows.len()).map(|row| self.new_tokens(row)).sum()
    }

    /// A row's pages in a KV group, first page first.
    pub fn table(&self, row: usize, group: usize) -> &[PageId] {
        let groups = self.tables.len() / self.rows.len();
        &self.pages[self.tables[row * groups + group].clone()]
    }
}

/// One answer a row, in the rows' order; reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// `[n_rows]`
    pub rows: Vec<RowOutput>,
}

/// What a row answers.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOutput {
    /// It wanted nothing.
    Nothing,
    /// The token drawn.
    Sampled {
        /// The token.
        token: Token,
        /// Its natural-log probability under the model's unmodified logits, where it is wanted.
        logprob: Option<f32>,
        /// The most likely tokens, most likely first.
        top: Vec<TokenLogprob>,
    },
    /// Logits after the wanted positions. `[n_positions, vocabulary]`
    Logits(Vec<f32>),
    /// The pooled hidden state. `[width]`
    Pooled(Vec<f32>),
    /// The model computed something that is no number here; the row has no answer.
    NotFinite,
}

/// A token and its natural-log probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: Token,
    /// ln p, at most 0.
    pub logprob: f32,
}
