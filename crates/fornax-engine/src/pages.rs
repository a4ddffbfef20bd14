//! Who holds which KV page.
//!
//! The one owner of page counts. Knows no sequence and no token, only tables of pages and how
//! many tokens they must hold.
//!
//! ```text
//!            0    1    2    3    4    5    6    7    pages of one group
//! pool      [ A ][ A ][ . ][ B ][ A ][ . ][ . ][ . ]
//! table A    0, 1, 4        in the order of its tokens; the last page is partly filled
//! table B    3
//! free       7, 6, 5, 2     a stack: the last one is handed out next
//! ```
//!
//! A page is free or held by exactly one table, never both, never neither: [`KvCache::check`].

use crate::{KvGroup, Limits, PageId};

/// How a sequence's K and V are kept from step to step. The code path is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPolicy {
    /// Forgotten after each token drawn: the whole sequence goes through the model again, in as
    /// many chunks as a step's size asks for. Its pages are scratch.
    None,
    /// A context's worth of contiguous pages from admission to the end.
    Basic,
    /// Page by page, as the sequence grows.
    Paged,
}

/// Limits of a runner that no engine can work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A size that is 0.
    #[error("the runner's `{name}` is 0; build it with at least 1")]
    Zero {
        /// The size's name.
        name: &'static str,
    },
    /// [`KvPolicy::Basic`] could not admit a single sequence.
    #[error(
        "KV group {group} has {pages} pages, but one context under the policy `basic` takes \
         {needed}; enlarge the KV cache, shorten the context or choose the policy `paged`"
    )]
    BelowOneContext {
        /// The group.
        group: usize,
        /// Pages it has.
        pages: usize,
        /// Pages of one context.
        needed: usize,
    },
}

/// A sequence's pages. `[n_groups][n_pages]`
pub(crate) type PageTables = Vec<Vec<PageId>>;

/// The pages of every KV group.
pub(crate) struct KvCache {
    /// `[n_groups]`
    pools: Vec<Pool>,
}

impl KvCache {
    pub(crate) fn new(limits: &Limits, policy: KvPolicy) -> Result<Self, LimitsError> {
        let groups = limits.kv_groups.iter().enumerate();
        let pools = groups.map(|(index, group)| Pool::new(index, group, policy, limits.context));
        Ok(Self {
            pools: pools.collect::<Result<_, _>>()?,
        })
    }

    /// Tokens of the longest sequence that fits, if it has every page.
    pub(crate) fn capacity(&self) -> usize {
        let capacities = self.pools.iter().map(Pool::capacity);
        capacities.min().unwrap_or(usize::MAX)
    }

    /// Tables without a page, with room for those of `tokens` tokens.
    pub(crate) fn empty_tables(&self, tokens: usize) -> PageTables {
        let table = |pool: &Pool| Vec::with_capacity(pool.missing_runs(&[], tokens) * pool.run);
        self.pools.iter().map(table).collect()
    }

    /// Grows the tables until they hold `tokens` tokens in every group. When a group is short of
    /// pages nothing changes and the answer is false.
    pub(crate) fn reserve(&mut self, tables: &mut PageTables, tokens: usize) -> bool {
        let mut pools = self.pools.iter().zip(tables.iter());
        let fits = pools.all(|(pool, table)| pool.missing_runs(table, tokens) <= pool.free.len());
        if fits {
            for (pool, table) in self.pools.iter_mut().zip(tables) {
                pool.reserve(table, tokens);
            }
        }
        fits
    }

    /// Takes every page back.
    pub(crate) fn release(&mut self, tables: &mut PageTables) {
        for (pool, table) in self.pools.iter_mut().zip(tables) {
            pool.release(table);
        }
    }

    /// The pages that hold the first `tokens` tokens, group after group.
    pub(crate) fn pages_of<'a>(
        &'a self,
        tables: &'a PageTables,
        tokens: usize,
    ) -> impl Iterator<Item = &'a [PageId]> {
        let pools = self.pools.iter().zip(tables);
        pools.map(move |(pool, table)| &table[..tokens.div_ceil(pool.page_size)])
    }

    /// Asserts that every page is free or in exactly one of these tables, which are all there are.
    pub(crate) fn check<'a>(&self, tables: impl Iterator<Item = &'a PageTables> + Clone) {
        for (group, pool) in self.pools.iter().enumerate() {
            pool.check(tables.clone().flat_map(|tables| &tables[group]).copied());
        }
    }
}

/// The pages of one group, handed out in runs: a run is one page, or under [`KvPolicy::Basic`]
/// the contiguous pages of a whole context. Pages behind the last whole run are never used.
struct Pool {
    /// Tokens of one page.
    page_size: usize,
    /// Pages of one run.
    run: usize,
    /// First pages of the free runs; the last one is handed out next.
    free: Vec<PageId>,
    /// Whether a table holds the page. `[pages in whole runs]`
    held: Vec<bool>,
}

impl Pool {
    fn new(
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
            held: vec![false; runs * run],
        })
    }

    fn capacity(&self) -> usize {
        self.held.len() * self.page_size
    }

    fn missing_runs(&self, table: &[PageId], tokens: usize) -> usize {
        let pages = tokens.div_ceil(self.page_size);
        pages.saturating_sub(table.len()).div_ceil(self.run)
    }

    fn reserve(&mut self, table: &mut Vec<PageId>, tokens: usize) {
        for _ in 0..self.missing_runs(table, tokens) {
            let first = self
                .free
                .pop()
                .expect("invariant: `reserve` counted the free runs");
            for page in first..first + self.run as PageId {
                assert!(!self.held[page as usize], "page {page} is free and held");
                self.held[page as usize] = true;
                table.push(page);
            }
        }
    }

    fn release(&mut self, table: &mut Vec<PageId>) {
        for run in table.chunks_exact(self.run) {
            self.free.push(run[0]);
        }
        for page in table.drain(..) {
            assert!(self.held[page as usize], "page {page} is released twice");
            self.held[page as usize] = false;
        }
    }

    fn check(&self, tables: impl Iterator<Item = PageId>) {
        let mut seen = vec![false; self.held.len()];
        for page in tables {
            assert!(
                self.held[page as usize],
                "page {page} is in a table, not held"
            );
            assert!(!seen[page as usize], "page {page} is in two tables");
            seen[page as usize] = true;
        }
        assert_eq!(seen, self.held, "a page is held that is in no table");
        for page in self
            .free
            .iter()
            .flat_map(|&first| first..first + self.run as PageId)
        {
            assert!(
                !seen[page as usize],
                "page {page} is free twice, or free and held"
            );
            seen[page as usize] = true;
        }
        assert!(seen.iter().all(|&known| known), "a page is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{kv_group, small_limits};

    /// Eight pages of four tokens, and a table with two of them.
    fn cache_and_table() -> (KvCache, PageTables) {
        let mut limits = small_limits();
        limits.kv_groups = vec![kv_group(4, 8)];
        let mut cache = KvCache::new(&limits, KvPolicy::Paged).unwrap();
        let mut tables = cache.empty_tables(5);
        assert!(cache.reserve(&mut tables, 5));
        cache.check([&tables].into_iter());
        (cache, tables)
    }

    #[test]
    fn short_of_pages_nothing_changes() {
        let (mut cache, mut tables) = cache_and_table();
        let mut others = cache.empty_tables(25);
        assert!(!cache.reserve(&mut others, 25));
        cache.check([&tables].into_iter());
        assert!(cache.reserve(&mut others, 24));
        cache.release(&mut tables);
        cache.check([&others].into_iter());
    }

    #[test]
    #[should_panic(expected = "a page is held that is in no table")]
    fn a_lost_table_is_found() {
        let (cache, _) = cache_and_table();
        cache.check([].into_iter());
    }

    #[test]
    #[should_panic(expected = "page 0 is in two tables")]
    fn a_page_in_two_tables_is_found() {
        let (cache, tables) = cache_and_table();
        cache.check([&tables, &tables].into_iter());
    }

    #[test]
    #[should_panic(expected = "page 5 is in a table, not held")]
    fn a_page_that_was_never_handed_out_is_found() {
        let (cache, mut tables) = cache_and_table();
        tables[0].push(5);
        cache.check([&tables].into_iter());
    }

    #[test]
    #[should_panic(expected = "page 0 is released twice")]
    fn a_second_release_is_found() {
        let (mut cache, mut tables) = cache_and_table();
        cache.release(&mut tables.clone());
        cache.release(&mut tables);
    }

    #[test]
    #[should_panic(expected = "a page is lost")]
    fn a_page_that_nobody_has_is_found() {
        let (mut cache, tables) = cache_and_table();
        cache.pools[0].free.pop();
        cache.check([&tables].into_iter());
    }
}
