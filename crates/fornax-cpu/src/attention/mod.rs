//! Causal attention over pages, cut into pieces: some queries of one sequence that read the same KV
//! head, or those of an answer that read some.
//!
//! Owns how the work of a step is cut up, and how the parts of a long context come together. The
//! arithmetic is in `few.rs` for answers, and for prompts in `many.rs`; what a query comes to is the
//! same in both, to the last bit. Must not know how K and V came to be.
//!
//! A context falls into stretches of [`STRETCH`] positions, each with a softmax of its own, which
//! [`fold`] joins one after another. Where the queries of a row fit one tile the stretches are dealt
//! out, so that a long context keeps all threads busy; elsewhere a piece goes through all of them. So
//! a query's result does not depend on threads, nor on the queries that it is computed with.

mod arithmetic;
mod blocks;
mod few;
mod many;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod softmax;
mod tile_block;

use fornax_backend::{AttentionSpec, RowSpan};

use crate::{
    cores::Cores,
    kv::Kv,
    memory::{Growing, Line, Parts},
    simd::LANES,
    weight::Weight,
};
use few::FewQueries;
use many::ManyQueries;
use softmax::sums_stride;

/// Positions of a stretch.
const STRETCH: usize = 1024;

/// Pieces that a thread gets, where there is work for so many: fewer, and threads end apart.
const PIECES_EACH: usize = 8;

/// Scratch of attention. Grows to what the largest step needs and stays.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pieces: Vec<Piece>,
    /// Rows cut into stretches, with their first piece.
    cut: Vec<Cut>,
    /// `[threads][what a piece needs]`
    work: Growing<Line>,
    /// Of pieces in a cut row: weighted values, largest score and sum of weights of each query.
    /// `[pieces][heads][queries of the widest tile][sums_stride]`
    partial: Growing<f32>,
}

/// Queries of a row that read one KV head, and the positions that they see, or a stretch of them.
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
}

impl Tile {
    /// That of a KV head so many behind its own.
    fn of_head(&self, head: usize) -> Tile {
        Tile {
            kv_head: self.kv_head + head,
            ..*self
        }
    }

    /// What it sees of a stretch, which may be nothing.
    fn within(&self, stretch: &Tile) -> Tile {
        let start = self.start.max(stretch.start);
        Tile {
            start,
            end: self.end.min(stretch.end).max(start),
            ..*self
        }
    }
}

/// What a thread computes at a time.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// That of the first head.
    tile: Tile,
    /// KV heads from there on, of which each has such a tile.
    heads: usize,
    /// Place of the partial result of the first head, which those of the others follow; `None` where
    /// they go straight to the output.
    partial: Option<usize>,
}

/// A row and KV heads whose positions were cut into stretches.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// The first of its pieces.
    piece: usize,
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

    /// Some queries of a row, and all that they see.
    fn tile(&self, row_index: usize, kv_head: usize, first: usize, queries: usize) -> Tile {
        let (row, group) = (self.rows[row_index], self.group());
        Tile {
            row,
            row_index,
            kv_head,
            first,
            queries,
            start: self.first_seen(row.cached + first / group),
            end: row.cached + (first + queries - 1) / group + 1,
        }
    }

    /// Position of a query of a tile in its sequence.
    fn position(&self, tile: &Tile, query: usize) -> usize {
        tile.row.cached + (tile.first + query) / self.group()
    }

    /// Token of the step and head that a query of a tile is.
    fn place(&self, tile: &Tile, query: usize) -> (usize, usize) {
        let (group, query) = (self.group(), tile.first + query);
        let head = tile.kv_head * group + query % group;
        (tile.row.start + query / group, head)
    }

    /// Where the output of a query of a tile begins.
    fn output(&self, tile: &Tile, query: usize) -> usize {
        let (token, head) = self.place(tile, query);
        (token * self.spec.q.count + head) * self.spec.v_dim
    }
}

/// `out` is `[n, spec.q.count * spec.v_dim]`.
pub(crate) fn attention(
    cores: &mut Cores,
    scratch: &mut Scratch,
    out: &mut [f32],
    attention: &Attention<'_>,
) {
    let (isa, pool) = cores.parts();
    let (few, many) = (
        few::widest(isa.columns()),
        tile_block::widest(isa.columns()),
    );
    cut(attention, [few, many], pool.threads(), scratch);
    let per_thread = few::scratch_len(attention.kv);
    let per_thread = per_thread.max(many::scratch_len(isa.columns(), attention.kv));
    let per_partial = many * sums_stride(attention.kv);
    let of_cut = |cut: &Cut| cut.stretches * scratch.pieces[cut.piece].heads;
    let partials = scratch.cut.iter().map(of_cut).sum::<usize>();
    let lines = Line::count::<f32>(per_thread);
    scratch.work.grow(pool.threads() * lines);
    scratch.partial.grow(partials * per_partial);
    let Scratch {
        pieces,
        cut,
        work,
        partial,
    } = scratch;
    let (work, partial) = (Parts::new(work), Parts::new(partial));
    let out_parts = Parts::new(out);
    // The last pieces of a row see the most positions: they come first, so that threads end together.
    let count = pieces.len();
    pool.run(count, |index, thread| {
        let index = count - 1 - index;
        let Piece {
            tile,
            heads,
            partial: at,
        } = &pieces[index];
        let next = pieces[..index].last().map(|piece| &piece.tile);
        // SAFETY: each thread has its own scratch, each piece its own queries and partial result.
        unsafe {
            let scratch = Line::of(work.part(thread * lines, lines));
            let partial = at.map(|at| partial.part(at * per_partial, heads * per_partial));
            let out = out_parts;
            if tile.queries <= few {
                FewQueries {
                    attention,
                    tile,
                    heads: *heads,
                    next,
                    scratch,
                    out,
                    partial,
                }
                .compute(isa);
            } else {
                ManyQueries {
                    attention,
                    tile,
                    scratch,
                    out,
                    partial,
                }
                .compute(isa);
            }
        }
    });
    for cut in cut.iter() {
        let pieces = &pieces[cut.piece..cut.piece + cut.stretches];
        // SAFETY: the threads are through.
        let partial = unsafe { partial.part(0, partials * per_partial) };
        join(attention, pieces, partial, per_partial, out);
    }
}

/// Lists the pieces of a step.
fn cut(
    attention: &Attention<'_>,
    [few, widest]: [usize; 2],
    threads: usize,
    scratch: &mut Scratch,
) {
    let (group, kv_heads) = (attention.group(), attention.spec.kv_heads);
    scratch.pieces.clear();
    scratch.cut.clear();
    let tiles = attention.rows.iter();
    let tiles = tiles.map(|row| kv_heads * (row.len * group).div_ceil(widest));
    let each = tiles.sum::<usize>() / (PIECES_EACH * threads);
    let each = each.clamp(1, many::TILES) * widest;
    let together = pieces_of_heads(attention, few) / (PIECES_EACH * threads);
    let together = together.clamp(1, few::HEADS);
    let mut partials = 0;
    for (row_index, &row) in attention.rows.iter().enumerate() {
        let queries = row.len * group;
        let together = match queries <= few {
            true => together,
            false => 1,
        };
        for kv_head in (0..kv_heads).step_by(together) {
            let heads = together.min(kv_heads - kv_head);
            for first in (0..queries).step_by(each) {
                let count = each.min(queries - first);
                let tile = attention.tile(row_index, kv_head, first, count);
                let mut piece = Piece {
                    tile,
                    heads,
                    partial: None,
                };
                let stretches = tile.end.div_ceil(STRETCH) - tile.start / STRETCH;
                if queries > widest || stretches == 1 {
                    scratch.pieces.push(piece);
                    continue;
                }
                scratch.cut.push(Cut {
                    piece: scratch.pieces.len(),
                    stretches,
                });
                for tile in blocks::stretches(&tile) {
                    piece.tile = tile;
                    piece.partial = Some(partials);
                    scratch.pieces.push(piece);
                    partials += heads;
                }
            }
        }
    }
}

/// Pieces that answers come to where each has one head.
fn pieces_of_heads(attention: &Attention<'_>, few: usize) -> usize {
    let rows = attention.rows.iter();
    let answers = rows.filter(|row| (1..=few).contains(&(row.len * attention.group())));
    let stretches = answers.map(|row| {
        let seen = attention.first_seen(row.cached)..row.cached + row.len;
        seen.end.div_ceil(STRETCH) - seen.start / STRETCH
    });
    attention.spec.kv_heads * stretches.sum::<usize>()
}

/// Joins the stretches of some queries of each head.
fn join(
    attention: &Attention<'_>,
    pieces: &[Piece],
    partial: &mut [f32],
    per_partial: usize,
    out: &mut [f32],
) {
    let (v_dim, sums) = (attention.spec.v_dim, sums_stride(attention.kv));
    let Piece {
        tile,
        heads,
        partial: at,
    } = &pieces[0];
    let at = at.expect("invariant: a stretch has a partial result") * per_partial;
    let (total, parts) = partial[at..].split_at_mut(heads * per_partial);
    for head in 0..*heads {
        let tile = tile.of_head(head);
        for query in 0..tile.queries {
            let at = head * per_partial + query * sums;
            let total = &mut total[at..at + sums];
            for index in 0..pieces.len() - 1 {
                fold(total, &parts[index * heads * per_partial + at..][..sums]);
            }
            let start = attention.output(&tile, query);
            divide(total, &mut out[start..start + v_dim]);
        }
    }
}

/// Adds a stretch to those before it, each with its weighted values and behind them its largest score
/// and sum of weights. `[sums_stride]`
fn fold(total: &mut [f32], part: &[f32]) {
    let largest_at = total.len() - LANES;
    let (so_far, this) = (total[largest_at], part[largest_at]);
    if this == f32::NEG_INFINITY {
        return;
    }
    if so_far == f32::NEG_INFINITY {
        total.copy_from_slice(part);
        return;
    }
    let largest = so_far.max(this);
    let (before, now) = ((so_far - largest).exp(), (this - largest).exp());
    let sums = total.iter_mut().zip(part);
    sums.for_each(|(total, part)| *total = before * *total + now * part);
    total[largest_at] = largest;
}

/// Takes the output out of a sum over all positions.
fn divide(total: &[f32], out: &mut [f32]) {
    let inverse = 1.0 / total[total.len() - LANES + 1];
    let values = out.iter_mut().zip(total);
    values.for_each(|(out, value)| *out = value * inverse);
}
