//! One request's tokens, and what its answer still lacks.
//!
//! Owns what a row of this sequence wants and what an output means for it. Knows no page, slot or
//! budget: where it runs, and how much of it at once, is the scheduler's.

use std::ops::Range;

use crate::{
    EventKind, Failure, FinishReason, Generation, Pooling, Request, RequestId, RowOutput,
    SamplingParams, Task, Token, TokenLogprob, Usage, Want,
};

/// A request that was accepted and has not ended.
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// Prompt, then answer. `[n_prompt + n_generated]`
    pub(crate) tokens: Vec<Token>,
    /// How many of `tokens` are prompt.
    pub(crate) prompt: usize,
    /// Length of `tokens` at which it ends.
    pub(crate) most_tokens: usize,
    /// When its turn is: in steps, ahead or behind of its arrival by its priority.
    pub(crate) due: i64,
    /// Whether it was ever admitted.
    pub(crate) started: bool,
    /// Tokens of the prompt that were there when it was first admitted; `None` before that.
    pub(crate) cached: Option<usize>,
    /// The row of the step under way that draws the last of `tokens`, which is not known here yet.
    pub(crate) awaited: Option<usize>,
    /// What is left to do: positions that were scored are no longer in it.
    task: Task,
    /// Mean hidden state of the tokens fed so far; empty but for [`Pooling::Mean`]. `[width]`
    mean: Vec<f32>,
}

impl Sequence {
    /// A valid request. What follows the last position to score is cut: nothing depends on it.
    pub(crate) fn new(id: RequestId, mut request: Request, context: usize, due: i64) -> Self {
        let most_tokens = request.most_tokens(context);
        request.prompt.truncate(most_tokens);
        Self {
            id,
            prompt: request.prompt.len(),
            tokens: request.prompt,
            most_tokens,
            due,
            started: false,
            cached: None,
            awaited: None,
            task: request.task,
            mean: Vec::new(),
        }
    }

    /// Whose turn is first: no two sequences have the same.
    pub(crate) fn rank(&self) -> (i64, RequestId) {
        (self.due, self.id)
    }

    /// Its first tokens that need not go through the model where their K and V
    /// are known. The last one always must, and so must all whose answer is wanted.
    pub(crate) fn reusable(&self) -> &[Token] {
        let reusable = match &self.task {
            Task::Generate(_) | Task::Embed(Pooling::Last) => self.tokens.len() - 1,
            Task::Score { positions } => positions.start,
            Task::Embed(Pooling::Mean) => 0,
        };
        &self.tokens[..reusable]
    }

    /// How its tokens are drawn; whatever draws none takes the greedy parameters.
    pub(crate) fn sampling(&self) -> SamplingParams {
        match &self.task {
            Task::Generate(generation) => generation.sampling.clone(),
            Task::Score { .. } | Task::Embed(_) => SamplingParams::greedy(),
        }
    }

    /// Tokens that pages are reserved for when it is admitted: those known and one drawn, unless
    /// that one ends it and never goes through the model.
    pub(crate) fn tokens_at_admission(&self) -> usize {
        match self.tokens.len() + 1 < self.most_tokens {
            true => self.tokens.len() + 1,
            false => self.tokens.len(),
        }
    }

    /// Counts the token in that a row of the step under way draws, if anything can follow it.
    pub(crate) fn await_token(&mut self, row: usize) {
        if self.tokens.len() + 1 < self.most_tokens {
            self.tokens.push(0);
            self.awaited = Some(row);
        }
    }

    /// Takes the memory of the whole answer, so that drawing a token takes none.
    pub(crate) fn reserve(&mut self) {
        let answer = self.most_tokens - self.tokens.len();
        self.tokens.reserve_exact(answer);
    }

    /// What a row with the tokens at `fed` is run for.
    pub(crate) fn want(&self, fed: Range<usize>) -> Want {
        let is_last = fed.end == self.tokens.len();
        match &self.task {
            Task::Generate(Generation { logprobs, .. }) if is_last => Want::Sample {
                logprobs: *logprobs,
            },
            Task::Score { positions } if positions.start < fed.end => {
                let first = positions.start.max(fed.start);
                Want::Logits(first - fed.start..fed.len())
            }
            Task::Embed(Pooling::Mean) => Want::Pooled(Pooling::Mean),
            Task::Embed(Pooling::Last) if is_last => Want::Pooled(Pooling::Last),
            _ => Want::Nothing,
        }
    }

    /// Takes what the row with the tokens at `fed` answered, and hands on what is to be told.
    /// True when that was the last of it.
    pub(crate) fn accept(
        &mut self,
        fed: Range<usize>,
        output: RowOutput,
        tell: &mut impl FnMut(EventKind),
    ) -> bool {
        match output {
            RowOutput::Nothing => false,
            RowOutput::Sampled {
                token,
                logprob,
                top,
            } => self.accept_token(token, logprob, top, tell),
            RowOutput::Logits(values) => self.accept_logits(fed, values, tell),
            RowOutput::Pooled(vector) => self.accept_pooled(fed, vector, tell),
            RowOutput::NotFinite => {
                tell(EventKind::Failed(Failure::NotFinite { tokens: fed.end }));
                true
            }
        }
    }

    /// The end of this sequence, for this reason.
    pub(crate) fn finished(&self, reason: FinishReason) -> EventKind {
        let usage = Usage {
            prompt: self.prompt,
            generated: self.tokens.len() - self.prompt,
            cached: self.cached.unwrap_or(0),
        };
        EventKind::Finished { reason, usage }
    }

    fn accept_token(
        &mut self,
        token: Token,
        logprob: Option<f32>,
        top: Vec<TokenLogprob>,
        tell: &mut impl FnMut(EventKind),
    ) -> bool {
        let Task::Generate(generation) = &self.task else {
            unreachable!("invariant: only a generation wants a token");
        };
        match (self.awaited.take(), self.tokens.last_mut()) {
            (Some(_), Some(last)) => *last = token,
            _ => self.tokens.push(token),
        }
        let reason = if generation.stop_tokens.contains(&token) {
            Some(FinishReason::Stop(token))
        } else if Some(self.tokens.len() - self.prompt) == generation.max_tokens {
            Some(FinishReason::Length)
        } else {
            (self.tokens.len() == self.most_tokens).then_some(FinishReason::Context)
        };
        if !matches!(reason, Some(FinishReason::Stop(_))) {
            tell(EventKind::Token {
                token,
                logprob,
                top,
            });
        }
        if let Some(reason) = reason {
            tell(self.finished(reason));
        }
        reason.is_some()
    }

    fn accept_logits(
        &mut self,
        fed: Range<usize>,
        values: Vec<f32>,
        tell: &mut impl FnMut(EventKind),
    ) -> bool {
        let Task::Score { positions } = &mut self.task else {
            unreachable!("invariant: only a score wants logits");
        };
        let first = positions.start.max(fed.start);
        positions.start = fed.end;
        tell(EventKind::Logits {
            positions: first..fed.end,
            values,
        });
        let is_last = fed.end == self.tokens.len();
        if is_last {
            tell(self.finished(FinishReason::Complete));
        }
        is_last
    }

    /// A mean grows chunk by chunk; the first chunk after a preemption starts it anew.
    fn accept_pooled(
        &mut self,
        fed: Range<usize>,
        vector: Vec<f32>,
        tell: &mut impl FnMut(EventKind),
    ) -> bool {
        if matches!(self.task, Task::Embed(Pooling::Last)) || fed.start == 0 {
            self.mean = vector;
        } else {
            let share = fed.len() as f32 / fed.end as f32;
            for (mean, new) in self.mean.iter_mut().zip(vector) {
                *mean += (new - *mean) * share;
            }
        }
        let is_last = fed.end == self.tokens.len();
        if is_last {
            tell(EventKind::Pooled(std::mem::take(&mut self.mean)));
            tell(self.finished(FinishReason::Complete));
        }
        is_last
    }
}
