//! Elements of a cache: how they lie in panels of K and rows of V, and are read and written.
//!
//! Must not know pages. Where 32 elements share a scale, the scales lie behind the elements of a panel,
//! `[k_dim / 32][16 tokens]`, and of a row, `[v_dim / 32]`.

use fornax_backend::KvType;
use fornax_gguf::{BlockFormat, quant};

use crate::{
    panel::float::Float,
    simd::{LANES, Simd, each},
};

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

/// How elements of a cache lie and are read.
pub(crate) trait Element {
    /// Bytes of an element and, where there are any, of a scale.
    const BYTES: (usize, Option<usize>);
    /// Whether they are in single precision.
    const IS_SINGLE: bool;

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
    const IS_SINGLE: bool = E::BYTES == size_of::<f32>();

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
pub(super) const BLOCK: usize = KvType::BLOCK;

impl Element for Bytes {
    const BYTES: (usize, Option<usize>) = (1, Some(2));
    const IS_SINGLE: bool = false;

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
pub(super) fn bytes_of(element: KvType, elements: usize) -> Option<usize> {
    let (bytes, scale) = with_element!(element, E => <E as Element>::BYTES);
    let scales = (elements / BLOCK).checked_mul(scale.unwrap_or(0))?;
    elements.checked_mul(bytes)?.checked_add(scales)
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
