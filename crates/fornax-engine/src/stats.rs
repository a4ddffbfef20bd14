//! What the engine counts, for metrics and tests.
//!
//! Owns the names only: counting is the scheduler's, and adding up is the reader's.

/// What one step did, and how things stood when it was planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepStats {
    /// Sequences that took part.
    pub rows: usize,
    /// Tokens that went through the model.
    pub tokens: usize,
    /// Rows that were run for an answer, not only for their K and V.
    pub wanted: usize,
    /// Rows of running sequences with a single new token: answers that go on.
    pub going_on: usize,
    /// Sequences that lost their pages to others before them and go back to the queue.
    pub preempted: usize,
    /// Tokens of the prompts admitted for the first time, if there is a prefix cache.
    pub prefix_queries: usize,
    /// Those of them that need not be computed.
    pub prefix_hits: usize,
    /// Pages that the prefix cache gave up.
    pub evicted_pages: usize,
    /// Requests that have a slot.
    pub running: usize,
    /// Requests that wait for one.
    pub waiting: usize,
    /// Pages that running sequences hold, over all KV groups.
    pub live_pages: usize,
    /// Pages that only the prefix cache holds, over all KV groups; they can be had at any time.
    pub cached_pages: usize,
}

/// How things stand between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that have a slot.
    pub running: usize,
    /// Requests that wait for one.
    pub waiting: usize,
    /// Pages that running sequences hold, over all KV groups.
    pub live_pages: usize,
    /// Pages that only the prefix cache holds, over all KV groups; they can be had at any time.
    pub cached_pages: usize,
}
