//! Panels of floats, and elements that vectors are loaded from.
//!
//! Must not know blocks. F32 and F16 lie as `[cols][16 rows]`, BF16 as
//! `[pairs of cols][16 rows][2]`, up to a multiple of 32 columns: both a vector and a matrix unit
//! take pairs as they are.

use half::{bf16, f16};

use super::{BLOCK, FEW, Format};
use crate::{
    columns::TileColumns,
    simd::{LANES, Simd, each},
};

/// Elements that a vector loads as they are.
pub(crate) trait Float {
    /// Bytes of an element.
    const BYTES: usize;

    fn decode(bytes: &[u8]) -> f32;

    /// # Safety
    /// 16 readable elements.
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F32;

    /// # Safety
    /// 16 writable elements.
    unsafe fn store<S: Simd>(s: S, to: *mut u8, a: S::F32);
}

/// Single precision.
pub(crate) enum F32 {}
/// Half precision.
pub(crate) enum F16 {}
/// Brain float.
pub(crate) enum Bf16 {}

impl Float for F32 {
    const BYTES: usize = 4;

    fn decode(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { s.load(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut u8, a: S::F32) {
        // SAFETY: the caller's.
        unsafe { s.store(to.cast(), a) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    fn decode(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { s.load_f16(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut u8, a: S::F32) {
        // SAFETY: the caller's.
        unsafe { s.store_f16(to.cast(), a) }
    }
}

impl Float for Bf16 {
    const BYTES: usize = 2;

    fn decode(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, from: *const u8) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { s.load_bf16(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(s: S, to: *mut u8, a: S::F32) {
        // SAFETY: the caller's.
        unsafe { s.store_bf16(to.cast(), a) }
    }
}

/// Where the elements of a panel lie.
pub(crate) trait FloatPanel: Float {
    /// Whether two columns of a row lie side by side.
    const PAIRS: bool;

    /// Byte of an element.
    fn place(col: usize, lane: usize) -> usize {
        match Self::PAIRS {
            true => ((col / 2 * LANES + lane) * 2 + col % 2) * Self::BYTES,
            false => (col * LANES + lane) * Self::BYTES,
        }
    }

    /// The columns `col` and `col + 1`.
    ///
    /// # Safety
    /// `col` is even, and both are in the panel.
    #[inline(always)]
    unsafe fn load_two<S: Simd>(s: S, panel: *const u8, col: usize) -> [S::F32; 2] {
        // SAFETY: the caller's.
        unsafe {
            let at = panel.add(col * LANES * Self::BYTES);
            match Self::PAIRS {
                true => s.load_bf16_pairs(at.cast()),
                false => [
                    Self::load(s, at),
                    Self::load(s, at.add(LANES * Self::BYTES)),
                ],
            }
        }
    }
}

impl FloatPanel for F32 {
    const PAIRS: bool = false;
}
impl FloatPanel for F16 {
    const PAIRS: bool = false;
}
impl FloatPanel for Bf16 {
    const PAIRS: bool = true;
}

impl<E: FloatPanel> Format for E {
    const WIDEST: usize = 16;

    fn panel_bytes(cols: usize) -> usize {
        let cols = match E::PAIRS {
            true => cols.next_multiple_of(BLOCK),
            // Two columns are loaded at once.
            false => cols.next_multiple_of(2),
        };
        cols * LANES * E::BYTES
    }

    fn pack(panel: &mut [u8], lane: usize, row: &[u8]) {
        for (col, from) in row.chunks_exact(E::BYTES).enumerate() {
            let start = E::place(col, lane);
            panel[start..start + E::BYTES].copy_from_slice(from);
        }
    }

    fn unpack(panel: &[u8], lane: usize, row: &mut [f32]) {
        for (col, value) in row.iter_mut().enumerate() {
            *value = E::decode(&panel[E::place(col, lane)..]);
        }
    }

    /// A sum goes through its products in order, however many columns there are, so that a column's
    /// result does not depend on its company.
    #[inline(always)]
    unsafe fn multiply<S: Simd, const N: usize>(
        s: S,
        panel: *const u8,
        cols: usize,
        columns: TileColumns,
    ) -> [S::F32; N] {
        let mut sums = [s.splat(0.0); N];
        let whole = cols / 4 * 4;
        for col in (0..whole).step_by(4) {
            each!(pair in 2, 0 1 => {
                // SAFETY: `col + 2 * pair + 1 < cols`.
                unsafe {
                    if N <= FEW {
                        let at = (col + 2 * pair) * LANES * E::BYTES;
                        let at = panel.wrapping_add(at + S::AHEAD);
                        s.prefetch(at);
                        s.prefetch(at.wrapping_add(64));
                    }
                    let weights = E::load_two(s, panel, col + 2 * pair);
                    let activations = columns.floats.add((col + 2 * pair) * N);
                    each!(c in N => {
                        sums[c] = s.mul_add(weights[0], s.splat(*activations.add(c)), sums[c]);
                        sums[c] = s.mul_add(weights[1], s.splat(*activations.add(N + c)), sums[c]);
                    });
                }
            });
        }
        for col in whole..cols {
            // SAFETY: `col < cols`, and panels hold an even number of columns.
            unsafe {
                let weights = E::load_two(s, panel, col / 2 * 2)[col % 2];
                each!(c in N => {
                    let activation = s.splat(*columns.floats.add(col * N + c));
                    sums[c] = s.mul_add(weights, activation, sums[c]);
                });
            }
        }
        sums
    }
}
