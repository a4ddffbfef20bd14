//! The pages of a layer's cache.
//!
//! Owns their layout; must not know attention. K lies in panels of 16 tokens, so that a vector
//! holds the same element of 16 keys and scores need no sum across lanes; V in rows.
//!
//! - K: `[pages][kv_heads][panels][k_dim][16 tokens]`; a page's last panel may be partly used.
//! - V: `[pages][kv_heads][page_size][v_dim up to a multiple of 16]`.

use std::marker::PhantomData;

use fornax_backend::{BackendError, Heads, KvShape};

use crate::{
    isa::Isa,
    memory::{Memory, Parts},
    panel::float::Float,
    simd::{Kernel, LANES, Simd},
};

/// One layer's cache.
#[derive(Debug)]
pub struct Kv {
    places: Places,
    k: Memory<u8>,
    v: Memory<u8>,
}

/// Calls generic code with the element type of a cache.
macro_rules! with_element {
    ($element:expr, $float:ident => $body:expr) => {
        match $element {
            fornax_backend::KvType::F32 => {
                type $float = crate::panel::float::F32;
                $body
            }
            fornax_backend::KvType::F16 => {
                type $float = crate::panel::float::F16;
                $body
            }
            fornax_backend::KvType::Bf16 => {
                type $float = crate::panel::float::Bf16;
                $body
            }
        }
    };
}
pub(crate) use with_element;

/// Where things lie.
#[derive(Clone, Copy, Debug)]
struct Places {
    shape: KvShape,
    /// Panels of a page and head.
    panels: usize,
    /// Elements from one V row to the next.
    v_stride: usize,
    /// Bytes of an element.
    size: usize,
}

impl Places {
    /// First byte of a panel of K.
    #[inline(always)]
    fn k_panel(&self, page: usize, head: usize, panel: usize) -> usize {
        let index = (page * self.shape.kv_heads + head) * self.panels + panel;
        index * self.k_panel_bytes()
    }

    #[inline(always)]
    fn k_panel_bytes(&self) -> usize {
        self.shape.k_dim * LANES * self.size
    }

    /// First byte of a row of V.
    #[inline(always)]
    fn v_row(&self, page: usize, head: usize, token: usize) -> usize {
        let index = (page * self.shape.kv_heads + head) * self.shape.page_size + token;
        index * self.v_stride * self.size
    }
}

impl Kv {
    pub(crate) fn new(shape: &KvShape) -> Result<Self, BackendError> {
        let places = Places {
            shape: *shape,
            panels: shape.page_size.div_ceil(LANES),
            v_stride: shape.v_dim.next_multiple_of(LANES),
            size: shape.element.bytes(1),
        };
        let k = Memory::zeroed(places.k_panel(shape.pages, 0, 0))?;
        let v = Memory::zeroed(places.v_row(shape.pages, 0, 0))?;
        Ok(Self { places, k, v })
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

    /// A panel of K: `[k_dim][16 tokens]`.
    #[inline(always)]
    pub(crate) fn k_panel(&self, page: usize, head: usize, panel: usize) -> &[u8] {
        let start = self.places.k_panel(page, head, panel);
        &self.k[start..start + self.places.k_panel_bytes()]
    }

    /// Rows of V of the `count` tokens from `token` of a page.
    #[inline(always)]
    pub(crate) fn v_rows(&self, page: usize, head: usize, token: usize, count: usize) -> &[u8] {
        let start = self.places.v_row(page, head, token);
        &self.v[start..start + count * self.places.v_stride * self.places.size]
    }

    /// Copies the first `tokens` tokens of a page to another.
    pub(crate) fn copy(&mut self, source: usize, destination: usize, tokens: usize) {
        let Places {
            shape,
            size,
            v_stride,
            ..
        } = self.places;
        for head in 0..shape.kv_heads {
            for panel in 0..tokens.div_ceil(LANES) {
                let from = self.places.k_panel(source, head, panel);
                let to = self.places.k_panel(destination, head, panel);
                let lanes = LANES.min(tokens - panel * LANES) * size;
                for step in (0..self.places.k_panel_bytes()).step_by(LANES * size) {
                    self.k
                        .copy_within(from + step..from + step + lanes, to + step);
                }
            }
            let from = self.places.v_row(source, head, 0);
            let to = self.places.v_row(destination, head, 0);
            self.v
                .copy_within(from..from + tokens * v_stride * size, to);
        }
    }

    /// For threads that store different tokens.
    pub(crate) fn writer(&mut self) -> KvWriter<'_> {
        KvWriter {
            places: self.places,
            k: Parts::new(&mut self.k),
            v: Parts::new(&mut self.v),
        }
    }
}

/// Writes tokens to their places.
#[derive(Clone, Copy)]
pub(crate) struct KvWriter<'a> {
    places: Places,
    k: Parts<'a, u8>,
    v: Parts<'a, u8>,
}

/// Stores one token.
pub(crate) struct StoreToken<'a> {
    pub kv: KvWriter<'a>,
    /// K and V heads of the token. `[k.stride]`
    pub row: &'a [f32],
    pub k: Heads,
    pub v: Heads,
    pub page: usize,
    /// Place in the page.
    pub token: usize,
}

impl StoreToken<'_> {
    /// # Safety
    /// Nobody else writes this token or reads its page.
    pub unsafe fn store(self, isa: Isa) {
        let shape = self.kv.places.shape;
        let heads = (self.k.count, self.k.dim, self.v.count, self.v.dim);
        let expected = (shape.kv_heads, shape.k_dim, shape.kv_heads, shape.v_dim);
        assert_eq!(heads, expected, "store_kv: heads");
        assert!(
            self.page < shape.pages && self.token < shape.page_size,
            "store_kv: place"
        );
        with_element!(shape.element, E => isa.run(TypedStore::<E>(self, PhantomData)));
    }
}

/// A [`StoreToken`] whose element type is known.
struct TypedStore<'a, E>(StoreToken<'a>, PhantomData<E>);

impl<E: Float> Kernel for TypedStore<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let StoreToken {
            kv,
            row,
            k,
            v,
            page,
            token,
        } = self.0;
        for head in 0..k.count {
            let start = kv.places.k_panel(page, head, token / LANES) + token % LANES * E::BYTES;
            let values = &row[k.offset + head * k.dim..k.offset + (head + 1) * k.dim];
            // SAFETY: `store` was promised the lane of this token.
            unsafe { scatter::<S, E>(s, kv.k.at(start), values) };
            let start = kv.places.v_row(page, head, token);
            let values = &row[v.offset + head * v.dim..v.offset + (head + 1) * v.dim];
            // SAFETY: `store` was promised the row of this token.
            let to = unsafe { kv.v.part(start, kv.places.v_stride * E::BYTES) };
            for (to, from) in to
                .chunks_exact_mut(LANES * E::BYTES)
                .zip(values.chunks(LANES))
            {
                // SAFETY: room for 16 elements; a row is whole vectors long.
                unsafe { E::store(s, to.as_mut_ptr(), s.read_up_to(from, 0.0)) };
            }
        }
    }
}

/// Writes values 16 elements apart.
///
/// # Safety
/// `lane` is a lane of a panel with as many vectors as there are values, and nobody else's.
#[inline(always)]
unsafe fn scatter<S: Simd, E: Float>(s: S, lane: *mut u8, values: &[f32]) {
    for (index, from) in values.chunks(LANES).enumerate() {
        // Room for 16 of the widest elements.
        let mut packed = [0_u32; LANES];
        let packed = packed.as_mut_ptr().cast::<u8>();
        // SAFETY: the lane goes on for all values.
        unsafe {
            E::store(s, packed, s.read_up_to(from, 0.0));
            for place in 0..from.len() {
                let to = lane.add((index * LANES + place) * LANES * E::BYTES);
                to.copy_from_nonoverlapping(packed.add(place * E::BYTES), E::BYTES);
            }
        }
    }
}
