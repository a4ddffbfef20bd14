//! The pages of some layers' caches.
//!
//! Owns their layout; must not know attention. Layers that fill up together share an array,
//! `[pages][layers][kv_heads]`: a page of all of them is some MiB in one place, so a step that begins
//! one meets one or a few huge pages that the system has to clear, not one in each layer. What a head
//! has of a page follows, each part from a cache line on: K in panels of 16 tokens, so that a vector
//! holds the same element of 16 keys and scores need no sum across lanes, and V in rows.
//!
//! - K: `[panels][k_dim][16 tokens]`; a page's last panel may be partly used.
//! - V: `[page_size][v_dim up to a multiple of 16]`.
//!
//! What an element is, is an [`Element`].

mod element;

use std::marker::PhantomData;

use fornax_backend::{BackendError, Heads, KvShape};

use crate::{
    ahead::LINE,
    isa::Isa,
    memory::{SMALL, Shared},
    pool::Pool,
    simd::{Kernel, LANES, Simd},
};
use element::{BLOCK, bytes_of};
pub(crate) use element::{Bytes, Element, with_element};

/// One layer's cache.
#[derive(Debug)]
pub struct Kv {
    places: Places,
    /// Those of all layers that this one fills up with. Its places are this layer's alone.
    pages: Shared,
}

/// Where things lie.
#[derive(Clone, Copy, Debug)]
struct Places {
    shape: KvShape,
    /// Panels of a page and head.
    panels: usize,
    /// Elements from one V row to the next.
    v_stride: usize,
    /// Bytes of a panel of K.
    k_panel_bytes: usize,
    /// Bytes of a row of V.
    v_row_bytes: usize,
    /// Bytes from K of a head to its V.
    v_at: usize,
    /// Bytes from one head to the next.
    head_bytes: usize,
    /// Bytes from one page of this layer to the next.
    page_bytes: usize,
    /// First byte of its first page.
    first: usize,
}

/// Bytes that a thread commits at a time: some huge pages.
const COMMITTED: usize = 16 << 20;

impl Places {
    /// Of the first of some layers; `None` where no address reaches them.
    fn new(shape: &KvShape, layers: usize) -> Option<Self> {
        let panels = shape.page_size.div_ceil(LANES);
        let v_stride = shape.v_dim.checked_next_multiple_of(LANES)?;
        let k_panel_bytes = bytes_of(shape.element, shape.k_dim)?.checked_mul(LANES)?;
        let v_row_bytes = bytes_of(shape.element, v_stride)?;
        let lines = |count: usize, bytes: usize| {
            let bytes = count.checked_mul(bytes)?;
            bytes.checked_next_multiple_of(LINE)
        };
        let v_at = lines(panels, k_panel_bytes)?;
        let head_bytes = v_at.checked_add(lines(shape.page_size, v_row_bytes)?)?;
        let layer_bytes = shape.kv_heads.checked_mul(head_bytes)?;
        Some(Self {
            shape: *shape,
            panels,
            v_stride,
            k_panel_bytes,
            v_row_bytes,
            v_at,
            head_bytes,
            page_bytes: layer_bytes.checked_mul(layers)?,
            first: 0,
        })
    }

    /// Those of the layer behind this one.
    fn next_layer(self) -> Self {
        Self {
            first: self.first + self.shape.kv_heads * self.head_bytes,
            ..self
        }
    }

    /// First byte of what a head has of a page.
    #[inline(always)]
    fn head(&self, page: usize, head: usize) -> usize {
        assert!(page < self.shape.pages && head < self.shape.kv_heads);
        self.first + page * self.page_bytes + head * self.head_bytes
    }

    /// First byte of `count` panels of K.
    #[inline(always)]
    fn k_panels(&self, page: usize, head: usize, panel: usize, count: usize) -> usize {
        assert!(panel <= self.panels && count <= self.panels - panel);
        self.head(page, head) + panel * self.k_panel_bytes
    }

    /// First byte of `count` rows of V.
    #[inline(always)]
    fn v_rows(&self, page: usize, head: usize, token: usize, count: usize) -> usize {
        let tokens = self.shape.page_size;
        assert!(token <= tokens && count <= tokens - token);
        self.head(page, head) + self.v_at + token * self.v_row_bytes
    }
}

impl Kv {
    /// The caches of some layers that fill up together. With a pool, whose threads then take their
    /// memory from the system, none is taken later.
    pub(crate) fn of_layers(
        shape: &KvShape,
        layers: usize,
        committed_by: Option<&mut Pool>,
    ) -> Result<Vec<Self>, BackendError> {
        shape.check()?;
        let places = Places::new(shape, layers);
        let bytes = places.and_then(|places| places.page_bytes.checked_mul(shape.pages));
        // More than any memory has, which is refused there.
        let pages = Shared::zeroed(bytes.unwrap_or(usize::MAX))?;
        if let Some(pool) = committed_by {
            commit(&pages, pool);
        }
        let places = std::iter::successors(places, |places| Some(places.next_layer()));
        let kv = |places| Self {
            places,
            pages: pages.clone(),
        };
        Ok(places.take(layers).map(kv).collect())
    }

    pub(crate) fn shape(&self) -> &KvShape {
        &self.places.shape
    }

    /// Panels of a page.
    pub(crate) fn panels(&self) -> usize {
        self.places.panels
    }

    /// Elements from one V row to the next.
    pub(crate) fn v_stride(&self) -> usize {
        self.places.v_stride
    }

    /// Bytes from one V row to the next.
    pub(crate) fn v_row_bytes(&self) -> usize {
        self.places.v_row_bytes
    }

    /// A panel of K: `[k_dim][16 tokens]`.
    #[inline(always)]
    pub(crate) fn k_panel(&self, page: usize, head: usize, panel: usize) -> &[u8] {
        self.k_panels(page, head, panel, 1)
    }

    /// `count` panels of K that follow each other in a page.
    #[inline(always)]
    pub(crate) fn k_panels(&self, page: usize, head: usize, first: usize, count: usize) -> &[u8] {
        let start = self.places.k_panels(page, head, first, count);
        // SAFETY: places of this layer, which nobody writes to while it is borrowed.
        unsafe { self.pages.part(start, count * self.places.k_panel_bytes) }
    }

    /// Rows of V of the `count` tokens from `token` of a page.
    #[inline(always)]
    pub(crate) fn v_rows(&self, page: usize, head: usize, token: usize, count: usize) -> &[u8] {
        let start = self.places.v_rows(page, head, token, count);
        // SAFETY: as above.
        unsafe { self.pages.part(start, count * self.places.v_row_bytes) }
    }

    /// Copies the first `tokens` tokens of a page to another.
    pub(crate) fn copy(&mut self, source: usize, destination: usize, tokens: usize) {
        let Places {
            shape, v_row_bytes, ..
        } = self.places;
        let (size, scale) = with_element!(shape.element, E => <E as Element>::BYTES);
        // Where rows of 16 lanes begin, how many there are, and bytes of a lane.
        let elements = (0, shape.k_dim, size);
        let scales = scale.map(|scale| (shape.k_dim * LANES * size, shape.k_dim / BLOCK, scale));
        let copy = |from, to, bytes| {
            // SAFETY: both are places of this layer, which is borrowed mutably.
            unsafe { self.pages.at(to).copy_from(self.pages.at(from), bytes) };
        };
        for head in 0..shape.kv_heads {
            for panel in 0..tokens.div_ceil(LANES) {
                let from = self.places.k_panels(source, head, panel, 1);
                let to = self.places.k_panels(destination, head, panel, 1);
                for (first, count, size) in [elements].into_iter().chain(scales) {
                    let lanes = LANES.min(tokens - panel * LANES) * size;
                    for row in (0..count).map(|row| first + row * LANES * size) {
                        copy(from + row, to + row, lanes);
                    }
                }
            }
            let from = self.places.v_rows(source, head, 0, tokens);
            let to = self.places.v_rows(destination, head, 0, tokens);
            copy(from, to, tokens * v_row_bytes);
        }
    }

    /// For threads that store different tokens.
    pub(crate) fn writer(&mut self) -> KvWriter<'_> {
        KvWriter { kv: self }
    }
}

/// Has the system give the memory of caches. The first step on a page would do it otherwise, and take
/// far longer than others where the system in turn has to ask its host.
fn commit(pages: &Shared, pool: &mut Pool) {
    pool.run(pages.len().div_ceil(COMMITTED), |piece, _| {
        let bytes = piece * COMMITTED..pages.len().min((piece + 1) * COMMITTED);
        for first in bytes.step_by(SMALL) {
            // SAFETY: nobody else knows of it yet, and no two threads have a page.
            unsafe { pages.at(first).write_volatile(0) };
        }
    });
}

/// Writes tokens to their places. Made of a cache that is borrowed mutably, which nobody else reads
/// then.
#[derive(Clone, Copy)]
pub(crate) struct KvWriter<'a> {
    kv: &'a Kv,
}

impl KvWriter<'_> {
    /// Where a panel of K is written.
    #[inline(always)]
    fn k_panel(self, page: usize, head: usize, panel: usize) -> *mut u8 {
        self.kv
            .pages
            .at(self.kv.places.k_panels(page, head, panel, 1))
    }

    /// Where a row of V is written.
    #[inline(always)]
    fn v_row(self, page: usize, head: usize, token: usize) -> *mut u8 {
        self.kv
            .pages
            .at(self.kv.places.v_rows(page, head, token, 1))
    }
}

/// Stores tokens that follow each other and whose keys share a panel.
pub(crate) struct StoreTokens<'a> {
    pub kv: KvWriter<'a>,
    /// K and V heads of the tokens. `[tokens, k.stride]`
    pub rows: &'a [f32],
    pub k: Heads,
    pub v: Heads,
    pub page: usize,
    /// Place of the first one in the page.
    pub token: usize,
}

impl StoreTokens<'_> {
    /// # Safety
    /// Nobody else writes these tokens or reads their page.
    pub unsafe fn store(self, isa: Isa) {
        let shape = self.kv.kv.places.shape;
        let heads = (self.k.count, self.k.dim, self.v.count, self.v.dim);
        let expected = (shape.kv_heads, shape.k_dim, shape.kv_heads, shape.v_dim);
        assert_eq!(heads, expected, "store_kv: heads");
        let end = self.token + self.rows.len() / self.k.stride;
        assert!(
            self.page < shape.pages && end <= shape.page_size,
            "store_kv: place"
        );
        assert!(
            end <= self.token / LANES * LANES + LANES,
            "store_kv: one panel"
        );
        with_element!(shape.element, E => isa.run(TypedStore::<E>(self, PhantomData)));
    }
}

/// [`StoreTokens`] whose element type is known.
struct TypedStore<'a, E>(StoreTokens<'a>, PhantomData<E>);

impl<E: Element> Kernel for TypedStore<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let StoreTokens {
            kv,
            rows,
            k,
            v,
            page,
            token: first,
        } = self.0;
        let tokens = rows.len() / k.stride;
        for head in 0..k.count {
            let panel = kv.k_panel(page, head, first / LANES);
            let keys = &rows[k.offset + head * k.dim..];
            if tokens == LANES {
                // SAFETY: `store` was promised the lanes of these tokens, which are all.
                unsafe { E::store_keys(s, panel, k.dim, keys, k.stride) };
            } else {
                for token in 0..tokens {
                    let values = &keys[token * k.stride..][..k.dim];
                    // SAFETY: `store` was promised the lane of this token.
                    unsafe { E::store_key(s, panel, (first + token) % LANES, values) };
                }
            }
            let values = rows[v.offset + head * v.dim..].chunks(v.stride);
            for (token, values) in values.enumerate().take(tokens) {
                let to = kv.v_row(page, head, first + token);
                // SAFETY: `store` was promised the row of this token.
                unsafe { E::store_value(s, to, &values[..v.dim]) };
            }
        }
    }
}
