//! The tree against a naive one: a list of everything known, token by token.
//!
//! Pages are real enough to be wrong: each keeps what was written to it, so a path whose pages do
//! not hold its tokens is found. What happens next is chosen by whoever drives it: a seed in the
//! test, a fuzzer's bytes in `fuzz`.

use std::collections::BTreeMap;

use super::*;
use crate::KvPolicy;
use crate::testing::kv_group;

/// Tokens that differ little, so that paths part and meet often.
const VOCABULARY: usize = 3;
const CONTEXT: usize = 40;

/// The next choice: a number below the given one.
type Below<'a> = &'a mut dyn FnMut(usize) -> usize;

/// The tree, its pools, and all that should be true of them.
pub(crate) struct Fuzz {
    tree: PrefixTree,
    pools: Vec<Pool>,
    /// What each page holds: the sequence up to each of its tokens. `[n_groups][n_pages][page_size]`
    written: Vec<Vec<Vec<Vec<Token>>>>,
    /// Everything known, and when it was last used. Each prefix of an entry is one.
    naive: BTreeMap<Vec<Token>, u64>,
    now: u64,
    /// Tables of sequences that still run, with their tokens.
    running: Vec<(Vec<Token>, PageTables)>,
    /// Pages evicted.
    pub(crate) evicted: usize,
    /// Tokens that began like known ones.
    pub(crate) reused: usize,
}

impl Fuzz {
    /// A tree that knows nothing, over one to three groups.
    pub(crate) fn new(below: Below<'_>) -> Self {
        let groups = (0..1 + below(3)).map(|_| {
            let page_size = 1 + below(6);
            kv_group(page_size, CONTEXT.div_ceil(page_size) * 3)
        });
        let groups = Vec::from_iter(groups);
        let pools = groups.iter().enumerate();
        let pools = pools.map(|(index, group)| {
            let pool = Pool::new(index, group, KvPolicy::Paged, CONTEXT);
            pool.expect("invariant: a page and a context have a size")
        });
        let page = |size| vec![Vec::new(); size];
        let written = groups
            .iter()
            .map(|group| vec![page(group.page_size); group.pages]);
        Self {
            tree: PrefixTree::new(groups.len()),
            pools: pools.collect(),
            written: written.collect(),
            naive: BTreeMap::new(),
            now: 0,
            running: Vec::new(),
            evicted: 0,
            reused: 0,
        }
    }

    /// Something happens, and all that should be true of it is asserted.
    pub(crate) fn operate(&mut self, below: Below<'_>) {
        let length = 1 + below(CONTEXT);
        let mut tokens: Vec<Token> = match self.naive.len() {
            0 => Vec::new(),
            known => {
                let path = self.naive.keys().nth(below(known));
                path.map_or(Vec::new(), Vec::clone)
            }
        };
        tokens.truncate(below(CONTEXT));
        self.reused += tokens.len();
        while tokens.len() < length {
            tokens.push(below(VOCABULARY) as Token);
        }
        match below(40) {
            0 => self.forget(tokens[0]),
            1..20 => self.publish(below),
            _ => self.start(tokens),
        }
        self.check();
    }

    /// A sequence begins, takes what is known, and computes the rest.
    fn start(&mut self, tokens: Vec<Token>) {
        let known = self.find(&tokens);
        let (reused, pages) = self.tree.find(&tokens[..known], &mut self.pools);
        assert_eq!(reused, known);
        self.use_naively(&tokens[..known]);
        // The pages found stay while others are evicted.
        let mut shared = pages.clone();
        for (pool, pages) in self.pools.iter_mut().zip(&shared) {
            pages.iter().for_each(|&page| pool.hold(page));
        }
        if let Some(tables) = self.make_tables(&tokens, known, &pages) {
            self.running.push((tokens, tables));
        }
        for (pool, pages) in self.pools.iter_mut().zip(&mut shared) {
            pool.release(pages);
        }
    }

    /// Its tables: whole pages shared, the rest new and written. `None` when pages are short.
    fn make_tables(
        &mut self,
        tokens: &[Token],
        known: usize,
        pages: &PageTables,
    ) -> Option<PageTables> {
        let sizes = Vec::from_iter(self.pools.iter().map(Pool::page_size));
        let missing = |size: usize| tokens.len().div_ceil(size) - known / size;
        if (0..sizes.len()).any(|group| missing(sizes[group]) > self.pools[group].available()) {
            return None;
        }
        let mut tables = Vec::new();
        for (group, &size) in sizes.iter().enumerate() {
            self.evict(group, missing(size));
            let mut table = pages[group][..known / size].to_vec();
            table.iter().for_each(|&page| self.pools[group].hold(page));
            self.pools[group].take(&mut table, tokens.len());
            for position in known / size * size..tokens.len() {
                self.written[group][table[position / size] as usize][position % size] =
                    tokens[..=position].to_vec();
            }
            tables.push(table);
        }
        Some(tables)
    }

    /// A running sequence leaves what it computed, and ends or goes on.
    fn publish(&mut self, below: Below<'_>) {
        if self.running.is_empty() {
            return;
        }
        let index = below(self.running.len());
        let (tokens, mut tables) = self.running.swap_remove(index);
        let computed = &tokens[..1 + below(tokens.len())];
        self.tree.insert(computed, &tables, &mut self.pools);
        self.use_naively(computed);
        if below(3) == 0 {
            self.running.push((tokens, tables));
        } else {
            for (pool, table) in self.pools.iter_mut().zip(&mut tables) {
                pool.release(table);
            }
        }
    }

    /// Evicts one page at a time. What goes is the end of what was used longest ago, first of
    /// what no sequence holds.
    fn evict(&mut self, group: usize, free: usize) {
        while self.pools[group].free() < free {
            let before = self.pools[group].free();
            let leaf = self.tree.next_to_go(&self.pools[group], group);
            let path = self.path(leaf);
            let node = self.tree.node(leaf);
            let (stamp, start) = (self.naive[&path], node.start);
            let last = node.pages[group][node.pages[group].len() - 1];
            let is_live = self.pools[group].is_live(last);
            self.check_next(group, stamp, is_live);
            self.tree.shorten(leaf, &mut self.pools, group);
            let size = self.pools[group].page_size();
            let end = start.max((path.len() - 1) / size * size);
            for length in end + 1..=path.len() {
                assert_eq!(self.naive.remove(&path[..length]), Some(stamp));
            }
            assert!(self.pools[group].free() <= before + 1);
            self.evicted += 1;
            self.check();
        }
    }

    /// No leaf of the naive tree was used before this one, but for those that sequences hold.
    fn check_next(&self, group: usize, stamp: u64, is_live: bool) {
        let size = self.pools[group].page_size();
        for (path, &used) in self.naive.iter().filter(|(path, _)| self.is_leaf(path)) {
            let (length, tables) = self.tree_pages(path);
            assert_eq!(length, path.len());
            let page = tables[group][(path.len() - 1) / size];
            let key = (self.pools[group].is_live(page), used);
            assert!((is_live, stamp) <= key, "{path:?} should have gone");
        }
    }

    fn is_leaf(&self, path: &[Token]) -> bool {
        let longer = (0..VOCABULARY as Token).map(|next| [path, &[next]].concat());
        longer
            .into_iter()
            .all(|path| !self.naive.contains_key(&path))
    }

    /// As [`PrefixTree::find`], without a trace.
    fn tree_pages(&self, tokens: &[Token]) -> (usize, PageTables) {
        let mut tables = vec![Vec::new(); self.pools.len()];
        let mut node = self.tree.node(ROOT);
        while let Some(next) = tokens.get(node.end()).and_then(|t| node.children.get(t)) {
            node = self.tree.node(*next);
            for (group, table) in tables.iter_mut().enumerate() {
                table.truncate(node.start / self.pools[group].page_size());
                table.extend(&node.pages[group]);
            }
        }
        (node.end().min(tokens.len()), tables)
    }

    fn path(&self, mut id: NodeId) -> Vec<Token> {
        let mut path = Vec::new();
        while id != ROOT {
            let node = self.tree.node(id);
            path.splice(..0, node.tokens.iter().copied());
            id = node.parent;
        }
        path
    }

    fn use_naively(&mut self, tokens: &[Token]) {
        self.now += 1;
        for length in 1..=tokens.len() {
            self.naive.insert(tokens[..length].to_vec(), self.now);
        }
    }

    /// What the naive tree knows of these tokens; the tree must know the same.
    fn find(&self, tokens: &[Token]) -> usize {
        let is_known = |length: &usize| self.naive.contains_key(&tokens[..*length]);
        let known = (1..=tokens.len()).take_while(is_known).count();
        assert_eq!(self.tree.known(tokens), known, "{tokens:?}");
        known
    }

    fn forget(&mut self, first: Token) {
        self.tree.forget(first, &mut self.pools);
        self.naive.retain(|path, _| path[0] != first);
    }

    /// The tree is sound and knows exactly what it should, in pages that hold it.
    fn check(&self) {
        self.tree.check(&self.pools);
        let tokens = self.tree.nodes.iter().flatten();
        let tokens: usize = tokens.map(|node| node.tokens.len()).sum();
        assert_eq!(tokens, self.naive.len(), "tokens in the tree");
        for path in self.naive.keys().filter(|path| self.is_leaf(path)) {
            let (known, tables) = self.tree_pages(path);
            assert_eq!(known, path.len(), "{path:?}");
            for (group, table) in tables.iter().enumerate() {
                let size = self.pools[group].page_size();
                for position in 0..path.len() {
                    let cell = &self.written[group][table[position / size] as usize];
                    assert_eq!(cell[position % size], path[..=position], "{path:?}");
                }
            }
        }
    }
}

#[test]
fn the_tree_does_what_a_naive_one_does() {
    let (mut evicted, mut reused) = (0, 0);
    for seed in 0..300 {
        let mut random = crate::testing::Random(seed);
        let mut below = |bound| random.below(bound);
        let mut fuzz = Fuzz::new(&mut below);
        for _ in 0..100 {
            fuzz.operate(&mut below);
        }
        evicted += fuzz.evicted;
        reused += fuzz.reused;
    }
    assert!(evicted > 10_000 && reused > 100_000, "{evicted}, {reused}");
}

#[test]
fn eviction_takes_what_was_used_longest_ago_among_many() {
    const LEAVES: usize = 2_000;
    let group = kv_group(1, LEAVES + 1);
    let pool = Pool::new(0, &group, KvPolicy::Paged, 2).expect("a page and a context");
    let mut pools = [pool];
    let mut tree = PrefixTree::new(1);
    for token in 0..LEAVES as Token {
        let mut tables = vec![Vec::new()];
        pools[0].take(&mut tables[0], 1);
        tree.insert(&[token], &tables, &mut pools);
        pools[0].release(&mut tables[0]);
    }
    // The first is used again, and the second is held by a sequence: neither goes before the rest.
    tree.find(&[0], &mut pools);
    let (_, held) = tree.find(&[1], &mut pools);
    pools[0].hold(held[0][0]);
    tree.evict(&mut pools, 0, LEAVES - 1);
    tree.check(&pools);
    let known = Vec::from_iter((0..LEAVES as Token).filter(|&token| tree.known(&[token]) == 1));
    assert_eq!(known, [0, 1]);
    tree.evict(&mut pools, 0, LEAVES);
    assert_eq!((tree.known(&[0]), tree.known(&[1])), (0, 1));
}
