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
//! What an element is, is an [`Element`]: where 32 of them share a scale, the scales lie behind the
//! elements of a panel, `[k_dim / 32][16 tokens]`, and of a row, `[v_dim / 32]`.

use std::marker::PhantomData;

use fornax_backend::{BackendError, Heads, KvShape, KvType};
use fornax_gguf::{BlockFormat, quant};

use crate::{
    ahead::LINE,
    isa::Isa,
    memory::{SMALL, Shared},
    panel::float::Float,
    pool::Pool,
    simd::{Kernel, LANES, Simd, each},
};

/// One layer's cache.
#[derive(Debug)]
pub struct Kv {
    places: Places,
    /// Those of all layers that this one fills up with. Its places are this layer's alone.
    pages: Shared,
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
            fornax_backend::KvType::Q8_0 => {
                type $float = crate::kv::Bytes;
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

/// How elements of a cache lie and are read.
pub(crate) trait Element {
    /// Bytes of an element and, where there are any, of a scale.
    const BYTES: (usize, Option<usize>);

    /// Element `step` of the 16 keys of a panel.
    ///
    /// # Safety
    /// `panel` points to a panel of `k_dim` vectors, `step` of them before this one.
    unsafe fn key<S: Simd>(s: S, panel: *const u8, k_dim: usize, step: usize) -> S::F32;

    /// 16 elements of a row, `vector` vectors behind its start.
    ///
    /// # Safety
    /// `row` points to a row of `v_stride` elements, these among them.
    unsafe fn value<S: Simd>(s: S, row: *const u8, v_stride: usize, vector: usize) -> S::F32;

    /// Writes a key to a lane of a panel.
    ///
    /// # Safety
    /// `panel` points to a panel of as many vectors as there are values; the lane is nobody else's.
    unsafe fn store_key<S: Simd>(s: S, panel: *mut u8, lane: usize, values: &[f32]);

    /// Writes 16 keys, which begin `stride` values apart, to a panel: each to its lane.
    ///
    /// # Safety
    /// `panel` points to a panel of `k_dim` vectors that is nobody else's.
    #[inline(always)]
    unsafe fn store_keys<S: Simd>(
        s: S,
        panel: *mut u8,
        k_dim: usize,
        values: &[f32],
        stride: usize,
    ) {
        for lane in 0..LANES {
            // SAFETY: the caller's.
            unsafe { Self::store_key(s, panel, lane, &values[lane * stride..][..k_dim]) };
        }
    }

    /// Writes a row; what is behind the values is zero.
    ///
    /// # Safety
    /// `row` points to a row for them, which is nobody else's.
    unsafe fn store_value<S: Simd>(s: S, row: *mut u8, values: &[f32]);
}

impl<E: Float> Element for E {
    const BYTES: (usize, Option<usize>) = (E::BYTES, None);

    #[inline(always)]
    unsafe fn key<S: Simd>(s: S, panel: *const u8, _: usize, step: usize) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { E::load(s, panel.add(step * LANES * E::BYTES)) }
    }
    #[inline(always)]
    unsafe fn value<S: Simd>(s: S, row: *const u8, _: usize, vector: usize) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { E::load(s, row.add(vector * LANES * E::BYTES)) }
    }
    #[inline(always)]
    unsafe fn store_key<S: Simd>(s: S, panel: *mut u8, lane: usize, values: &[f32]) {
        // SAFETY: the caller's.
        unsafe { scatter::<S, E>(s, panel.add(lane * E::BYTES), values) };
    }
    #[inline(always)]
    unsafe fn store_keys<S: Simd>(
        s: S,
        panel: *mut u8,
        k_dim: usize,
        values: &[f32],
        stride: usize,
    ) {
        let whole = k_dim / LANES * LANES;
        for step in (0..whole).step_by(LANES) {
            let mut square = [s.splat(0.0); LANES];
            each!(lane in LANES => square[lane] = s.read(&values[lane * stride + step..]));
            let square = s.transpose(square);
            each!(row in LANES => {
                // SAFETY: the caller's: the panel goes on for all vectors.
                unsafe { E::store(s, panel.add((step + row) * LANES * E::BYTES), square[row]) };
            });
        }
        if whole < k_dim {
            for lane in 0..LANES {
                let rest = &values[lane * stride..][whole..k_dim];
                // SAFETY: as above.
                unsafe { scatter::<S, E>(s, panel.add((whole * LANES + lane) * E::BYTES), rest) };
            }
        }
    }
    #[inline(always)]
    unsafe fn store_value<S: Simd>(s: S, row: *mut u8, values: &[f32]) {
        for (index, values) in values.chunks(LANES).enumerate() {
            let values = match values.len() {
                LANES => s.read(values),
                _ => s.read_up_to(values, 0.0),
            };
            // SAFETY: a row is whole vectors long.
            unsafe { E::store(s, row.add(index * LANES * E::BYTES), values) };
        }
    }
}

/// Signed bytes, 32 under a half-precision scale, rounded as Q8_0 of files.
pub(crate) enum Bytes {}

/// Elements under a scale.
const BLOCK: usize = KvType::BLOCK;

impl Element for Bytes {
    const BYTES: (usize, Option<usize>) = (1, Some(2));

    #[inline(always)]
    unsafe fn key<S: Simd>(s: S, panel: *const u8, k_dim: usize, step: usize) -> S::F32 {
        // SAFETY: the caller's; behind the elements there is a vector of scales for every 32.
        unsafe {
            let scales = panel.add((k_dim + step / BLOCK * 2) * LANES);
            s.mul(
                s.load_i8(panel.add(step * LANES).cast()),
                s.load_f16(scales.cast()),
            )
        }
    }
    #[inline(always)]
    unsafe fn value<S: Simd>(s: S, row: *const u8, v_stride: usize, vector: usize) -> S::F32 {
        // SAFETY: the caller's; behind the elements there is a scale for every 32.
        unsafe {
            let scale = row.add(v_stride + vector * LANES / BLOCK * 2);
            let scale = scale.cast::<u16>().read_unaligned();
            // A half without sign, its exponent 112 short of a single's.
            let scale = f32::from_bits(u32::from(scale) << 13) * f32::from_bits((112 + 127) << 23);
            s.mul(s.load_i8(row.add(vector * LANES).cast()), s.splat(scale))
        }
    }
    #[inline(always)]
    unsafe fn store_key<S: Simd>(_: S, panel: *mut u8, lane: usize, values: &[f32]) {
        let mut block = [0; quant::Q8_0::BYTES];
        for (index, from) in values.chunks_exact(BLOCK).enumerate() {
            quant::Q8_0::encode(from, &mut block);
            // SAFETY: the caller's: the lane goes on for all values, and its scales.
            unsafe {
                for (place, quant) in block[2..].iter().enumerate() {
                    *panel.add((index * BLOCK + place) * LANES + lane) = *quant;
                }
                let scale = panel.add((values.len() + index * 2) * LANES + 2 * lane);
                scale.copy_from_nonoverlapping(block.as_ptr(), 2);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_value<S: Simd>(_: S, row: *mut u8, values: &[f32]) {
        let mut block = [0; quant::Q8_0::BYTES];
        for (index, from) in values.chunks_exact(BLOCK).enumerate() {
            quant::Q8_0::encode(from, &mut block);
            // SAFETY: the caller's; whole blocks are whole vectors.
            unsafe {
                let (quants, scale) = (row.add(index * BLOCK), row.add(values.len() + index * 2));
                quants.copy_from_nonoverlapping(block[2..].as_ptr(), BLOCK);
                scale.copy_from_nonoverlapping(block.as_ptr(), 2);
            }
        }
    }
}

/// Bytes of some elements and their scales.
fn bytes_of(element: KvType, elements: usize) -> Option<usize> {
    let (bytes, scale) = with_element!(element, E => <E as Element>::BYTES);
    let scales = (elements / BLOCK).checked_mul(scale.unwrap_or(0))?;
    elements.checked_mul(bytes)?.checked_add(scales)
}

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
            let values = match from.len() {
                LANES => s.read(from),
                _ => s.read_up_to(from, 0.0),
            };
            E::store(s, packed, values);
            for place in 0..from.len() {
                let to = lane.add((index * LANES + place) * LANES * E::BYTES);
                to.copy_from_nonoverlapping(packed.add(place * E::BYTES), E::BYTES);
            }
        }
    }
}
