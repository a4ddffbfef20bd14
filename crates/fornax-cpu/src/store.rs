//! From weights to activations and from activations to the cache: embedding, store of K and V.
//!
//! Must not know how pages or panels lie.

use std::ops::Range;

use fornax_backend::Heads;

use crate::{
    cores::Cores,
    isa::Isa,
    kv::{Kv, KvWriter, StoreTokens},
    memory::Parts,
    pool::Pool,
    rope::{Turn, TurnRow},
    rows::run_rows,
    simd::LANES,
    step::Step,
    weight::Matrix,
};

/// `out[t] = scale * table[token t]`; `out` is `[tokens, table.cols]`.
pub(crate) fn embed(pool: &mut Pool, out: &mut [f32], table: &Matrix, scale: f32, tokens: &[u32]) {
    let width = table.cols;
    let out = Parts::new(out);
    run_rows(pool, tokens.len(), 4 * width, |row| {
        // SAFETY: each row is another place.
        let out = unsafe { out.part(row * width, width) };
        table.unpack_row(tokens[row] as usize, out);
        if scale != 1.0 {
            out.iter_mut().for_each(|value| *value *= scale);
        }
    });
}

/// Writes K and V of the step's tokens to their pages. `x` is `[tokens, k.stride]`.
pub(crate) fn store_kv(
    cores: &mut Cores,
    kv: &mut Kv,
    x: &[f32],
    (k, v): (Heads, Heads),
    group: usize,
    step: &Step,
) {
    let (isa, pool) = cores.parts();
    check(kv, group, step, x.len() / k.stride);
    let kv = kv.writer();
    for_each_panel(pool, k.stride, step, group, |tokens, place| {
        let rows = &x[tokens.start * k.stride..tokens.end * k.stride];
        // SAFETY: each token is another place.
        unsafe { store(isa, kv, rows, (k, v), place) };
    });
}

/// Norms and rotates heads in place, then writes K and V to their pages. `x` is `[tokens, k.stride]`.
pub(crate) fn turn_and_store(
    cores: &mut Cores,
    kv: &mut Kv,
    x: &mut [f32],
    turns: &[Turn<'_>],
    (k, v): (Heads, Heads),
    group: usize,
    step: &Step,
) {
    let (isa, pool) = cores.parts();
    check(kv, group, step, x.len() / k.stride);
    let (kv, x) = (kv.writer(), Parts::new(x));
    for_each_panel(pool, k.stride, step, group, |tokens, place| {
        // SAFETY: each token is another row.
        let rows = unsafe { x.part(tokens.start * k.stride, tokens.len() * k.stride) };
        for (token, row) in tokens.zip(rows.chunks_exact_mut(k.stride)) {
            turns.iter().for_each(|turn| {
                isa.run(TurnRow {
                    turn,
                    row: &mut *row,
                    token,
                })
            });
        }
        // SAFETY: each token is another place.
        unsafe { store(isa, kv, rows, (k, v), place) };
    });
}

fn check(kv: &Kv, group: usize, step: &Step, n: usize) {
    assert_eq!(n, step.tokens.len(), "store_kv: tokens of the step");
    let page_size = step.capacity.groups[group].0;
    assert_eq!(
        kv.shape().page_size,
        page_size,
        "store_kv: page size of group {group}"
    );
}

/// Runs `job` for tokens of a row whose keys share a panel, until it was run for all tokens of the
/// step. It is given the tokens, page and place in it of the first.
fn for_each_panel(
    pool: &mut Pool,
    stride: usize,
    step: &Step,
    group: usize,
    job: impl Fn(Range<usize>, (usize, usize)) + Sync,
) {
    let page_size = step.capacity.groups[group].0;
    run_rows(pool, step.tokens.len(), stride, |token| {
        let row_index = step
            .rows
            .partition_point(|row| row.start + row.len <= token);
        let row = &step.rows[row_index];
        let (page, place) = step.place(group, row_index, token);
        if token > row.start && !place.is_multiple_of(LANES) {
            // The first token of its panel takes it along.
            return;
        }
        let panel_end = page_size.min(place / LANES * LANES + LANES);
        let end = (row.start + row.len).min(token + panel_end - place);
        job(token..end, (page, place));
    });
}

/// # Safety
/// Nobody else writes to these places.
unsafe fn store(
    isa: Isa,
    kv: KvWriter<'_>,
    rows: &[f32],
    (k, v): (Heads, Heads),
    (page, token): (usize, usize),
) {
    // SAFETY: the caller's; nobody reads while the cache is borrowed for writing.
    unsafe {
        StoreTokens {
            kv,
            rows,
            k,
            v,
            page,
            token,
        }
        .store(isa)
    };
}
