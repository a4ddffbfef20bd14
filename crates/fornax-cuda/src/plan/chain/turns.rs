//! Layers of a few rows, which were planned one row's behind the other's, as one launch in which rows take turns.
//!
//! Must not know which rows that is worth for.

use fornax_backend::BackendError;

use super::{Candidate, candidates, follows, layers, links_of};
use crate::plan::{Action, Plan};

impl Plan<'_> {
    /// Makes one launch of all layers of some rows, whose actions lie one row's behind the other's from `first` on. Says
    /// how many layers those are: none, and nothing is made, where not all of them can be done by one launch.
    pub(in crate::plan) fn take_turns(
        &mut self,
        rows: usize,
        first: usize,
    ) -> Result<usize, BackendError> {
        let (streams, attentions) = self.for_links();
        let candidates = candidates(&streams, &attentions);
        let runs: Vec<_> = candidates.chunk_by(follows).collect();
        let apart = |pair: &[&[(usize, Candidate<'_>)]]| pair[1][0].0 - pair[0][0].0;
        let even = runs.windows(2).all(|pair| apart(pair) == apart(&runs[..2]));
        // Nothing of a row comes before its layers, so what is between them is of the row before.
        if runs.len() != rows || runs[0][0].0 != first || !even {
            return Ok(0);
        }
        let links: Vec<_> = runs.iter().map(|run| links_of(run)).collect();
        let links: Vec<_> = links.iter().map(Vec::as_slice).collect();
        let Some((launch, count)) = layers::launch(self.shop, &links)? else {
            return Ok(0);
        };
        if runs.iter().any(|run| run.len() != count) {
            return Ok(0);
        }
        for run in runs[1..].iter().rev() {
            self.actions.drain(run[0].0..run[0].0 + count);
        }
        self.actions
            .splice(first..first + count, [Action::Launch(launch)]);
        Ok(count / layers::LINKS)
    }
}
