//! That pages are handed out, shared and counted right, and that `check` would see it if not.

use super::*;
use crate::testing::{kv_group, small_limits};

/// Eight pages of four tokens, shared by prefix, and a table for five tokens: two pages.
fn cache_and_table() -> (KvCache, PageTables) {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 8)];
    let mut cache = KvCache::new(&limits, KvPolicy::Paged, true).unwrap();
    let mut tables = cache.empty_tables(5);
    assert!(cache.reserve(&mut tables, 5));
    cache.check([(&tables, 0)].into_iter());
    (cache, tables)
}

/// Opens tables for these tokens; all but the last may be reused.
fn open(cache: &mut KvCache, tokens: &[Token]) -> Option<(PageTables, usize, Vec<PageCopy>)> {
    let mut copies = Vec::new();
    let reusable = &tokens[..tokens.len() - 1];
    let (tables, reused) = cache.open(reusable, tokens.len(), 64, &mut copies)?;
    Some((tables, reused, copies))
}

#[test]
fn short_of_pages_nothing_changes() {
    let (mut cache, mut tables) = cache_and_table();
    let mut others = cache.empty_tables(25);
    assert!(!cache.reserve(&mut others, 25));
    cache.check([(&tables, 0)].into_iter());
    assert!(cache.reserve(&mut others, 24));
    cache.release(&mut tables);
    cache.check([(&others, 0)].into_iter());
}

#[test]
fn full_pages_are_shared_and_a_part_of_one_is_copied() {
    let (mut cache, first) = cache_and_table();
    cache.publish(&[1, 2, 3, 4, 5], &first);
    let (second, reused, copies) = open(&mut cache, &[1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!((reused, second), (5, vec![vec![0, 2]]));
    let copy = PageCopy {
        group: 0,
        source: 1,
        destination: 2,
        tokens: 1,
    };
    assert_eq!(copies, [copy]);
    // Another one parts within the first page, so all that it shares is copied.
    let (third, reused, copies) = open(&mut cache, &[1, 2, 9]).unwrap();
    assert_eq!((reused, &third), (2, &vec![vec![3]]));
    assert_eq!((copies[0].source, copies[0].tokens), (0, 2));
    // One that ends a page shares it as it is.
    let (fourth, reused, copies) = open(&mut cache, &[1, 2, 3, 4, 9]).unwrap();
    assert_eq!((reused, &fourth, copies.len()), (4, &vec![vec![0, 4]], 0));
}

#[test]
fn what_is_copied_from_stays_until_the_copy_is_done() {
    let (mut cache, mut first) = cache_and_table();
    cache.publish(&[1, 2, 3, 4, 5], &first);
    cache.release(&mut first);
    let (second, ..) = open(&mut cache, &[1, 2, 3, 4, 5, 6]).unwrap();
    // Five pages are free and the sixth is held: page 1, which the second copies from.
    let mut others = cache.empty_tables(24);
    assert!(!cache.reserve(&mut others, 24));
    cache.end_copies();
    assert!(cache.reserve(&mut others, 24));
    cache.check([(&second, 5), (&others, 0)].into_iter());
}

#[test]
fn where_only_the_page_to_copy_is_short_whole_pages_are_shared() {
    let (mut cache, mut first) = cache_and_table();
    cache.publish(&[1, 2, 3, 4, 5], &first);
    cache.release(&mut first);
    let tokens: Vec<Token> = (1..=32).collect();
    let (tables, reused, copies) = open(&mut cache, &tokens).unwrap();
    assert_eq!((tables[0].len(), reused, copies.len()), (8, 4, 0));
    cache.check([(&tables, 4)].into_iter());
    assert_eq!(
        cache.known(&[1, 2, 3, 4, 5]),
        Some(4),
        "its page was needed"
    );
    assert_eq!(cache.evicted(), 1);
}

#[test]
fn each_group_shares_by_its_own_pages() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 8), kv_group(3, 8)];
    limits.kv_groups[1].window = Some(2);
    let mut cache = KvCache::new(&limits, KvPolicy::Paged, true).unwrap();
    let (first, ..) = open(&mut cache, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
    cache.publish(&[1, 2, 3, 4, 5, 6, 7], &first);
    let (second, reused, copies) = open(&mut cache, &[1, 2, 3, 4, 5, 6, 8]).unwrap();
    assert_eq!((reused, &first), (6, &vec![vec![0, 1], vec![0, 1, 2]]));
    assert_eq!(second, [vec![0, 2], vec![0, 1, 3]]);
    assert_eq!((copies.len(), copies[0].tokens), (1, 2));
    cache.check([(&first, 7), (&second, 6)].into_iter());
}

#[test]
fn without_a_prefix_cache_nothing_is_shared() {
    let mut cache = KvCache::new(&small_limits(), KvPolicy::Paged, false).unwrap();
    let (first, ..) = open(&mut cache, &[1, 2, 3, 4, 5]).unwrap();
    cache.publish(&[1, 2, 3, 4, 5], &first);
    let (_, reused, copies) = open(&mut cache, &[1, 2, 3, 4, 5]).unwrap();
    assert_eq!((reused, copies.len()), (0, 0));
    assert_eq!(cache.known(&[1]), None);
}

#[test]
fn only_single_pages_can_be_shared() {
    for policy in [KvPolicy::None, KvPolicy::Basic] {
        let error = KvCache::new(&small_limits(), policy, true).err();
        assert_eq!(error, Some(LimitsError::PrefixCache));
    }
}

#[test]
#[should_panic(expected = "page 0 is counted (left) but held (right)")]
fn a_lost_table_is_found() {
    let (cache, _) = cache_and_table();
    cache.check([].into_iter());
}

#[test]
#[should_panic(expected = "page 0 is counted (left) but held (right)")]
fn a_page_shared_and_not_counted_is_found() {
    let (cache, tables) = cache_and_table();
    cache.check([(&tables, 8), (&tables, 8)].into_iter());
}

#[test]
#[should_panic(expected = "page 1 may be written and is in 2 tables")]
fn a_shared_page_that_may_be_written_is_found() {
    let (mut cache, tables) = cache_and_table();
    cache.pools[0].hold(0);
    cache.pools[0].hold(1);
    cache.check([(&tables, 8), (&tables, 5)].into_iter());
}

#[test]
#[should_panic(expected = "page 5 is counted (left) but held (right)")]
fn a_page_that_was_never_handed_out_is_found() {
    let (cache, mut tables) = cache_and_table();
    tables[0].push(5);
    cache.check([(&tables, 0)].into_iter());
}

#[test]
#[should_panic(expected = "page 0 is released twice")]
fn a_second_release_is_found() {
    let (mut cache, mut tables) = cache_and_table();
    cache.release(&mut tables.clone());
    cache.release(&mut tables);
}

#[test]
#[should_panic(expected = "page 2 is lost")]
fn a_page_that_nobody_has_is_found() {
    let (mut cache, tables) = cache_and_table();
    cache.pools[0].lose_a_free_page();
    cache.check([(&tables, 0)].into_iter());
}
