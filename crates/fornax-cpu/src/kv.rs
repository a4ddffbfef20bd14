//! The pages of a layer's cache.
//!
//! Owns their layout; must not know attention. K lies in panels of 16 tokens, so that a vector
//! holds the same element of 16 keys and scores need no sum across lanes; V in rows.
//!
//! - K: `[pages][kv_heads][panels][k_dim][16 tokens]`; a page's last panel may be partly used.
//! - V: `[pages][kv_heads][page_size][v_dim up to a multiple of 16]`.
//!
//! What an element is, is an [`Element`]: where 32 of them share a scale, the scales lie behind the
//! elements of a panel, `[k_dim / 32][16 tokens]`, and of a row, `[v_dim / 32]`.

use std::marker::PhantomData;

use fornax_backend::{BackendError, Heads, KvShape, KvType};
use fornax_gguf::{BlockFormat, quant};

use crate::{
    isa::Isa,
    memory::{Memory, Parts},
    panel::float::Float,
    simd::{Kernel, LANES, Simd, each},
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
}

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
fn bytes_of(element: KvType, elements: usize) -> usize {
    let (bytes, scale) = with_element!(element, E => <E as Element>::BYTES);
    elements * bytes + scale.map_or(0, |scale| elements / BLOCK * scale)
}

impl Places {
    /// First byte of a panel of K.
    #[inline(always)]
    fn k_panel(&self, page: usize, head: usize, panel: usize) -> usize {
        let index = (page * self.shape.kv_heads + head) * self.panels + panel;
        index * self.k_panel_bytes
    }

    /// First byte of a row of V.
    #[inline(always)]
    fn v_row(&self, page: usize, head: usize, token: usize) -> usize {
        let index = (page * self.shape.kv_heads + head) * self.shape.page_size + token;
        index * self.v_row_bytes
    }
}

impl Kv {
    pub(crate) fn new(shape: &KvShape) -> Result<Self, BackendError> {
        shape.check()?;
        let v_stride = shape.v_dim.next_multiple_of(LANES);
        let places = Places {
            shape: *shape,
            panels: shape.page_size.div_ceil(LANES),
            v_stride,
            k_panel_bytes: LANES * bytes_of(shape.element, shape.k_dim),
            v_row_bytes: bytes_of(shape.element, v_stride),
        };
        let k = Memory::filling_up(places.k_panel(shape.pages, 0, 0))?;
        let v = Memory::filling_up(places.v_row(shape.pages, 0, 0))?;
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

    /// Bytes from one V row to the next.
    pub(crate) fn v_row_bytes(&self) -> usize {
        self.places.v_row_bytes
    }

    /// A panel of K: `[k_dim][16 tokens]`.
    #[inline(always)]
    pub(crate) fn k_panel(&self, page: usize, head: usize, panel: usize) -> &[u8] {
        let start = self.places.k_panel(page, head, panel);
        &self.k[start..start + self.places.k_panel_bytes]
    }

    /// `count` panels of K that follow each other in a page.
    #[inline(always)]
    pub(crate) fn k_panels(&self, page: usize, head: usize, first: usize, count: usize) -> &[u8] {
        let start = self.places.k_panel(page, head, first);
        &self.k[start..start + count * self.places.k_panel_bytes]
    }

    /// Rows of V of the `count` tokens from `token` of a page.
    #[inline(always)]
    pub(crate) fn v_rows(&self, page: usize, head: usize, token: usize, count: usize) -> &[u8] {
        let start = self.places.v_row(page, head, token);
        &self.v[start..start + count * self.places.v_row_bytes]
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
        for head in 0..shape.kv_heads {
            for panel in 0..tokens.div_ceil(LANES) {
                let from = self.places.k_panel(source, head, panel);
                let to = self.places.k_panel(destination, head, panel);
                for (first, count, size) in [elements].into_iter().chain(scales) {
                    let lanes = LANES.min(tokens - panel * LANES) * size;
                    for row in (0..count).map(|row| first + row * LANES * size) {
                        self.k.copy_within(from + row..from + row + lanes, to + row);
                    }
                }
            }
            let from = self.places.v_row(source, head, 0);
            let to = self.places.v_row(destination, head, 0);
            self.v.copy_within(from..from + tokens * v_row_bytes, to);
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
        let shape = self.kv.places.shape;
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
            let panel = kv.k.at(kv.places.k_panel(page, head, first / LANES));
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
                let to = kv.v.at(kv.places.v_row(page, head, first + token));
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
