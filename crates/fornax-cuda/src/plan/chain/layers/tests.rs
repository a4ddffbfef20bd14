//! Teams for a device that is not there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::RefCell;

use fornax_gguf::DType;

use super::super::tests::{ATTENTION_TABLE, SHARED, layers, layers_with, products, products_at};
use super::*;

#[test]
fn layers_are_laid_out_as_the_kernel_reads_them() {
    assert_eq!((size_of::<Layer>(), size_of::<Table>()), (304, 136));
    let products = products(DType::Q8_0);
    let mut teams = Teams::new(SHARED, &[&layers(&products, 3)]).unwrap();
    assert!(teams.divide(15));
    assert_eq!((teams.layers.len(), teams.clusters()), (3, 15));
    let [layers, attended, fed, bytes] = teams.places();
    let described = RefCell::new(Vec::new());
    let words = teams
        .program(|weight, _, bytes| {
            described.borrow_mut().push((weight, bytes));
            Ok(TensorMap::default())
        })
        .unwrap();
    // Six blocks of 32 columns and their scales, then four.
    let each = [(5, 192), (5, 32), (5, 192), (5, 32)];
    assert_eq!(described.into_inner(), each.repeat(3));
    assert_eq!((attended % LINE, size_of::<Slices>()), (0, 256));
    assert!(words[..layers / 8].iter().all(|&word| word == 0));
    let last = &words[layers / 8 + size_of::<Layer>() / 8 * 2..];
    assert_eq!(last[..4], [5; 4], "the weights of the last");
    assert_eq!(last[9..13], [1000, 900, 3, 4], "out, q, keys and values");
    assert_eq!(fed - attended, 576 * 8);
    assert_eq!(bytes - fed, 576 * 8);
}

/// A head, or what else follows, is not for the teams.
#[test]
fn whole_layers_of_one_kind_are_taken() {
    let products = products(DType::Q4_0);
    let links = layers(&products, 4);
    assert_eq!(Teams::new(SHARED, &[&links[..17]]).unwrap().layers.len(), 3);
    assert!(
        Teams::new(SHARED, &[&links[1..]]).is_none(),
        "begins within one"
    );
    assert!(
        Teams::new(64 << 10, &[&links]).is_none(),
        "no room for a ring"
    );
    let halves = super::super::tests::products(DType::F16);
    assert!(
        Teams::new(SHARED, &[&layers(&halves, 2)]).is_none(),
        "no panels"
    );
}

#[test]
fn units_are_divided_where_there_are_enough_clusters() {
    let products = products(DType::Q4_0);
    let mut teams = Teams::new(SHARED, &[&layers(&products, 2)]).unwrap();
    assert!(!teams.divide(3), "none is left");
    assert!(!teams.divide(5), "too many tiles for each");
    assert!(teams.divide(6));
    assert!(teams.divide(40));
    assert_eq!(teams.table.feeders as usize, MOST_CLUSTERS);
}

/// Short rows leave a warp room for more slices of K and V, unless shared memory is short.
#[test]
fn more_slices_have_room_beside_short_rows() {
    let halves = |format, shared_memory| {
        let products = products(format);
        let teams = Teams::new(shared_memory, &[&layers(&products, 1)]).unwrap();
        assert_eq!(
            teams.shared,
            (teams.table.ring + teams.table.attending) as usize
        );
        match teams.module {
            Module::Layers { halves, .. } => halves,
            module => unreachable!("invariant: {module:?} is none of layers"),
        }
    };
    assert_eq!(halves(DType::Q4_0, SHARED), 4);
    assert_eq!(halves(DType::Q4_0, 120 << 10), 3);
    assert_eq!(halves(DType::Q4_0, 112 << 10), 2);
    assert_eq!(halves(DType::Q8_0, SHARED), 3);
    assert_eq!(halves(DType::BF16, SHARED), 2);
}

/// A single layer with a window, a cap or sinks has all of them go through the code for it.
#[test]
fn layers_are_plain_where_each_of_them_is() {
    let products = products(DType::Q8_0);
    let is_plain = |last: AttendTable| {
        let mut links = layers(&products, 2);
        links.extend(layers_with(&products, &last, 1));
        let teams = Teams::new(SHARED, &[&links]).unwrap();
        assert_eq!(teams.layers.len(), 3);
        match teams.module {
            Module::Layers { plain, .. } => plain,
            module => unreachable!("invariant: {module:?} is none of layers"),
        }
    };
    let at = ATTENTION_TABLE;
    assert!(is_plain(at));
    assert!(!is_plain(AttendTable { window: 128, ..at }));
    assert!(!is_plain(AttendTable { cap: 30.0, ..at }));
    assert!(!is_plain(AttendTable { sinks: 256, ..at }));
}

/// Rows go together where they differ in nothing but where their tokens and what is said of them lie.
#[test]
fn rows_that_differ_in_their_places_alone_are_one_launch() {
    let first = products(DType::Q8_0);
    let taken = |token: u64, attend: AttendTable, count| {
        let other = products_at(DType::Q8_0, token);
        let rows = [layers(&first, 3), layers_with(&other, &attend, count)];
        Teams::new(SHARED, &[&rows[0], &rows[1]])
    };
    let (behind, at) = (800 + 4 * 576, ATTENTION_TABLE);
    let second = AttendTable {
        out: at.out + 4 * 576,
        q: at.q + 4 * 960,
        tokens: at.tokens + RECORD,
        rows: at.rows + RECORD,
        ..at
    };
    let teams = taken(behind, second, 3).unwrap();
    let [_, attended, fed, bytes] = teams.places();
    assert_eq!([fed - attended, bytes - fed], [2 * 576 * 8; 2]);
    let one = Teams::new(SHARED, &[&layers(&first, 3)]).unwrap();
    assert!(teams.shared < one.shared, "a second row has taken no room");

    assert!(taken(800, second, 3).is_none(), "the first row's token");
    assert!(taken(behind, second, 2).is_none(), "fewer layers");
    for wrong in [
        AttendTable { keys: 30, ..second },
        AttendTable {
            window: 128,
            ..second
        },
        AttendTable {
            tokens: at.tokens,
            ..second
        },
        AttendTable {
            rows: at.rows,
            ..second
        },
    ] {
        assert!(taken(behind, wrong, 3).is_none());
    }
}
