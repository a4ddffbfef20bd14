//! The pages of one KV group, and who holds each how often.
//!
//! The one owner of page counts. Knows no sequence and no token.
//!
//! ```text
//!            0    1    2    3    4    5    6    7    pages of one group
//! tables   [ 2 ][ 1 ][   ][ 1 ][ 1 ][   ][   ][   ]  held by so many sequences
//! nodes    [ 1 ][   ][   ][   ][ 1 ][ 1 ][   ][   ]  held by so many nodes of the prefix tree
//! free       7, 6, 2                                 a stack: the last one is handed out next
//! ```
//!
//! A page is free exactly when nobody holds it. One that only nodes hold (5) can be had by
//! evicting them.

use crate::pages::{KvPolicy, LimitsError};
use crate::{KvGroup, PageId};

/// The pages of one group, handed out in runs: a run is one page, or under [`KvPolicy::Basic`]
/// the contiguous pages of a whole context. Pages behind the last whole run are never used.
pub(crate) struct Pool {
    /// Tokens of one page.
    page_size: usize,
    /// Pages of one run.
    run: usize,
    /// First pages of the free runs; the last one is handed out next.
    free: Vec<PageId>,
    /// `[pages in whole runs]`
    holds: Vec<Holds>,
    /// Pages that a table holds.
    live: usize,
}

/// Who holds a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    /// Tables of sequences, and copies under way.
    pub(crate) tables: u32,
    /// Nodes of the prefix tree.
    pub(crate) nodes: u32,
}

impl Pool {
    pub(crate) fn new(
        index: usize,
        group: &KvGroup,
        policy: KvPolicy,
        context: usize,
    ) -> Result<Self, LimitsError> {
        for (name, size) in [("page_size", group.page_size), ("pages", group.pages)] {
            if size == 0 {
                return Err(LimitsError::Zero { name });
            }
        }
        let run = match policy {
            KvPolicy::None | KvPolicy::Paged => 1,
            KvPolicy::Basic => context.div_ceil(group.page_size),
        };
        if run > group.pages {
            return Err(LimitsError::BelowOneContext {
                group: index,
                pages: group.pages,
                needed: run,
            });
        }
        let runs = group.pages / run;
        Ok(Self {
            page_size: group.page_size,
            run,
            free: (0..runs).rev().map(|n| (n * run) as PageId).collect(),
            holds: vec![Holds::default(); runs * run],
            live: 0,
        })
    }

    /// Tokens of one page.
    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Tokens of all pages.
    pub(crate) fn capacity(&self) -> usize {
        self.holds.len() * self.page_size
    }

    /// Runs that nobody holds.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Runs that no table holds: free, or to be had by eviction.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached() / self.run
    }

    /// Pages that a table holds.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Pages that only nodes hold.
    pub(crate) fn cached(&self) -> usize {
        self.holds.len() - self.free.len() * self.run - self.live
    }

    /// Whether a table holds the page.
    pub(crate) fn is_live(&self, page: PageId) -> bool {
        self.holds[page as usize].tables > 0
    }

    /// Runs that a table of so many pages lacks to hold `tokens` tokens.
    pub(crate) fn missing(&self, pages: usize, tokens: usize) -> usize {
        let needed = tokens.div_ceil(self.page_size);
        needed.saturating_sub(pages).div_ceil(self.run)
    }

    /// Grows a table until it holds `tokens` tokens; as many runs must be free.
    pub(crate) fn take(&mut self, table: &mut Vec<PageId>, tokens: usize) {
        for _ in 0..self.missing(table.len(), tokens) {
            let first = self.free.pop();
            let first = first.expect("invariant: the free runs were counted");
            for page in first..first + self.run as PageId {
                let holds = self.holds[page as usize];
                assert_eq!(holds, Holds::default(), "page {page} is free and held");
                self.hold(page);
                table.push(page);
            }
        }
    }

    /// Takes back what a table holds.
    pub(crate) fn release(&mut self, table: &mut Vec<PageId>) {
        for page in table.drain(..) {
            self.let_go(page);
        }
    }

    /// One table more holds the page.
    pub(crate) fn hold(&mut self, page: PageId) {
        let holds = &mut self.holds[page as usize];
        self.live += usize::from(holds.tables == 0);
        holds.tables += 1;
    }

    /// One table less holds the page.
    pub(crate) fn let_go(&mut self, page: PageId) {
        let holds = &mut self.holds[page as usize];
        assert!(holds.tables > 0, "page {page} is released twice");
        holds.tables -= 1;
        self.live -= usize::from(holds.tables == 0);
        self.free_if_unheld(page);
    }

    /// One node more holds the page, which is held already.
    pub(crate) fn hold_by_node(&mut self, page: PageId) {
        let holds = &mut self.holds[page as usize];
        assert_ne!(
            *holds,
            Holds::default(),
            "a node takes the free page {page}"
        );
        holds.nodes += 1;
    }

    /// One node less holds the page.
    pub(crate) fn let_go_by_node(&mut self, page: PageId) {
        let holds = &mut self.holds[page as usize];
        assert!(holds.nodes > 0, "a node releases page {page} twice");
        holds.nodes -= 1;
        self.free_if_unheld(page);
    }

    /// Asserts that every page is counted as often as it is held, and free when that is never.
    pub(crate) fn check(&self, held: &[Holds]) {
        for (page, (counted, held)) in self.holds.iter().zip(held).enumerate() {
            assert_eq!(
                counted, held,
                "page {page} is counted (left) but held (right)"
            );
        }
        let mut free = vec![false; self.holds.len()];
        let runs = self.free.iter();
        for page in runs.flat_map(|&first| first..first + self.run as PageId) {
            assert!(!free[page as usize], "page {page} is free twice");
            free[page as usize] = true;
        }
        for (page, (&free, held)) in free.iter().zip(held).enumerate() {
            assert_eq!(free, *held == Holds::default(), "page {page} is lost");
        }
        let live = held.iter().filter(|holds| holds.tables > 0).count();
        assert_eq!(self.live, live, "pages that tables hold");
    }

    /// Pages of the group.
    pub(crate) fn pages(&self) -> usize {
        self.holds.len()
    }

    /// A fault, for tests of [`check`](Self::check).
    #[cfg(test)]
    pub(crate) fn lose_a_free_page(&mut self) {
        self.free.pop();
    }

    /// The pages of a run are held and released together, so its first speaks for all.
    fn free_if_unheld(&mut self, page: PageId) {
        let is_first = (page as usize).is_multiple_of(self.run);
        if is_first && self.holds[page as usize] == Holds::default() {
            self.free.push(page);
        }
    }
}
