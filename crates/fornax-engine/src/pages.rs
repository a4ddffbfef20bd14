//! Which sequence has which KV pages, and which of them it shares.
//!
//! Hands out tables of pages over every KV group. Counting is the pool's; what was computed
//! before, and may be shared, the prefix tree's. Knows no request and no budget.
//!
//! ```text
//! prompt of B          s y s t e m │ p r o m p t │ , t h e n   B
//! pages of A           [   0    ]   [    1    ]   [    4    ]
//! pages of B           [   0    ]   [    1    ]   [    7    ]
//!                       in place     in place      copied: the tokens before they part
//! ```
//!
//! A sequence writes only behind what it has computed, and a page that it writes is in no other
//! table: [`KvCache::check`].

use crate::pool::{Holds, Pool};
use crate::radix::PrefixTree;
use crate::{KvGroup, Limits, PageCopy, PageId, Token};

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

/// Limits or options that no engine can work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// A size that is 0.
    #[error("`{name}` is 0; it must be at least 1")]
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
    /// Prompts would never have a part in a step.
    #[error(
        "the slowdown that prompts may cause is no number above 1; 2.5 lets a step with prompts \
         take 2.5 times as long as one without"
    )]
    Slowdown,
    /// Only single pages can be shared.
    #[error(
        "a prefix cache needs the KV policy `paged`; choose that or switch the prefix cache off"
    )]
    PrefixCache,
}

/// A sequence's pages. `[n_groups][n_pages]`
pub(crate) type PageTables = Vec<Vec<PageId>>;

/// The pages of every KV group.
///
/// A group with a window keeps all pages of a sequence to its end, as the others do, so prefixes
/// are shared there in the same way.
pub(crate) struct KvCache {
    /// `[n_groups]`
    pools: Vec<Pool>,
    /// What was computed before; `None` where nothing is shared.
    prefixes: Option<PrefixTree>,
    /// Pages that the last planned step copies from, with their groups. They are held until the
    /// next one is planned: a copy reads what was there before it.
    copied_from: Vec<(usize, PageId)>,
    /// Tokens that end a page in every group, and each multiple of them.
    common_page: usize,
    /// Pages freed by eviction, ever.
    evicted: usize,
}

impl KvCache {
    pub(crate) fn new(
        limits: &Limits,
        policy: KvPolicy,
        prefix_cache: bool,
    ) -> Result<Self, LimitsError> {
        if prefix_cache && policy != KvPolicy::Paged {
            return Err(LimitsError::PrefixCache);
        }
        let groups = limits.kv_groups.iter().enumerate();
        let pools = groups.map(|(index, group)| Pool::new(index, group, policy, limits.context));
        Ok(Self {
            pools: pools.collect::<Result<_, _>>()?,
            // Without any group nothing is kept, so nothing can be shared.
            prefixes: (prefix_cache && !limits.kv_groups.is_empty())
                .then(|| PrefixTree::new(limits.kv_groups.len())),
            copied_from: Vec::new(),
            common_page: common_page(&limits.kv_groups),
            evicted: 0,
        })
    }

    /// Tokens of the longest sequence that fits, if it has every page.
    pub(crate) fn capacity(&self) -> usize {
        let capacities = self.pools.iter().map(Pool::capacity);
        capacities.min().unwrap_or(usize::MAX)
    }

    /// Pages that sequences hold, over all groups.
    pub(crate) fn live(&self) -> usize {
        self.pools.iter().map(Pool::live).sum()
    }

    /// Pages that only the prefix cache holds, over all groups.
    pub(crate) fn cached(&self) -> usize {
        self.pools.iter().map(Pool::cached).sum()
    }

    /// Pages freed by eviction, ever.
    pub(crate) fn evicted(&self) -> usize {
        self.evicted
    }

    /// How many of these tokens, from the first, were computed before; `None` where nothing is
    /// shared.
    pub(crate) fn known(&self, tokens: &[Token]) -> Option<usize> {
        self.prefixes.as_ref().map(|tree| tree.known(tokens))
    }

    /// So many tokens at least fill a page somewhere: what is worth waiting for.
    pub(crate) fn largest_page(&self) -> usize {
        let sizes = self.pools.iter().map(Pool::page_size);
        sizes.max().unwrap_or(usize::MAX)
    }

    /// Tables for a sequence of `tokens` tokens that may grow to `most`, and how many of its
    /// `reusable` first tokens are in them already, once `copies` are done. When a group is short
    /// of pages nothing changes and the answer is `None`.
    pub(crate) fn open(
        &mut self,
        reusable: &[Token],
        tokens: usize,
        most: usize,
        copies: &mut Vec<PageCopy>,
    ) -> Option<(PageTables, usize)> {
        let (known, pages) = match &mut self.prefixes {
            Some(tree) => tree.find(reusable, &mut self.pools),
            None => (0, Vec::new()),
        };
        // What is copied from cannot be evicted. Where just that page is short, do without it.
        let without_copies = known / self.common_page * self.common_page;
        let fallback = (without_copies < known).then_some(without_copies);
        for reused in [known].into_iter().chain(fallback) {
            let mut tables = self.empty_tables(most);
            let sources = self.share(&mut tables, &pages, reused);
            if self.reserve(&mut tables, tokens) {
                copies.extend(sources.iter().map(|&(group, source)| PageCopy {
                    group,
                    source,
                    destination: tables[group][reused / self.pools[group].page_size()],
                    tokens: reused % self.pools[group].page_size(),
                }));
                self.copied_from.extend(sources);
                return Some((tables, reused));
            }
            self.release(&mut tables);
            self.let_go(sources);
        }
        None
    }

    /// Grows the tables until they hold `tokens` tokens in every group, evicting as many prefixes
    /// as that takes. When a group is short of pages nothing changes and the answer is false.
    pub(crate) fn reserve(&mut self, tables: &mut PageTables, tokens: usize) -> bool {
        let mut pools = self.pools.iter().zip(tables.iter());
        let fits = pools.all(|(pool, table)| pool.missing(table.len(), tokens) <= pool.available());
        if fits {
            for (group, table) in tables.iter_mut().enumerate() {
                self.evict(group, self.pools[group].missing(table.len(), tokens));
                self.pools[group].take(table, tokens);
            }
        }
        fits
    }

    /// Lets later sequences share what this one computed.
    pub(crate) fn publish(&mut self, computed: &[Token], tables: &PageTables) {
        if let Some(tree) = &mut self.prefixes {
            tree.insert(computed, tables, &mut self.pools);
        }
    }

    /// Shares nothing any more that begins like these tokens.
    pub(crate) fn forget(&mut self, tokens: &[Token]) {
        if let Some(tree) = &mut self.prefixes {
            tree.forget(tokens[0], &mut self.pools);
        }
    }

    /// Takes every page back.
    pub(crate) fn release(&mut self, tables: &mut PageTables) {
        for (pool, table) in self.pools.iter_mut().zip(tables) {
            pool.release(table);
        }
    }

    /// The step with the copies has run.
    pub(crate) fn end_copies(&mut self) {
        let pages = std::mem::take(&mut self.copied_from);
        self.let_go(pages);
    }

    /// The pages that hold the first `tokens` tokens, group after group.
    pub(crate) fn pages_of<'a>(
        &'a self,
        tables: &'a PageTables,
        tokens: usize,
    ) -> impl Iterator<Item = &'a [PageId]> {
        let pools = self.pools.iter().zip(tables);
        pools.map(move |(pool, table)| &table[..tokens.div_ceil(pool.page_size())])
    }

    /// Asserts that every page is counted as often as it is held by these tables, which are all
    /// there are, by copies and by the prefix tree; that it is free when it is never held; and
    /// that what comes behind the computed tokens, given with each table, is in one table only.
    pub(crate) fn check<'a>(&self, tables: impl Iterator<Item = (&'a PageTables, usize)> + Clone) {
        for (group, pool) in self.pools.iter().enumerate() {
            let mut held = vec![Holds::default(); pool.pages()];
            for &page in tables.clone().flat_map(|(tables, _)| &tables[group]) {
                held[page as usize].tables += 1;
            }
            for (tables, computed) in tables.clone() {
                let written = computed / pool.page_size();
                for &page in tables[group].iter().skip(written) {
                    let tables = held[page as usize].tables;
                    assert_eq!(
                        tables, 1,
                        "page {page} may be written and is in {tables} tables"
                    );
                }
            }
            for (_, page) in self.copied_from.iter().filter(|(of, _)| *of == group) {
                held[*page as usize].tables += 1;
            }
            for page in self.prefixes.iter().flat_map(|tree| tree.pages(group)) {
                held[page as usize].nodes += 1;
            }
            pool.check(&held);
        }
        if let Some(tree) = &self.prefixes {
            tree.check(&self.pools);
        }
    }

    /// Tables without a page, with room for those of `tokens` tokens.
    fn empty_tables(&self, tokens: usize) -> PageTables {
        let pages = |pool: &Pool| tokens.div_ceil(pool.page_size());
        let tables = self
            .pools
            .iter()
            .map(|pool| Vec::with_capacity(pages(pool)));
        tables.collect()
    }

    /// Puts the full pages of the first `reused` tokens in the tables. Answers the pages that hold
    /// the rest of those tokens, with their groups; they are held.
    fn share(
        &mut self,
        tables: &mut PageTables,
        pages: &PageTables,
        reused: usize,
    ) -> Vec<(usize, PageId)> {
        let mut sources = Vec::new();
        for (group, pages) in pages.iter().enumerate() {
            let pool = &mut self.pools[group];
            let full = reused / pool.page_size();
            let is_partial = !reused.is_multiple_of(pool.page_size());
            for &page in &pages[..full + usize::from(is_partial)] {
                pool.hold(page);
            }
            tables[group].extend(&pages[..full]);
            sources.extend(is_partial.then(|| (group, pages[full])));
        }
        sources
    }

    fn let_go(&mut self, pages: Vec<(usize, PageId)>) {
        for (group, page) in pages {
            self.pools[group].let_go(page);
        }
    }

    /// Evicts prefixes until so many runs of the group are free; enough are available.
    fn evict(&mut self, group: usize, runs: usize) {
        let free = |pools: &[Pool]| pools.iter().map(Pool::free).sum::<usize>();
        if let Some(tree) = &mut self.prefixes {
            let before = free(&self.pools);
            tree.evict(&mut self.pools, group, runs);
            self.evicted += free(&self.pools) - before;
        }
    }
}

/// The least common multiple of the page sizes; 0 is refused elsewhere.
fn common_page(groups: &[KvGroup]) -> usize {
    let divisor = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let sizes = groups.iter().map(|group| group.page_size.max(1));
    sizes.fold(1, |common, size| {
        (common / divisor(common, size)).saturating_mul(size)
    })
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
