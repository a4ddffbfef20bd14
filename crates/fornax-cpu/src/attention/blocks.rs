//! Where the keys of a tile lie: stretches of positions, blocks of panels.
//!
//! Must not know arithmetic. Blocks of keys begin at multiples of 64 positions, wherever a tile does:
//! what is out of sight weighs nothing. So a query meets the same blocks in every tile.

use std::ops::Range;

use super::{Attention, STRETCH, Tile};
use crate::{ahead::Ahead, kv::Kv, simd::LANES};

/// Panels of keys between two updates of the running softmax.
pub(super) const PANELS: usize = 4;
/// Keys of those panels.
pub(super) const KEYS: usize = PANELS * LANES;

/// Up to 16 keys that lie side by side.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    pub page: usize,
    /// Panel of the page.
    pub index: usize,
    /// Position of lane 0.
    pub base: usize,
    /// First lane inside of the positions of a stretch.
    pub first: usize,
    /// Behind the last one.
    pub end: usize,
}

/// Up to four panels.
#[derive(Clone, Copy)]
pub(super) struct Block {
    /// Behind the last one the first again.
    panels: [Panel; PANELS],
    count: usize,
}

impl Block {
    /// Up to four panels of a stretch from a number on.
    #[inline(always)]
    pub fn of(attention: &Attention<'_>, stretch: &Tile, first: usize) -> Self {
        let count = PANELS.min(panels(attention, stretch).end - first);
        let mut panels = [panel_of(attention, stretch, first); PANELS];
        for (index, panel) in panels.iter_mut().enumerate().take(count).skip(1) {
            *panel = panel_of(attention, stretch, first + index);
        }
        Self { panels, count }
    }

    #[inline(always)]
    pub fn panels(&self) -> &[Panel] {
        &self.panels[..self.count]
    }

    /// What a tile sees of it, where it sees anything.
    pub fn seen_by(mut self, tile: &Tile) -> Option<Self> {
        for panel in &mut self.panels {
            panel.end = panel.end.min(tile.end.saturating_sub(panel.base));
            let first = panel.first.max(tile.start.saturating_sub(panel.base));
            panel.first = first.min(panel.end);
        }
        let seen = |panel: &Panel| panel.first < panel.end;
        self.count = self.panels().iter().rposition(seen)? + 1;
        Some(self)
    }
}

/// The stretches of a tile, as tiles.
pub(super) fn stretches(tile: &Tile) -> impl Iterator<Item = Tile> {
    let tile = *tile;
    (tile.start / STRETCH..tile.end.div_ceil(STRETCH)).map(move |stretch| Tile {
        start: tile.start.max(stretch * STRETCH),
        end: tile.end.min((stretch + 1) * STRETCH),
        ..tile
    })
}

/// Whether the positions of a tile are all of one stretch.
pub(super) fn has_one_stretch(tile: &Tile) -> bool {
    tile.end.div_ceil(STRETCH) - tile.start / STRETCH == 1
}

/// Numbers of the panels that hold the positions of a stretch, from a multiple of [`PANELS`] on.
pub(super) fn panels(attention: &Attention<'_>, stretch: &Tile) -> Range<usize> {
    let first = number(attention.kv, stretch.start);
    first / PANELS * PANELS..number(attention.kv, stretch.end - 1) + 1
}

/// Number of the panel that holds a position: `page entry * panels of a page + panel`.
fn number(kv: &Kv, position: usize) -> usize {
    let page_size = kv.shape().page_size;
    position / page_size * kv.panels() + position % page_size / LANES
}

/// A panel of a stretch by its number. One before the stretch has no keys, and a place that has: a
/// page that nobody sees may be anywhere.
#[inline(always)]
fn panel_of(attention: &Attention<'_>, stretch: &Tile, wanted: usize) -> Panel {
    let kv = attention.kv;
    let number = wanted.max(number(kv, stretch.start));
    let (entry, index) = (number / kv.panels(), number % kv.panels());
    let page_size = kv.shape().page_size;
    let base = entry * page_size + index * LANES;
    let lanes = LANES.min(page_size - index * LANES);
    let end = match wanted < number {
        true => 0,
        false => lanes.min(stretch.end - base),
    };
    Panel {
        page: attention.tables[stretch.row_index][entry] as usize,
        index,
        base,
        first: stretch.start.saturating_sub(base).min(end),
        end,
    }
}

/// K of the block that begins with a panel, as far as its page goes.
#[inline(always)]
pub(super) fn keys_ahead(attention: &Attention<'_>, stretch: &Tile, panel: usize) -> Ahead {
    let kv = attention.kv;
    let Panel { page, index, .. } = panel_of(attention, stretch, panel);
    let count = PANELS.min(panels(attention, stretch).end - panel);
    let count = count.min(kv.panels() - index);
    Ahead::of(kv.k_panels(page, stretch.kv_head, index, count))
}

/// V of the block that begins with a panel, as far as its page goes.
#[inline(always)]
pub(super) fn values_ahead(attention: &Attention<'_>, stretch: &Tile, panel: usize) -> Ahead {
    let kv = attention.kv;
    let Panel {
        page, index, base, ..
    } = panel_of(attention, stretch, panel);
    let tokens = KEYS.min(kv.shape().page_size - index * LANES);
    let tokens = tokens.min(stretch.end - base);
    Ahead::of(kv.v_rows(page, stretch.kv_head, index * LANES, tokens))
}

/// Rows of V of the positions of a panel, `depth` at a time, of which up to two come: a word of the
/// panel and the first and the last row in it. The place of a position out of sight, which weighs
/// nothing and may never have been written, takes the row beside it.
#[inline(always)]
pub(super) fn value_rows(
    kv: &Kv,
    kv_head: usize,
    panel: &Panel,
    depth: usize,
) -> impl Iterator<Item = (usize, [*const u8; 2])> {
    let Panel { first, end, .. } = *panel;
    let token = panel.index * LANES + first;
    let (rows, bytes) = (
        kv.v_rows(panel.page, kv_head, token, end - first).as_ptr(),
        kv.v_row_bytes(),
    );
    let words = match first < end {
        true => first / depth..end.div_ceil(depth),
        false => 0..0,
    };
    words.map(move |word| {
        let (low, high) = (word * depth, word * depth + depth - 1);
        let places = [low.max(first), high.min(end - 1)];
        (
            word,
            places.map(|lane| rows.wrapping_add((lane - first) * bytes)),
        )
    })
}
