//! Panels: 16 rows of a weight, interleaved so that one vector holds the same place of all of them.
//!
//! Owns the layout of each block format, how rows get in and out, and how a panel is multiplied
//! with a tile of activation columns. Must not know threads or whole matrices.
//!
//! - Floats: `[cols][16 rows]`.
//! - Q8_0: scales `[blocks][16 rows]` in half precision, up to a multiple of 64 bytes; then quants
//!   `[blocks][8 groups][16 rows][4]`, each plus 128 to be unsigned, as `vpdpbusd` wants it.
//! - Q4_0: scales as above; then `[blocks][4 groups][16 rows][4]`, whose lower halves are the
//!   groups 0 to 3 and whose upper halves the groups 4 to 7.

use half::{bf16, f16};

use crate::{
    columns::TileColumns,
    simd::{LANES, Simd, each},
};

/// Values under one scale in the quantised formats, and in quantised activations.
pub(crate) const BLOCK: usize = 32;
/// Vectors of 4 values × 16 rows in a block.
const GROUPS: usize = BLOCK / 4;
/// How far ahead of a lone column its weights are asked for, in bytes.
const AHEAD: usize = 4096;

/// How a weight is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    F32,
    F16,
    Bf16,
    Q8,
    Q4,
}

/// Calls a generic function with the format of a layout.
macro_rules! with_format {
    ($layout:expr, $format:ident => $body:expr) => {
        match $layout {
            Layout::F32 => {
                type $format = crate::panel::F32;
                $body
            }
            Layout::F16 => {
                type $format = crate::panel::F16;
                $body
            }
            Layout::Bf16 => {
                type $format = crate::panel::Bf16;
                $body
            }
            Layout::Q8 => {
                type $format = crate::panel::Q8;
                $body
            }
            Layout::Q4 => {
                type $format = crate::panel::Q4;
                $body
            }
        }
    };
}
pub(crate) use with_format;

impl Layout {
    /// Whether it is multiplied with quantised activations.
    pub fn is_quantised(self) -> bool {
        matches!(self, Layout::Q8 | Layout::Q4)
    }

    /// Bytes of a panel, a multiple of a cache line.
    pub fn panel_bytes(self, cols: usize) -> usize {
        let bytes = match self {
            Layout::F32 => 4 * LANES * cols,
            Layout::F16 | Layout::Bf16 => 2 * LANES * cols,
            Layout::Q8 => scale_bytes(cols) + LANES * cols,
            Layout::Q4 => scale_bytes(cols) + LANES * cols / 2,
        };
        bytes.next_multiple_of(64)
    }
}

/// Bytes of the scales in front of the quants.
fn scale_bytes(cols: usize) -> usize {
    (cols / BLOCK * 2 * LANES).next_multiple_of(64)
}

/// One layout.
pub(crate) trait Format {
    /// Puts a row into its lane. `row` is as the file has it, or `f32` for [`F32`].
    fn pack(panel: &mut [u8], lane: usize, row: &[u8]);

    /// Takes a row out. `[cols]`
    fn unpack(panel: &[u8], lane: usize, row: &mut [f32]);

    /// The 16 rows times each of `N` columns.
    ///
    /// # Safety
    /// `panel` points to a panel of `cols` columns, and `columns` to a tile of `N` such columns in
    /// the precision that the layout is multiplied with.
    unsafe fn multiply<S: Simd, const N: usize>(
        s: S,
        panel: *const u8,
        cols: usize,
        columns: TileColumns,
    ) -> [S::F32; N];
}

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

/// Inputs that [`Format::multiply`] of floats takes at once: with few columns several sums of each,
/// so that additions need not wait for one another.
const fn steps_at_once(columns: usize) -> usize {
    if columns <= 4 { 4 } else { 1 }
}

impl<E: Float> Format for E {
    fn pack(panel: &mut [u8], lane: usize, row: &[u8]) {
        let lanes = panel[lane * E::BYTES..].chunks_mut(LANES * E::BYTES);
        for (to, from) in lanes.zip(row.chunks_exact(E::BYTES)) {
            to[..E::BYTES].copy_from_slice(from);
        }
    }

    fn unpack(panel: &[u8], lane: usize, row: &mut [f32]) {
        let lanes = panel[lane * E::BYTES..].chunks(LANES * E::BYTES);
        for (to, from) in row.iter_mut().zip(lanes) {
            *to = E::decode(from);
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd, const N: usize>(
        s: S,
        panel: *const u8,
        cols: usize,
        columns: TileColumns,
    ) -> [S::F32; N] {
        let mut sums = [[s.splat(0.0); N]; 4];
        let steps = const { steps_at_once(N) };
        let mut col = 0;
        while col + steps <= cols {
            each!(step in steps_at_once(N), 0 1 2 3 => {
                // SAFETY: `col + step < cols`.
                unsafe {
                    let weights = panel.add((col + step) * LANES * E::BYTES);
                    if N == 1 {
                        s.prefetch(weights.wrapping_add(AHEAD));
                    }
                    let weights = E::load(s, weights);
                    let activations = columns.floats.add((col + step) * N);
                    each!(c in N => {
                        let activation = s.splat(*activations.add(c));
                        sums[step][c] = s.mul_add(weights, activation, sums[step][c]);
                    });
                }
            });
            col += steps;
        }
        while col < cols {
            // SAFETY: `col < cols`.
            unsafe {
                let weights = E::load(s, panel.add(col * LANES * E::BYTES));
                each!(c in N => {
                    let activation = s.splat(*columns.floats.add(col * N + c));
                    sums[0][c] = s.mul_add(weights, activation, sums[0][c]);
                });
            }
            col += 1;
        }
        let mut total = sums[0];
        if steps == 4 {
            each!(c in N => {
                let low = s.add(sums[0][c], sums[1][c]);
                total[c] = s.add(low, s.add(sums[2][c], sums[3][c]));
            });
        }
        total
    }
}

/// Blocks of integers under a scale.
trait Integer {
    /// Bytes of a block of 16 rows.
    const BLOCK_BYTES: usize;
    /// What a unit of the integers that [`load`](Self::load) gives is worth.
    const UNIT: f32;

    /// The groups of a block, each value plus 128.
    ///
    /// # Safety
    /// A readable block.
    unsafe fn load<S: Simd>(s: S, block: *const u8) -> [S::Bytes; GROUPS];
}

/// 8 bits and a scale per 32 values.
pub(crate) enum Q8 {}
/// 4 bits and a scale per 32 values.
pub(crate) enum Q4 {}

impl Integer for Q8 {
    const BLOCK_BYTES: usize = LANES * BLOCK;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, block: *const u8) -> [S::Bytes; GROUPS] {
        // SAFETY: 8 groups of 64 bytes.
        unsafe {
            [
                s.load_bytes(block),
                s.load_bytes(block.add(64)),
                s.load_bytes(block.add(128)),
                s.load_bytes(block.add(192)),
                s.load_bytes(block.add(256)),
                s.load_bytes(block.add(320)),
                s.load_bytes(block.add(384)),
                s.load_bytes(block.add(448)),
            ]
        }
    }
}

impl Integer for Q4 {
    const BLOCK_BYTES: usize = LANES * BLOCK / 2;
    // Values stay in the upper half of a byte: 16 q lies 128 above 16 (q - 8).
    const UNIT: f32 = 1.0 / 16.0;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, block: *const u8) -> [S::Bytes; GROUPS] {
        // SAFETY: 4 pairs of groups of 64 bytes.
        unsafe {
            let pairs = [
                s.load_bytes(block),
                s.load_bytes(block.add(64)),
                s.load_bytes(block.add(128)),
                s.load_bytes(block.add(192)),
            ];
            [
                s.low_halves(pairs[0]),
                s.low_halves(pairs[1]),
                s.low_halves(pairs[2]),
                s.low_halves(pairs[3]),
                s.high_halves(pairs[0]),
                s.high_halves(pairs[1]),
                s.high_halves(pairs[2]),
                s.high_halves(pairs[3]),
            ]
        }
    }
}

/// The body of [`Format::multiply`] for integers: per block an exact integer sum, then the product
/// of both scales.
///
/// # Safety
/// As for [`Format::multiply`].
#[inline(always)]
unsafe fn multiply_integers<S: Simd, Q: Integer, const N: usize>(
    s: S,
    panel: *const u8,
    cols: usize,
    columns: TileColumns,
) -> [S::F32; N] {
    let mut sums = [s.splat(0.0); N];
    // SAFETY: all offsets are below the sizes that the caller vouches for; only prefetches, which
    // read nothing, go further.
    unsafe {
        let quants = panel.add(scale_bytes(cols));
        for block in 0..cols / BLOCK {
            let quants = quants.add(block * Q::BLOCK_BYTES);
            if N == 1 {
                for line in 0..Q::BLOCK_BYTES / 64 {
                    s.prefetch(quants.wrapping_add(AHEAD + 64 * line));
                }
            }
            let groups = Q::load(s, quants);
            let scales = s.load_f16(panel.add(block * 2 * LANES).cast());
            let activations = columns.quants.add(block * N * BLOCK).cast::<i32>();
            let activation_scales = columns.scales.add(block * N);
            let starts = columns.starts.add(block * N);
            each!(c in N => {
                let mut dot = s.dot_start(*starts.add(c));
                each!(group in GROUPS, 0 1 2 3 4 5 6 7 => {
                    let four = activations.add(c * GROUPS + group).read_unaligned();
                    dot = s.dot(dot, groups[group], four);
                });
                let scale = s.mul(scales, s.splat(*activation_scales.add(c)));
                sums[c] = s.mul_add(s.to_f32(dot), scale, sums[c]);
            });
        }
    }
    if Q::UNIT != 1.0 {
        each!(c in N => sums[c] = s.mul(sums[c], s.splat(Q::UNIT)));
    }
    sums
}

impl Format for Q8 {
    fn pack(panel: &mut [u8], lane: usize, row: &[u8]) {
        let (blocks, _) = row.as_chunks::<{ 2 + BLOCK }>();
        let (scales, quants) = panel.split_at_mut(scale_bytes(blocks.len() * BLOCK));
        let (scales, _) = scales.as_chunks_mut::<2>();
        let (groups, _) = quants.as_chunks_mut::<{ 4 * LANES }>();
        for (index, block) in blocks.iter().enumerate() {
            scales[index * LANES + lane] = [block[0], block[1]];
            for group in 0..GROUPS {
                let from = &block[2 + 4 * group..6 + 4 * group];
                let signed = u32::from_ne_bytes([from[0], from[1], from[2], from[3]]);
                let to = &mut groups[index * GROUPS + group][4 * lane..4 * lane + 4];
                to.copy_from_slice(&(signed ^ 0x8080_8080).to_ne_bytes());
            }
        }
    }

    fn unpack(panel: &[u8], lane: usize, row: &mut [f32]) {
        let (scales, quants) = panel.split_at(scale_bytes(row.len()));
        for (index, values) in row.chunks_exact_mut(BLOCK).enumerate() {
            let scale = F16::decode(&scales[(index * LANES + lane) * 2..]);
            let quants = &quants[index * Self::BLOCK_BYTES..];
            for (place, value) in values.iter_mut().enumerate() {
                let quant = quants[place / 4 * 4 * LANES + 4 * lane + place % 4];
                *value = scale * f32::from((quant ^ 0x80).cast_signed());
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd, const N: usize>(
        s: S,
        panel: *const u8,
        cols: usize,
        columns: TileColumns,
    ) -> [S::F32; N] {
        // SAFETY: the caller's.
        unsafe { multiply_integers::<S, Self, N>(s, panel, cols, columns) }
    }
}

impl Format for Q4 {
    fn pack(panel: &mut [u8], lane: usize, row: &[u8]) {
        let (blocks, _) = row.as_chunks::<{ 2 + BLOCK / 2 }>();
        let (scales, quants) = panel.split_at_mut(scale_bytes(blocks.len() * BLOCK));
        let (scales, _) = scales.as_chunks_mut::<2>();
        let (groups, _) = quants.as_chunks_mut::<{ 4 * LANES }>();
        for (index, block) in blocks.iter().enumerate() {
            scales[index * LANES + lane] = [block[0], block[1]];
            // Byte i of a block holds the values i and i + 16: the halves are as they shall be.
            for group in 0..GROUPS / 2 {
                let from = &block[2 + 4 * group..6 + 4 * group];
                let to = &mut groups[index * GROUPS / 2 + group][4 * lane..4 * lane + 4];
                to.copy_from_slice(from);
            }
        }
    }

    fn unpack(panel: &[u8], lane: usize, row: &mut [f32]) {
        let (scales, quants) = panel.split_at(scale_bytes(row.len()));
        for (index, values) in row.chunks_exact_mut(BLOCK).enumerate() {
            let scale = F16::decode(&scales[(index * LANES + lane) * 2..]);
            let quants = &quants[index * Self::BLOCK_BYTES..];
            let (low, high) = values.split_at_mut(BLOCK / 2);
            for (place, (low, high)) in low.iter_mut().zip(high).enumerate() {
                let pair = quants[place / 4 * 4 * LANES + 4 * lane + place % 4];
                *low = scale * f32::from((pair & 15).cast_signed() - 8);
                *high = scale * f32::from((pair >> 4).cast_signed() - 8);
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd, const N: usize>(
        s: S,
        panel: *const u8,
        cols: usize,
        columns: TileColumns,
    ) -> [S::F32; N] {
        // SAFETY: the caller's.
        unsafe { multiply_integers::<S, Self, N>(s, panel, cols, columns) }
    }
}
