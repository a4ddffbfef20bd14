//! Causal attention over pages, cut into tiles: some queries of one sequence that read the same KV
//! head.
//!
//! Owns how the work of a step is cut up, and how the parts of a long context come together. The
//! arithmetic of a tile is in `tile.rs`. Must not know how K and V came to be.
//!
//! A context falls into stretches of [`STRETCH`] positions, each with a softmax of its own, which
//! [`fold`] joins one after another. Where the queries of a row fit one tile the stretches are dealt
//! out, so that a long context keeps all threads busy; elsewhere a tile goes through all of them. So
//! a query's result does not depend on threads, nor on the queries that it is computed with.

mod tile;

use fornax_backend::{AttentionSpec, RowSpan};

use crate::{
    isa::Isa,
    kv::Kv,
    memory::{Line, Parts},
    pool::Pool,
    rows::grow,
    weight::Weight,
};
use tile::TileWork;

/// Positions of a stretch.
const STRETCH: usize = 1024;

/// Scratch of attention. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    tiles: Vec<Tile>,
    /// Rows cut into stretches, with their first tile.
    cut: Vec<Cut>,
    /// `[threads][what a tile needs]`
    work: Vec<Line>,
    /// Of tiles in a cut row: largest score, sum and output of each query. `[tiles][width * (2 + v_dim)]`
    partial: Vec<f32>,
}

/// Queries of a row that read one KV head, over a stretch of positions.
#[derive(Clone, Copy, Debug)]
struct Tile {
    row: RowSpan,
    /// Index of the row in the step.
    row_index: usize,
    kv_head: usize,
    /// First query: `token * group + head in the group`.
    first: usize,
    queries: usize,
    /// First position.
    start: usize,
    /// Behind the last position.
    end: usize,
    /// Place of its partial result; `None` where it goes straight to the output.
    partial: Option<usize>,
}

/// A row and KV head whose positions were cut into stretches.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The first of its tiles.
    tile: usize,
    /// How many there are, one a stretch.
    stretches: usize,
}

/// What attention reads.
pub(crate) struct Attention<'a> {
    pub spec: AttentionSpec<'a, Weight>,
    /// `[n, spec.q.stride]`
    pub q: &'a [f32],
    pub kv: &'a Kv,
    pub rows: &'a [RowSpan],
    /// Page tables by row.
    pub tables: &'a [Vec<u32>],
}

impl Attention<'_> {
    /// Query heads that read the same KV head.
    fn group(&self) -> usize {
        self.spec.q.count / self.spec.kv_heads
    }

    /// First position that the query at `position` sees.
    fn first_seen(&self, position: usize) -> usize {
        self.spec
            .window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// `out` is `[n, spec.q.count * spec.v_dim]`.
pub(crate) fn attention(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    out: &mut [f32],
    attention: &Attention<'_>,
) {
    let widest = isa.columns();
    let per_thread = tile::scratch_len(widest, attention.kv);
    cut(attention, widest, scratch);
    let v_stride = attention.kv.v_stride();
    let per_partial = widest * (2 + v_stride);
    let partials = scratch.cut.iter().map(|cut| cut.stretches).sum::<usize>();
    let lines = Line::count::<f32>(per_thread);
    grow(&mut scratch.work, pool.threads() * lines);
    grow(&mut scratch.partial, partials * per_partial);
    let Scratch {
        tiles,
        cut,
        work,
        partial,
    } = scratch;
    let (work, partial) = (Parts::new(work), Parts::new(partial));
    let out_parts = Parts::new(out);
    // The last tiles of a row see the most positions: they come first, so that threads end together.
    let count = tiles.len();
    pool.run(count, |piece, thread| {
        let tile = &tiles[count - 1 - piece];
        let next = tiles[..count - 1 - piece].last();
        // SAFETY: each thread has its own scratch, each tile its own queries and partial result.
        unsafe {
            let scratch = Line::of(work.part(thread * lines, lines));
            let partial = tile
                .partial
                .map(|index| partial.part(index * per_partial, per_partial));
            TileWork {
                attention,
                tile,
                next,
                scratch,
                out: out_parts,
                partial,
            }
            .compute(isa);
        }
    });
    for cut in cut.iter() {
        let tiles = &tiles[cut.tile..cut.tile + cut.stretches];
        // SAFETY: the threads are through.
        let partial = unsafe { partial.part(0, partials * per_partial) };
        join(attention, tiles, partial, per_partial, out);
    }
}

/// Lists the tiles of a step.
fn cut(attention: &Attention<'_>, widest: usize, scratch: &mut Scratch) {
    let group = attention.group();
    scratch.tiles.clear();
    scratch.cut.clear();
    let mut partials = 0;
    for (row_index, &row) in attention.rows.iter().enumerate() {
        let queries = row.len * group;
        for kv_head in 0..attention.spec.kv_heads {
            for first in (0..queries).step_by(widest) {
                let count = widest.min(queries - first);
                let position = |query: usize| row.cached + query / group;
                let start = attention.first_seen(position(first));
                let end = position(first + count - 1) + 1;
                let mut tile = Tile {
                    row,
                    row_index,
                    kv_head,
                    first,
                    queries: count,
                    start,
                    end,
                    partial: None,
                };
                let stretches = end.div_ceil(STRETCH) - start / STRETCH;
                if queries > widest || stretches == 1 {
                    scratch.tiles.push(tile);
                    continue;
                }
                scratch.cut.push(Cut {
                    tile: scratch.tiles.len(),
                    stretches,
                });
                for stretch in start / STRETCH..end.div_ceil(STRETCH) {
                    tile.start = start.max(stretch * STRETCH);
                    tile.end = end.min((stretch + 1) * STRETCH);
                    tile.partial = Some(partials);
                    scratch.tiles.push(tile);
                    partials += 1;
                }
            }
        }
    }
}

/// Joins the stretches of some queries.
fn join(
    attention: &Attention<'_>,
    tiles: &[Tile],
    partial: &mut [f32],
    per_partial: usize,
    out: &mut [f32],
) {
    let (v_dim, v_stride) = (attention.spec.v_dim, attention.kv.v_stride());
    let Tile {
        row,
        kv_head,
        first,
        queries,
        ..
    } = tiles[0];
    let group = attention.group();
    let partial_of = |tile: &Tile| {
        let index = tile.partial;
        index.expect("invariant: a stretch has a partial result") * per_partial
    };
    for query in 0..queries {
        let place = query * (2 + v_stride);
        let (total, parts) = partial[partial_of(&tiles[0])..].split_at_mut(per_partial);
        let total = &mut total[place..place + 2 + v_stride];
        for (index, _) in tiles[1..].iter().enumerate() {
            fold(total, &parts[index * per_partial + place..][..2 + v_stride]);
        }
        let token = row.start + (first + query) / group;
        let head = kv_head * group + (first + query) % group;
        let start = (token * attention.spec.q.count + head) * v_dim;
        divide(total, &mut out[start..start + v_dim]);
    }
}

/// Adds a stretch to those before it, each with its largest score, sum of weights and weighted
/// values. `[2 + v_stride]`
fn fold(total: &mut [f32], part: &[f32]) {
    let largest = total[0].max(part[0]);
    if part[0] == f32::NEG_INFINITY {
        return;
    }
    if total[0] == f32::NEG_INFINITY {
        total.copy_from_slice(part);
        return;
    }
    let (before, now) = ((total[0] - largest).exp(), (part[0] - largest).exp());
    total[0] = largest;
    let sums = total[1..].iter_mut().zip(&part[1..]);
    sums.for_each(|(total, part)| *total = before * *total + now * part);
}

/// Takes the output out of a sum over all positions.
fn divide(total: &[f32], out: &mut [f32]) {
    let inverse = 1.0 / total[1];
    let values = out.iter_mut().zip(&total[2..]);
    values.for_each(|(out, value)| *out = value * inverse);
}
