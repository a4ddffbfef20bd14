//! Strips: bits of panels spread to bytes, and tiles of columns that meet them in vectors.
//!
//! Owns how two panels and the tiles of a turn take turns; the arithmetic is in
//! [`panel::strip`](crate::panel::strip). Must not know other routes.

use std::{marker::PhantomData, ops::Range};

use super::TileWork;
use crate::{
    ahead::Ahead,
    columns::{COARSE_TILE, Tile},
    isa::Isa,
    panel::{
        BLOCK,
        blocks::{Blocks, Quantised},
        strip,
        strip::{StripShape, StripSource},
        strip_shape, with_blocks,
    },
    simd::{Kernel, Simd},
    weight::Part,
};

/// Columns of a tile that so many panels meet at a time, which registers have room for.
const fn at_once(panels: usize, width: usize) -> usize {
    match (panels, width) {
        (2, COARSE_TILE) => 6,
        (_, COARSE_TILE) => 8,
        (2, _) => 4,
        (_, width) => width,
    }
}

/// # Safety
/// `panel` points to a panel of the part, `strip` to room for one of its strips. Asks for `ahead` on
/// the way.
pub(super) unsafe fn spread(
    isa: Isa,
    part: &Part,
    panel: *const u8,
    ahead: Ahead,
    strip: strip::StripParts,
) {
    struct Spread<B>(*const u8, usize, Ahead, strip::StripParts, PhantomData<B>);
    impl<B: Blocks> Kernel for Spread<Quantised<B>> {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            // SAFETY: what the function around it was promised.
            unsafe { Quantised::<B>::spread::<S>(s, self.0, self.1, self.2, self.3) };
        }
    }
    let cols = part.cols;
    with_blocks!(part.dtype, B => isa.run_with_dots(Spread::<B>(panel, cols, ahead, strip, PhantomData)));
}

/// Multiplies strips of some shape with the tiles of a turn.
pub(super) fn multiply(isa: Isa, work: &TileWork<'_>, shape: StripShape) {
    match (shape.shares, shape.has_min) {
        (1, false) => multiply_all::<1, false>(isa, work, shape),
        (1, true) => multiply_all::<1, true>(isa, work, shape),
        (_, false) => multiply_all::<2, false>(isa, work, shape),
        (_, true) => multiply_all::<2, true>(isa, work, shape),
    }
}

/// So many panels, the first of which has an index in the run, times all tiles: they stay in the nearest
/// cache, while activations go by. A macro, for how many columns they meet at once is a constant of both.
macro_rules! multiply_panels {
    ($panels:literal, $coarse:literal, $isa:ident, $work:ident, $shape:ident, $index:ident) => {{
        let sources = &mut $work.sources::<SHARES, MIN, $panels>($shape, $index);
        let panel = $work.run.panels.start + $index;
        for tiles in $work.columns.by_width($work.tiles.clone()) {
            let Some(first) = tiles.clone().next() else {
                continue;
            };
            macro_rules! run {
                ($width:expr, $is_coarse:literal) => {
                    $isa.run_with_dots(Strips::<
                        SHARES,
                        MIN,
                        $panels,
                        { $width },
                        { at_once($panels, $width) },
                        $is_coarse,
                    > {
                        work: $work,
                        sources,
                        panel,
                        tiles,
                    })
                };
            }
            match $work.columns.tile(first).width {
                4 => run!(4, false),
                8 => run!(8, false),
                16 => run!(16, false),
                COARSE_TILE if const { SHARES == 1 && !MIN } => run!(COARSE_TILE, $coarse),
                width => unreachable!("invariant: no tile has {width} columns"),
            }
        }
    }};
}

fn multiply_all<const SHARES: usize, const MIN: bool>(
    isa: Isa,
    work: &TileWork<'_>,
    shape: StripShape,
) {
    let panels = work.run.panels.len();
    let mut index = 0;
    while index < panels {
        if isa.panels() == 2 && index + 2 <= panels {
            multiply_panels!(2, true, isa, work, shape, index);
            index += 2;
        } else {
            multiply_panels!(1, false, isa, work, shape, index);
            index += 1;
        }
    }
}

impl TileWork<'_> {
    /// Strips from one on, for all tiles.
    fn sources<const SHARES: usize, const MIN: bool, const P: usize>(
        &self,
        shape: StripShape,
        index: usize,
    ) -> [StripSource<SHARES, MIN>; P] {
        let (run, part) = (self.run, self.run.part);
        let (blocks, each) = (part.cols / BLOCK, shape.bytes(part.cols));
        let times = |tile| {
            let Tile { used, width, .. } = self.columns.tile(tile);
            used.div_ceil(at_once(P, width))
        };
        let times: usize = self.tiles.clone().map(times).sum();
        // Only read: the source of a strip that is being made needs a pointer to change it.
        let scratch = self.scratch.as_ptr().cast::<u8>().cast_mut();
        std::array::from_fn(|p| {
            let index = index + p;
            let strip = shape.parts(scratch.wrapping_add(index * each), part.cols);
            let weights = part.panel(run.expert, run.panels.start + index).as_ptr();
            let ahead = self.ahead(index..index + 1);
            let parts = with_quants(part, weights, strip);
            StripSource::new(parts, shape.bits, times * blocks, ahead)
        })
    }
}

/// Strips, of which the first belongs to `panel`, times tiles of `WIDTH` columns, `N` at a time: a kernel
/// for each, because registers are dealt out for one loop at a time then, and all sums stay in some.
struct Strips<
    'a,
    const SHARES: usize,
    const MIN: bool,
    const P: usize,
    const WIDTH: usize,
    const N: usize,
    const COARSE: bool,
> {
    work: &'a TileWork<'a>,
    sources: &'a mut [StripSource<SHARES, MIN>; P],
    panel: usize,
    tiles: Range<usize>,
}

impl<
    const SHARES: usize,
    const MIN: bool,
    const P: usize,
    const WIDTH: usize,
    const N: usize,
    const COARSE: bool,
> Kernel for Strips<'_, SHARES, MIN, P, WIDTH, N, COARSE>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        const { assert!(WIDTH.is_multiple_of(N), "all stay inside of the tile") };
        if const { P > S::PANELS || P == 1 && N > S::COLUMNS } {
            unreachable!("invariant: no instruction set has other tiles than its own")
        }
        let Self {
            work,
            sources,
            panel,
            tiles,
        } = self;
        let blocks = work.columns.cols / BLOCK;
        // Of its own, whose pointers stay in registers where memory may have changed.
        let mut own = *sources;
        for tile in tiles {
            let tile = work.columns.tile(tile);
            let columns = work.columns.of_tile(tile);
            for first in (0..tile.used).step_by(N) {
                // SAFETY: strips that `prepare` made, and a tile that `multiply` found filled.
                let sums = unsafe {
                    strip::multiply::<S, _, P, WIDTH, N, COARSE>(
                        s, &mut own, blocks, columns, first,
                    )
                };
                work.write_all(s, panel, tile, first, sums);
            }
        }
        *sources = own;
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
