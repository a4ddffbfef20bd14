//! Strips: bits of panels spread to bytes, and tiles of columns that meet them in vectors.
//!
//! Owns how two panels and the tiles of a turn take turns; the arithmetic is in
//! [`panel::strip`](crate::panel::strip). Must not know other routes.

use std::marker::PhantomData;

use super::TileWork;
use crate::{
    ahead::Ahead,
    columns::Tile,
    isa::Isa,
    panel::{
        BLOCK,
        blocks::{Blocks, Quantised},
        strip,
        strip::{Source, StripShape, StripSource},
        strip_shape, with_blocks,
    },
    simd::{Kernel, Simd},
    weight::Part,
};

/// Columns that two panels at a time meet.
const PAIR_COLUMNS: usize = 4;

/// # Safety
/// `panel` points to a panel of the part, `strip` to room for one of its strips. Asks for `ahead` on
/// the way.
pub(super) unsafe fn spread<const SIGNED: bool>(
    isa: Isa,
    part: &Part,
    panel: *const u8,
    ahead: Ahead,
    strip: strip::StripParts,
) {
    struct Spread<B, const SIGNED: bool>(
        *const u8,
        usize,
        Ahead,
        strip::StripParts,
        PhantomData<B>,
    );
    impl<B: Blocks, const SIGNED: bool> Kernel for Spread<Quantised<B>, SIGNED> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            // SAFETY: what the function around it was promised.
            unsafe { Quantised::<B>::spread::<S, SIGNED>(s, self.0, self.1, self.2, self.3) };
        }
    }
    let cols = part.cols;
    with_blocks!(part.dtype, B => isa.run(Spread::<B, SIGNED>(panel, cols, ahead, strip, PhantomData)));
}

/// Strips times the tiles of a turn.
pub(super) struct StripTiles<'a>(pub TileWork<'a>, pub StripShape);

impl Kernel for StripTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match (self.1.shares, self.1.has_min) {
            (1, false) => self.multiply::<S, 1, false>(s),
            (1, true) => self.multiply::<S, 1, true>(s),
            (_, false) => self.multiply::<S, 2, false>(s),
            (_, true) => self.multiply::<S, 2, true>(s),
        }
    }
}

impl StripTiles<'_> {
    #[inline(always)]
    fn multiply<S: Simd, const SHARES: usize, const MIN: bool>(&self, s: S) {
        let panels = self.0.run.panels.len();
        let mut index = 0;
        while index < panels {
            if S::PANELS == 2 && index + 2 <= panels {
                self.panels::<S, SHARES, MIN, 2>(s, index);
                index += 2;
            } else {
                self.panels::<S, SHARES, MIN, 1>(s, index);
                index += 1;
            }
        }
    }

    /// `P` panels, of which this is the first, times all tiles: they stay in the nearest cache, while
    /// activations go by.
    #[inline(always)]
    fn panels<S: Simd, const SHARES: usize, const MIN: bool, const P: usize>(
        &self,
        s: S,
        index: usize,
    ) {
        let Self(work, shape) = self;
        let (run, part) = (work.run, work.run.part);
        let (blocks, each) = (part.cols / BLOCK, shape.bytes(part.cols));
        // All tiles but the last are full, and a full one is a number of whole pairs' columns.
        let times = match P {
            2 => work.tile.used.div_ceil(PAIR_COLUMNS),
            _ => work.tiles.len(),
        };
        // Only read: `multiply` takes a pointer for both.
        let scratch = work.scratch.as_ptr().cast::<u8>().cast_mut();
        let mut sources: [_; P] = std::array::from_fn(|p| {
            let index = index + p;
            let strip = shape.parts(scratch.wrapping_add(index * each), part.cols);
            let weights = part.panel(run.expert, run.panels.start + index).as_ptr();
            let ahead = work.ahead(index..index + 1);
            StripSource::<SHARES, MIN>::new(
                with_quants(part, weights, strip),
                times * blocks,
                ahead,
            )
        });
        for tile in work.tiles.clone() {
            let tile = work.columns.tile(tile);
            let panel = run.panels.start + index;
            match tile.width {
                4 => work.strips::<S, _, P, 4>(s, &mut sources, panel, tile),
                8 if const { S::COLUMNS >= 8 } => {
                    work.strips::<S, _, P, 8>(s, &mut sources, panel, tile);
                }
                16 if const { S::COLUMNS >= 16 } => {
                    work.strips::<S, _, P, 16>(s, &mut sources, panel, tile);
                }
                width => unreachable!("a tile of {width} columns"),
            }
        }
    }
}

impl TileWork<'_> {
    /// Strips, of which the first belongs to `panel`, times a tile of `N` columns.
    #[inline(always)]
    fn strips<S: Simd, B: Source<S>, const P: usize, const N: usize>(
        &self,
        s: S,
        sources: &mut [B; P],
        panel: usize,
        tile: Tile,
    ) {
        let blocks = self.columns.cols / BLOCK;
        let columns = self.columns.of_tile(tile);
        if P == 1 {
            // SAFETY: strips that `prepare` made, and a tile that `multiply` found filled.
            let sums = unsafe { strip::multiply::<S, B, P, N, N>(s, sources, blocks, columns, 0) };
            self.write_all(s, panel, tile, 0, sums);
            return;
        }
        for first in (0..tile.used).step_by(PAIR_COLUMNS) {
            // SAFETY: as above.
            let sums = unsafe {
                strip::multiply::<S, B, P, N, PAIR_COLUMNS>(s, sources, blocks, columns, first)
            };
            self.write_all(s, panel, tile, first, sums);
        }
    }
}

/// A strip whose quants are where [`spread`] left them: in it, or still in the panel.
fn with_quants(part: &Part, panel: *const u8, strip: strip::StripParts) -> strip::StripParts {
    match strip_shape(part.dtype).spreads {
        true => strip,
        false => strip::StripParts {
            quants: with_blocks!(part.dtype, B => B::quants(panel, part.cols)).cast_mut(),
            ..strip
        },
    }
}
