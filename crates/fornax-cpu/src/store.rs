//! From weights to activations and from activations to the cache: embedding, store of K and V.
//!
//! Must not know how pages or panels lie.

use fornax_backend::Heads;

use crate::{
    isa::Isa,
    kv::{Kv, KvWriter, StoreToken},
    memory::Parts,
    pool::Pool,
    rope::{Turn, TurnRow},
    rows::run_rows,
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

/// Writes K and V of `n` tokens to their pages. `x` is `[n, k.stride]`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn store_kv(
    isa: Isa,
    pool: &mut Pool,
    kv: &mut Kv,
    x: &[f32],
    (k, v): (Heads, Heads),
    group: usize,
    step: &Step,
    n: usize,
) {
    check(kv, group, step, n);
    let kv = kv.writer();
    for_each_token(pool, k.stride, step, n, |row, token| {
        let x = &x[token * k.stride..(token + 1) * k.stride];
        // SAFETY: each token is another place.
        unsafe { store(isa, kv, x, (k, v), step.place(group, row, token)) };
    });
}

/// Norms and rotates heads in place, then writes K and V to their pages. `x` is `[n, k.stride]`.
#[allow(clippy::too_many_arguments)]
pub(crate) fn turn_and_store(
    isa: Isa,
    pool: &mut Pool,
    kv: &mut Kv,
    x: &mut [f32],
    turns: &[Turn<'_>],
    (k, v): (Heads, Heads),
    group: usize,
    step: &Step,
    n: usize,
) {
    check(kv, group, step, n);
    let (kv, x) = (kv.writer(), Parts::new(x));
    for_each_token(pool, k.stride, step, n, |row, token| {
        // SAFETY: each token is another row.
        let x = unsafe { x.part(token * k.stride, k.stride) };
        turns.iter().for_each(|turn| {
            isa.run(TurnRow {
                turn,
                row: &mut *x,
                token,
            })
        });
        // SAFETY: each token is another place.
        unsafe { store(isa, kv, x, (k, v), step.place(group, row, token)) };
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

/// Runs `job` for each `(row, token)` of a step.
fn for_each_token(
    pool: &mut Pool,
    stride: usize,
    step: &Step,
    n: usize,
    job: impl Fn(usize, usize) + Sync,
) {
    run_rows(pool, n, stride, |token| {
        let row = step
            .rows
            .partition_point(|row| row.start + row.len <= token);
        job(row, token);
    });
}

/// # Safety
/// Nobody else writes to this place.
unsafe fn store(
    isa: Isa,
    kv: KvWriter<'_>,
    row: &[f32],
    (k, v): (Heads, Heads),
    (page, token): (usize, usize),
) {
    // SAFETY: the caller's; nobody reads while the cache is borrowed for writing.
    unsafe {
        StoreToken {
            kv,
            row,
            k,
            v,
            page,
            token,
        }
        .store(isa)
    };
}
