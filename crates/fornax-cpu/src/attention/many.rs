//! Tiles of many queries, as prompts bring them: K and V become what is multiplied once for several
//! tiles, which then do so at the speed of the registers.
//!
//! Owns the order of the work (Dao et al. 2022, arXiv:2205.14135); the arithmetic is in
//! `tile_block.rs`. Must not know threads. A block of 64 keys is unpacked into the second level of
//! the cache; then one tile after another meets it.

use std::marker::PhantomData;

use super::{
    Attention, Tile,
    arithmetic::{self, Arithmetic, Outputs, Products, Scores, Work},
    blocks::{
        Block, KEYS, PANELS, Panel, has_one_stretch, keys_ahead, panels, stretches, value_rows,
        values_ahead,
    },
    softmax::{STRIDE, State},
    tile_block::{TileBlock, VALUES, widest, width},
};
use crate::{
    ahead::Ahead,
    isa::Isa,
    kv::{Element, Kv, with_element},
    memory::Parts,
    simd::{Kernel, LANES, Simd},
};

/// Tiles that meet a block before the next one is unpacked, at most.
pub(super) const TILES: usize = 16;

/// Elements of scratch: unpacked K and V, scores, factors, and the states of the tiles.
pub(super) fn scratch_len(columns: usize, kv: &Kv) -> usize {
    Scratch::shared(columns, kv) + TILES * State::len(kv, widest(columns))
}

/// What is computed with.
struct Scratch<'a> {
    /// Of a block: `[panels][words of a key, and what scales them][16 keys]`
    keys: &'a mut [f32],
    /// Of a block: `[vectors of a value][words of 64 keys, room to a line more than 64][16]`
    values: &'a mut [f32],
    /// Scores, then weights, of a tile. `[queries][STRIDE]`
    scores: &'a mut [f32],
    /// What the output of a tile so far has to be multiplied with. `[queries up to vectors]`
    factors: &'a mut [f32],
    /// `[TILES][a state]`
    states: &'a mut [f32],
}

impl<'a> Scratch<'a> {
    fn lens(columns: usize, kv: &Kv) -> [usize; 4] {
        [
            // A line for what scales the keys of a panel.
            KEYS * (kv.shape().k_dim + 1),
            kv.v_stride() / LANES * VALUES,
            widest(columns) * STRIDE,
            widest(columns).next_multiple_of(LANES),
        ]
    }

    fn shared(columns: usize, kv: &Kv) -> usize {
        Self::lens(columns, kv).iter().sum()
    }

    fn of(columns: usize, kv: &Kv, scratch: &'a mut [f32]) -> Self {
        let [keys_len, values_len, scores_len, factors_len] = Self::lens(columns, kv);
        let (keys, rest) = scratch.split_at_mut(keys_len);
        let (values, rest) = rest.split_at_mut(values_len);
        let (scores, rest) = rest.split_at_mut(scores_len);
        let (factors, states) = rest.split_at_mut(factors_len);
        Self {
            keys,
            values,
            scores,
            factors,
            states,
        }
    }
}

/// Tiles that follow each other and where their result goes.
pub(super) struct ManyQueries<'a> {
    pub attention: &'a Attention<'a>,
    /// Up to [`TILES`] times [`widest`] queries.
    pub tile: &'a Tile,
    /// Of [`scratch_len`].
    pub scratch: &'a mut [f32],
    pub out: Parts<'a, f32>,
    /// Results of a stretch: weighted values, largest score, sum of weights of each query.
    pub partial: Option<&'a mut [f32]>,
}

impl ManyQueries<'_> {
    /// # Safety
    /// Nobody else has the outputs of these queries.
    pub unsafe fn compute(self, isa: Isa) {
        let ManyQueries {
            attention,
            tile,
            scratch,
            out,
            mut partial,
        } = self;
        let element = attention.kv.shape().element;
        let mut scratch = Scratch::of(isa.columns(), attention.kv, scratch);
        for (tile, state) in tiles(isa, attention, tile, scratch.states) {
            arithmetic::run(isa, element, Start(state, attention, &tile));
        }
        let is_only = has_one_stretch(tile);
        for stretch in stretches(tile) {
            compute_stretch(isa, attention, tile, &stretch, &mut scratch);
        }
        for (tile, state) in tiles(isa, attention, tile, scratch.states) {
            isa.run(Finish {
                state,
                attention,
                tile: &tile,
                out,
                partial: partial.take(),
                is_only,
            });
        }
    }
}

/// The tiles of a piece with their states. Where the piece is a stretch, so are they.
fn tiles<'a>(
    isa: Isa,
    attention: &'a Attention<'_>,
    piece: &'a Tile,
    states: &'a mut [f32],
) -> impl Iterator<Item = (Tile, State<'a>)> {
    let (columns, kv) = (isa.columns(), attention.kv);
    let widest = widest(columns);
    let states = states.chunks_exact_mut(State::len(kv, widest));
    let firsts = (0..piece.queries).step_by(widest);
    firsts.zip(states).map(move |(first, state)| {
        let queries = widest.min(piece.queries - first);
        let tile = attention.tile(piece.row_index, piece.kv_head, piece.first + first, queries);
        let tile = Tile {
            start: tile.start.max(piece.start),
            end: tile.end.min(piece.end),
            ..tile
        };
        (tile, State::of(kv, width(columns, queries), state))
    })
}

/// All tiles of a piece over one of its stretches.
fn compute_stretch(
    isa: Isa,
    attention: &Attention<'_>,
    piece: &Tile,
    stretch: &Tile,
    scratch: &mut Scratch<'_>,
) {
    for (tile, mut state) in tiles(isa, attention, piece, scratch.states) {
        state.begin(attention, &tile, stretch.start);
    }
    let numbers = panels(attention, stretch);
    let each = attention.kv.v_stride() / LANES + PANELS;
    for first in numbers.clone().step_by(PANELS) {
        let block = Block::of(attention, stretch, first);
        unpack(isa, attention, stretch.kv_head, &block, scratch);
        let mut ahead = match first + PANELS < numbers.end {
            true => [
                keys_ahead(attention, stretch, first + PANELS),
                values_ahead(attention, stretch, first + PANELS),
            ],
            false => [Ahead::nothing(); 2],
        };
        let turns = each * piece.queries.div_ceil(widest(isa.columns()));
        let lines = ahead.map(|ahead| ahead.lines_each(turns));
        for (tile, state) in tiles(isa, attention, piece, scratch.states) {
            let Some(block) = block.seen_by(&tile.within(stretch)) else {
                continue;
            };
            let tile_block = TileBlock {
                attention,
                tile: &tile,
                panels: block.panels(),
                state,
                keys: scratch.keys,
                values: scratch.values,
                scores: scratch.scores,
                factors: scratch.factors,
                ahead: &mut ahead,
                lines,
            };
            arithmetic::run(isa, attention.kv.shape().element, tile_block);
        }
    }
    for (_, state) in tiles(isa, attention, piece, scratch.states) {
        isa.run(End(state, has_one_stretch(piece)));
    }
}

/// [`State::start`]
struct Start<'a>(State<'a>, &'a Attention<'a>, &'a Tile);

impl Work for Start<'_> {
    #[inline(always)]
    fn compute<A: Arithmetic>(mut self, a: A) {
        self.0.start(a, self.1, self.2);
    }
}

/// [`State::end`]
struct End<'a>(State<'a>, bool);

impl Kernel for End<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.0.end(s, self.1);
    }
}

/// [`State::finish`], made where nobody else has the outputs of these queries.
struct Finish<'a> {
    state: State<'a>,
    attention: &'a Attention<'a>,
    tile: &'a Tile,
    out: Parts<'a, f32>,
    partial: Option<&'a mut [f32]>,
    is_only: bool,
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Finish {
            mut state,
            attention,
            tile,
            out,
            partial,
            is_only,
        } = self;
        // SAFETY: `ManyQueries::compute` was promised the outputs of these queries.
        unsafe { state.finish(s, attention, tile, out, partial, is_only) };
    }
}

fn unpack(
    isa: Isa,
    attention: &Attention<'_>,
    kv_head: usize,
    block: &Block,
    scratch: &mut Scratch<'_>,
) {
    let unpack = Unpack {
        kv: attention.kv,
        kv_head,
        panels: block.panels(),
        keys: scratch.keys,
        values: scratch.values,
    };
    let element = attention.kv.shape().element;
    with_element!(element, E => {
        arithmetic::run(isa, element, UnpackTyped::<E>(unpack, PhantomData));
    });
}

/// Makes K and V of a block what is multiplied.
struct Unpack<'a> {
    kv: &'a Kv,
    kv_head: usize,
    panels: &'a [Panel],
    /// See [`Scratch`].
    keys: &'a mut [f32],
    /// See [`Scratch`].
    values: &'a mut [f32],
}

/// An [`Unpack`] whose element type is known.
struct UnpackTyped<'a, E>(Unpack<'a>, PhantomData<E>);

impl<E: Element> Work for UnpackTyped<'_, E> {
    const IS_SINGLE: bool = E::IS_SINGLE;

    #[inline(always)]
    fn compute<A: Arithmetic>(self, a: A) {
        let Unpack {
            kv,
            kv_head,
            panels,
            keys,
            values,
        } = self.0;
        let k_dim = kv.shape().k_dim;
        let (scores, outputs, depth) = (a.scores(), a.outputs(), A::Outputs::DEPTH);
        let len = k_dim.div_ceil(A::Scores::DEPTH) * LANES;
        let keys = keys.chunks_exact_mut(len + A::Scores::SCALE_LINES * LANES);
        for (place, (panel, keys)) in panels.iter().zip(keys).enumerate() {
            let from = kv.k_panel(panel.page, kv_head, panel.index).as_ptr();
            // SAFETY: a panel has `k_dim` vectors.
            let scale = unsafe { scores.scale::<E>(from, k_dim) };
            let (keys, scale_lines) = keys.split_at_mut(len);
            scores.write_scale(scale_lines, scale);
            for (step, to) in keys.chunks_exact_mut(LANES).enumerate() {
                // SAFETY: as above.
                scores.write(to, unsafe { scores.keys::<E>(from, k_dim, step, scale) });
            }
            let values = &mut values[place * LANES / depth * LANES..];
            if (panel.first, panel.end) != (0, LANES) {
                // A tile goes through lanes that hold nothing too, with weights of zero.
                for to in values.chunks_mut(VALUES) {
                    to[..LANES / depth * LANES].fill(0.0);
                }
            }
            for (word, rows) in value_rows(kv, kv_head, panel, depth) {
                for (vector, to) in values[word * LANES..].chunks_mut(VALUES).enumerate() {
                    // SAFETY: a row has `v_stride / 16` vectors, as many as there are of values.
                    let line = unsafe { outputs.values::<E>(rows, kv.v_stride(), vector) };
                    outputs.write(to, line);
                }
            }
        }
    }
}
