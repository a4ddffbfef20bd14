//! Chains laid out for a device that is not there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fornax_gguf::DType;

use super::layout::{ATTENTION, COPIES, Link, Source, Table};
use super::*;
use crate::plan::products::{Shape, stream_for_test};

/// A device of 132 multiprocessors with 227 KiB of shared memory each.
const BLOCKS: usize = 132;
pub(super) const SHARED: usize = 227 << 10;

pub(in crate::plan) const ATTENTION_TABLE: AttendTable = AttendTable {
    out: 1000,
    q: 900,
    keys: 3,
    values: 4,
    tokens: 77,
    rows: 78,
    tables: 7,
    tiles: 0,
    sinks: 0,
    q_norm: 0,
    k_norm: 0,
    frequencies: 9,
    dense: 0,
    pieces: 0,
    before: 0,
    starts: 0,
    turns: 0,
    slots: 5,
    dense_apart: 0,
    scale: 1.0,
    cap: 0.0,
    eps: 0.0,
    magnitude: 1.0,
    n: 1,
    q_stride: 960,
    q_offset: 0,
    q_count: 9,
    kv_heads: 3,
    dim: 64,
    v_dim: 64,
    kind: 1,
    page_size: 64,
    window: 0,
    k_offset: 576,
    v_offset: 768,
    rotary: 64,
    style: 0,
    narrow: 0,
    apart: 0,
};

/// The products of a layer: their shapes, and which buffers they read and write.
pub(super) fn products(format: DType) -> [Stream; 4] {
    products_at(format, 800)
}

/// The same of a token that lies elsewhere.
pub(super) fn products_at(format: DType, token: u64) -> [Stream; 4] {
    let shape = |x, out, residual, rows, cols, [normed, pair]: [bool; 2]| Shape {
        x,
        out,
        residual,
        rows,
        cols,
        normed,
        pair,
    };
    [
        shape(token, 900, 0, 960, 576, [true, false]),
        shape(1000, 0, token, 576, 576, [false; 2]),
        shape(token, 1100, 0, 1536, 576, [true; 2]),
        shape(1100, 0, token, 576, 1536, [false; 2]),
    ]
    .map(|shape| stream_for_test(&shape, format))
}

pub(super) fn layers(products: &[Stream; 4], count: usize) -> Vec<Candidate<'_>> {
    layers_with(products, &ATTENTION_TABLE, count)
}

pub(super) fn layers_with<'a>(
    products: &'a [Stream; 4],
    attend: &'a AttendTable,
    count: usize,
) -> Vec<Candidate<'a>> {
    let [qkv, rest @ ..] = products;
    let layer = || {
        let rest = rest.iter().map(Candidate::Product);
        let first = [Candidate::Product(qkv), Candidate::Attention(attend)];
        first.into_iter().chain(rest)
    };
    (0..count).flat_map(|_| layer()).collect()
}

#[test]
fn every_link_reads_what_the_link_before_it_wrote() {
    let products = products(DType::Q8_0);
    let layout = Layout::new(BLOCKS, SHARED, &layers(&products, 3)).unwrap();
    assert_eq!(layout.links.len(), 15);
    assert_eq!(layout.sources.len(), 12);
    assert_eq!((layout.links[0].from, layout.links[14].to), (0, 0));
    for pair in layout.links.windows(2) {
        let wrote = (pair[0].to, pair[0].to_apart, pair[0].tag, pair[0].stride);
        let reads = &pair[1];
        let read = (
            reads.from,
            reads.from_apart,
            reads.from_tag,
            reads.from_stride,
        );
        assert_eq!(wrote, read);
        assert!(wrote.2 >= 1 && wrote.2 <= wrote.3, "{wrote:?}");
    }
}

/// Words are told from those of the write before by a number of four bits, which counts the writes
/// to their place over all launches.
#[test]
fn a_place_is_written_by_one_width_and_counts_on_from_launch_to_launch() {
    let products = products(DType::Q8_0);
    let layout = Layout::new(BLOCKS, SHARED, &layers(&products, 5)).unwrap();
    let mut last = std::collections::HashMap::new();
    for epoch in 0..20 {
        for link in layout.links.iter().filter(|link| link.to != 0) {
            let tag = (epoch * link.stride + link.tag) & 15;
            let (before, apart) = last
                .insert(link.to, (tag, link.to_apart))
                .unwrap_or((0, link.to_apart));
            assert_eq!(
                tag,
                (before + 1) & 15,
                "a word of the write before would be taken"
            );
            assert_eq!(apart, link.to_apart);
        }
    }
}

#[test]
fn places_share_no_bytes_and_end_where_pieces_begin() {
    let products = products(DType::BF16);
    let layout = Layout::new(BLOCKS, SHARED, &layers(&products, 2)).unwrap();
    let mut places: Vec<(u64, u64)> = layout
        .links
        .iter()
        .filter(|link| link.to != 0)
        .map(|link| {
            (
                link.to,
                link.to + u64::from(link.to_apart) * 4 * COPIES as u64,
            )
        })
        .collect();
    places.sort_unstable();
    places.dedup();
    assert!(
        places.windows(2).all(|pair| pair[0].1 <= pair[1].0),
        "{places:?}"
    );
    let begin = layout.words_at() as u64;
    assert!(places[0].0 >= begin);
    let attention = layout
        .links
        .iter()
        .find(|link| link.kind == ATTENTION)
        .unwrap();
    assert_eq!(places.last().unwrap().1, attention.pieces);
    assert_eq!(
        attention.totals + layout.totals as u64,
        layout.bytes() as u64
    );
}

/// A kernel reads a link's own parameters behind its head.
#[test]
fn links_are_laid_out_as_the_kernel_reads_them() {
    assert_eq!(
        (size_of::<Link>(), size_of::<Source>(), size_of::<Table>()),
        (312, 32, 80)
    );
    let products = products(DType::Q8_0);
    let layout = Layout::new(BLOCKS, SHARED, &layers(&products, 1)).unwrap();
    let words = layout.program(0x10000);
    let each = size_of::<Link>() / 8;
    let link = &words[2 + each..][..each];
    assert_eq!(link[0] as u32, ATTENTION);
    assert_eq!(link[10..14], [1000, 900, 3, 4], "out, q, keys and values");
    assert_eq!(link[6], 0x10000 + layout.links[1].from);
}

/// A product whose last rows are in another format: as a link of its own, which hears what the one before it heard
/// and tells what is missing, on the blocks that have fewer rows of the first.
#[test]
fn what_goes_on_hears_the_same_and_tells_the_rest() {
    let [mut first, output, gate_up, down] = products(DType::IQ4_NL);
    let [mut rest, ..] = products(DType::MXFP4);
    first.table.rows = 768;
    (rest.table.rows, rest.table.column) = (192, 768);
    let candidates: Vec<_> = [&first, &rest]
        .map(Candidate::Product)
        .into_iter()
        .chain([Candidate::Attention(&ATTENTION_TABLE)])
        .chain([&output, &gate_up, &down].map(Candidate::Product))
        .collect();
    let layers: Vec<_> = [&candidates[..], &candidates[..]].concat();
    let run: Vec<_> = layers.iter().copied().enumerate().collect();
    assert!(run.windows(2).all(|pair| follows(&pair[0], &pair[1])));
    let layout = Layout::new(BLOCKS, SHARED, &layers).unwrap();
    let [.., before, begun, goes_on, attends, _, _, _] = &layout.links[..] else {
        panic!("too few links");
    };
    let said = |link: &Link| (link.tag, link.stride, link.to_apart);
    let heard = |link: &Link| (link.from, link.from_tag, link.from_stride, link.from_apart);
    assert_eq!(heard(begun), heard(goes_on));
    assert_eq!(begun.from, before.to);
    assert_eq!(said(begun), said(goes_on));
    assert_eq!(goes_on.to, begun.to + 4 * 768);
    assert_eq!((attends.from, attends.from_tag), (begun.to, begun.tag));
    assert_eq!((begun.kind, goes_on.kind), (20, 39));
    // 96 eights of rows on 132 blocks, then 24.
    assert_eq!((begun.first, begun.one_more), (0, 96));
    assert_eq!((goes_on.first, goes_on.one_more), (96, 24));
    assert_eq!(
        (layout.sources[0].first_block, layout.sources[1].first_block),
        (0, 96)
    );
}

/// A block reads what it adds to from its own cache, where it sees nobody else's writes of the same launch.
#[test]
fn what_is_added_to_is_always_the_same_blocks() {
    let [qkv, output, mut gate_up, mut down] = products(DType::F16);
    down.table.tile_rows = 2;
    gate_up.table.tile_rows = 4;
    let products = [qkv, output, gate_up, down];
    let layout = Layout::new(BLOCKS, SHARED, &layers(&products, 2)).unwrap();
    let adding = [2, 4, 7, 9].map(|index| &layout.links[index]);
    for link in adding {
        let words = |word: usize| link.body[word];
        assert_ne!(words(1), 0, "nothing is added to");
        assert_eq!((link.first, link.of_each, link.one_more), (0, 0, 72));
    }
    let tile_rows = |index: usize| layout.sources[index].tile_rows;
    assert_eq!([1, 2, 3].map(tile_rows), [8, 4, 2]);
    // Not by two links in a row, between which a block's threads do not meet.
    let mut candidates = layers(&products, 2);
    candidates.push(candidates[9]);
    assert!(Layout::new(BLOCKS, SHARED, &candidates).is_none());
}

/// A run may end within a product: nobody in the launch reads the part that is there.
#[test]
fn a_part_at_the_end_tells_nobody() {
    let whole = products(DType::IQ4_NL);
    let [mut first, ..] = products(DType::IQ4_NL);
    let [mut rest, ..] = products(DType::MXFP4);
    first.table.rows = 768;
    (rest.table.rows, rest.table.column) = (192, 768);
    let mut candidates = layers(&whole, 1);
    candidates.push(Candidate::Product(&first));
    let layout = Layout::new(BLOCKS, SHARED, &candidates).unwrap();
    assert_eq!(
        (layout.links[5].to, layout.links[5].from),
        (0, layout.links[4].to)
    );
    candidates.push(Candidate::Product(&rest));
    let layout = Layout::new(BLOCKS, SHARED, &candidates).unwrap();
    assert_eq!([5, 6].map(|index| layout.links[index].to), [0, 0]);
    assert_eq!(layout.links[6].from, layout.links[4].to);
}

#[test]
fn a_product_is_followed_when_all_of_it_is_there() {
    let [mut first, ..] = products(DType::IQ4_NL);
    let [mut rest, ..] = products(DType::MXFP4);
    first.table.rows = 768;
    (rest.table.rows, rest.table.column) = (192, 768);
    let attends = (1, Candidate::Attention(&ATTENTION_TABLE));
    assert!(!follows(&(0, Candidate::Product(&first)), &attends));
    assert!(follows(&(0, Candidate::Product(&rest)), &attends));
    let rest = (1, Candidate::Product(&rest));
    assert!(follows(&(0, Candidate::Product(&first)), &rest));
    assert!(!follows(&attends, &rest));
}

#[test]
fn what_does_not_fit_stays_apart() {
    let products = products(DType::Q8_0);
    let one = layers(&products, 1);
    assert!(
        Layout::new(BLOCKS, SHARED, &one[2..]).is_none(),
        "no attention"
    );
    assert!(
        Layout::new(BLOCKS, SHARED, &one[..3]).is_none(),
        "too short"
    );
    assert!(
        Layout::new(2, SHARED, &one).is_none(),
        "more heads than blocks"
    );
    assert!(
        Layout::new(BLOCKS, 40 << 10, &one).is_none(),
        "no room for a ring"
    );
}
