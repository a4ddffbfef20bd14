//! What was computed before: a radix tree over token ids whose nodes hold KV pages.
//!
//! Owns which tokens are known, where their K and V are, and what goes first when pages are
//! short. Page counts are the pool's. Knows no sequence: it sees tokens and tables of pages.
//!
//! ```text
//! pages of 4 tokens     root ─ "the cat s" [0 1 2] ┬─ "at" [2]       one page, two nodes
//!                                                  └─ "lept" [5 6]   5 began as a copy of 2
//! ```
//!
//! A node holds each page that has one of its tokens. Where an edge ends within a page, that page
//! is held by the child as well, or the child has a fuller copy of it. So the pages of a path are
//! those of its nodes, the deeper node's where two have the same place.
//!
//! All tokens of a node were used last at the same time: a path that is walked to the middle of
//! an edge splits it.

use std::collections::{BTreeMap, BTreeSet};

use crate::pages::PageTables;
use crate::pool::Pool;
use crate::{PageId, Token};

pub(crate) struct PrefixTree {
    /// By id; the root first. `None` where a node was removed.
    nodes: Vec<Option<Node>>,
    /// Ids without a node.
    unused: Vec<NodeId>,
    /// The nodes without children but the root, and when each was used: the least recently used
    /// first, which goes first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Walks so far: the tree's clock.
    now: u64,
}

type NodeId = usize;

const ROOT: NodeId = 0;

struct Node {
    parent: NodeId,
    /// Tokens before its own.
    start: usize,
    /// Its own; none for the root only.
    tokens: Vec<Token>,
    /// The pages that hold its tokens. `[n_groups][n_pages]`
    pages: PageTables,
    /// By their first token.
    children: BTreeMap<Token, NodeId>,
    /// When it was last walked over.
    used: u64,
}

impl Node {
    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

impl PrefixTree {
    /// A tree that knows nothing, over so many KV groups.
    pub(crate) fn new(groups: usize) -> Self {
        let root = Node {
            parent: ROOT,
            start: 0,
            tokens: Vec::new(),
            pages: vec![Vec::new(); groups],
            children: BTreeMap::new(),
            used: 0,
        };
        Self {
            nodes: vec![Some(root)],
            unused: Vec::new(),
            leaves: BTreeSet::new(),
            now: 0,
        }
    }

    /// How many of these tokens are known, from the first. Uses nothing.
    pub(crate) fn known(&self, tokens: &[Token]) -> usize {
        let mut node = self.node(ROOT);
        loop {
            let rest = &tokens[node.end()..];
            let Some(child) = rest.first().and_then(|first| node.children.get(first)) else {
                return node.end();
            };
            node = self.node(*child);
            let common = common_prefix(&node.tokens, rest);
            if common < node.tokens.len() {
                return node.start + common;
            }
        }
    }

    /// How many of these tokens are known, from the first, and the pages that hold them.
    pub(crate) fn find(&mut self, tokens: &[Token], pools: &mut [Pool]) -> (usize, PageTables) {
        let last = self.walk(tokens, pools);
        let mut path = vec![last];
        while path[path.len() - 1] != ROOT {
            path.push(self.node(path[path.len() - 1]).parent);
        }
        let mut tables = vec![Vec::new(); pools.len()];
        for node in path.into_iter().rev().map(|id| self.node(id)) {
            for ((table, pages), pool) in tables.iter_mut().zip(&node.pages).zip(&*pools) {
                table.truncate(node.start / pool.page_size());
                table.extend(pages);
            }
        }
        (self.node(last).end(), tables)
    }

    /// Takes in that these tokens were computed and are in these pages.
    pub(crate) fn insert(&mut self, tokens: &[Token], tables: &PageTables, pools: &mut [Pool]) {
        let last = self.walk(tokens, pools);
        let node = self.node(last);
        if node.end() == tokens.len() {
            return;
        }
        let is_leaf = last != ROOT && node.children.is_empty();
        match is_leaf {
            true => self.lengthen(last, tokens, tables, pools),
            false => self.add_child(last, tokens, tables, pools),
        }
    }

    /// Removes ends of leaves, least recently used first, until so many pages of a group are
    /// free. Ends that sequences hold too come last: they give no page.
    pub(crate) fn evict(&mut self, pools: &mut [Pool], group: usize, free: usize) {
        while pools[group].free() < free {
            let leaf = self.next_to_go(&pools[group], group);
            self.shorten(leaf, pools, group);
        }
    }

    /// Removes all that begins with this token.
    pub(crate) fn forget(&mut self, first: Token, pools: &mut [Pool]) {
        let mut rest = Vec::from_iter(self.node_mut(ROOT).children.remove(&first));
        while let Some(id) = rest.pop() {
            let node = self.take(id);
            self.leaves.remove(&(node.used, id));
            release(&node.pages, pools);
            rest.extend(node.children.into_values());
        }
    }

    /// The pages of a group that nodes hold, each as often as they do.
    pub(crate) fn pages(&self, group: usize) -> impl Iterator<Item = PageId> {
        let nodes = self.nodes.iter().flatten();
        nodes.flat_map(move |node| node.pages[group].iter().copied())
    }

    /// Asserts that this is a radix tree and that each node has the pages of its tokens.
    pub(crate) fn check(&self, pools: &[Pool]) {
        let mut reached = 0;
        let mut rest = vec![ROOT];
        while let Some(id) = rest.pop() {
            reached += 1;
            let node = self.node(id);
            assert_eq!(id == ROOT, node.tokens.is_empty(), "an edge without tokens");
            for (pages, pool) in node.pages.iter().zip(pools) {
                let places = node.end().div_ceil(pool.page_size()) - node.start / pool.page_size();
                assert_eq!(pages.len(), places, "pages of a node");
            }
            for (first, &child) in &node.children {
                let child_node = self.node(child);
                assert_eq!(child_node.tokens.first(), Some(first), "a child's key");
                assert_eq!(child_node.parent, id, "a child's parent");
                assert_eq!(child_node.start, node.end(), "a gap in a path");
                assert!(
                    child_node.used <= node.used,
                    "used without what is before it"
                );
                rest.push(child);
            }
        }
        let nodes = self.nodes.iter().flatten().count();
        assert_eq!(reached, nodes, "a node is in no path");
        assert_eq!(nodes + self.unused.len(), self.nodes.len(), "an id is lost");
        let nodes = self.nodes.iter().enumerate().skip(1);
        let leaves = nodes.filter_map(|(id, node)| {
            let node = node.as_ref().filter(|node| node.children.is_empty())?;
            Some((node.used, id))
        });
        assert_eq!(
            self.leaves,
            leaves.collect(),
            "leaves, least recently used first"
        );
    }

    /// Walks down as far as these tokens are known, splitting the last edge where they end within
    /// it, and marks the path as used. Answers its last node.
    fn walk(&mut self, tokens: &[Token], pools: &mut [Pool]) -> NodeId {
        self.now += 1;
        let mut id = ROOT;
        loop {
            self.mark_used(id);
            let node = self.node(id);
            let rest = &tokens[node.end()..];
            let Some(&child) = rest.first().and_then(|first| node.children.get(first)) else {
                return id;
            };
            let edge = &self.node(child).tokens;
            let common = common_prefix(edge, rest);
            if common < edge.len() {
                self.split(child, common, pools);
            }
            id = child;
        }
    }

    /// A walk came to this node just now.
    fn mark_used(&mut self, id: NodeId) {
        let now = self.now;
        let node = self.node_mut(id);
        let before = std::mem::replace(&mut node.used, now);
        if self.leaves.remove(&(before, id)) {
            self.leaves.insert((now, id));
        }
    }

    /// Parts an edge; the node keeps the first `tokens` tokens, a new child has the rest.
    fn split(&mut self, id: NodeId, tokens: usize, pools: &mut [Pool]) {
        let node = self.node_mut(id);
        let rest = node.tokens.split_off(tokens);
        let (first, start, middle) = (rest[0], node.start, node.end());
        let mut lower = Node {
            parent: id,
            start: middle,
            tokens: rest,
            pages: Vec::with_capacity(pools.len()),
            children: std::mem::take(&mut node.children),
            used: node.used,
        };
        for (pages, pool) in node.pages.iter_mut().zip(pools) {
            let (skipped, size) = (start / pool.page_size(), pool.page_size());
            lower.pages.push(pages[middle / size - skipped..].to_vec());
            pages.truncate(middle.div_ceil(size) - skipped);
            if !middle.is_multiple_of(size) {
                pool.hold_by_node(pages[pages.len() - 1]);
            }
        }
        let used = lower.used;
        let lower = self.put(lower);
        // Where the whole was a leaf, the rest of it is one.
        if self.leaves.remove(&(used, id)) {
            self.leaves.insert((used, lower));
        }
        let children = Vec::from_iter(self.node(lower).children.values().copied());
        for child in children {
            self.node_mut(child).parent = lower;
        }
        self.node_mut(id).children.insert(first, lower);
    }

    /// Gives a leaf the tokens that follow it. Where it ends within a page, the page in the tables
    /// holds more, and takes that one's place.
    fn lengthen(&mut self, id: NodeId, tokens: &[Token], tables: &PageTables, pools: &mut [Pool]) {
        let node = self.node_mut(id);
        let (start, end) = (node.start, node.end());
        node.tokens.extend(&tokens[end..]);
        for ((pages, table), pool) in node.pages.iter_mut().zip(tables).zip(pools) {
            let size = pool.page_size();
            let new = &table[end / size..tokens.len().div_ceil(size)];
            new.iter().for_each(|&page| pool.hold_by_node(page));
            for page in pages.drain(end / size - start / size..) {
                pool.let_go_by_node(page);
            }
            pages.extend(new);
        }
    }

    fn add_child(
        &mut self,
        parent: NodeId,
        tokens: &[Token],
        tables: &PageTables,
        pools: &mut [Pool],
    ) {
        let start = self.node(parent).end();
        let mut pages = Vec::with_capacity(pools.len());
        for (table, pool) in tables.iter().zip(pools) {
            let size = pool.page_size();
            let new = table[start / size..tokens.len().div_ceil(size)].to_vec();
            new.iter().for_each(|&page| pool.hold_by_node(page));
            pages.push(new);
        }
        let child = self.put(Node {
            parent,
            start,
            tokens: tokens[start..].to_vec(),
            pages,
            children: BTreeMap::new(),
            used: self.now,
        });
        self.node_mut(parent).children.insert(tokens[start], child);
        self.leaves.insert((self.now, child));
    }

    /// The leaf to shorten first: the least recently used one of those whose end no sequence
    /// holds. At most one leaf for each running sequence is passed over.
    fn next_to_go(&self, pool: &Pool, group: usize) -> NodeId {
        let is_live = |id: NodeId| {
            let last = self.node(id).pages[group].last();
            last.is_some_and(|&page| pool.is_live(page))
        };
        let mut leaves = self.leaves.iter().map(|&(_, id)| id);
        let leaf = leaves.clone().find(|&id| !is_live(id)).or(leaves.next());
        leaf.expect("invariant: pages that only nodes hold are had by removing nodes")
    }

    /// Takes the last page of a group from a leaf, and what it holds of the others behind that; a
    /// leaf that has no tokens then is removed.
    fn shorten(&mut self, id: NodeId, pools: &mut [Pool], group: usize) {
        let size = pools[group].page_size();
        let node = self.node_mut(id);
        let (start, end) = (node.start, (node.end() - 1) / size * size);
        if end <= start {
            let node = self.take(id);
            self.leaves.remove(&(node.used, id));
            let parent = self.node_mut(node.parent);
            parent.children.remove(&node.tokens[0]);
            if parent.children.is_empty() && node.parent != ROOT {
                let used = parent.used;
                self.leaves.insert((used, node.parent));
            }
            return release(&node.pages, pools);
        }
        node.tokens.truncate(end - start);
        for (pages, pool) in node.pages.iter_mut().zip(pools) {
            let size = pool.page_size();
            for page in pages.drain(end.div_ceil(size) - start / size..) {
                pool.let_go_by_node(page);
            }
        }
    }

    fn put(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.unused.pop() {
            self.nodes[id] = Some(node);
            return id;
        }
        self.nodes.push(Some(node));
        self.nodes.len() - 1
    }

    fn take(&mut self, id: NodeId) -> Node {
        self.unused.push(id);
        self.nodes[id].take().expect(NODE_EXISTS)
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect(NODE_EXISTS)
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect(NODE_EXISTS)
    }
}

const NODE_EXISTS: &str = "invariant: ids in the tree have a node";

/// How many tokens two sequences share, from the first.
pub(crate) fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn release(pages: &PageTables, pools: &mut [Pool]) {
    for (pages, pool) in pages.iter().zip(pools) {
        pages.iter().for_each(|&page| pool.let_go_by_node(page));
    }
}

#[cfg(any(test, feature = "fuzzing"))]
#[path = "radix_naive.rs"]
pub(crate) mod naive;
