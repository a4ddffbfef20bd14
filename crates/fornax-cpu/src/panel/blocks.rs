//! Panels of quantised blocks: integers in the bits that the file spends on them, and scales.
//!
//! Owns the layout, one for all formats: what differs is in the constants of [`Blocks`]. Must not
//! know activations (`strip.rs` multiplies) or what a file's block looks like (`formats.rs`).
//!
//! In front lie the scales, a record for every 32 or 256 values, then the quants,
//! `[blocks of 32][8 groups][16 rows][4]`. A quant of 3, 5 or 6 bits is cut in two: its lower bits
//! lie in one plane, its upper ones in another; the groups of a block share the bits of a byte.
//!
//! Loaded, a quant stands at the top of its byte: 4 bits as 16 q, and so on. With 128 for the
//! middle every format is one and the same to [`Simd::dot`]: what the lower bits are worth is
//! part of the scale, and where the file counts from 0 the middle is part of the minimum. Vectors that
//! [want it small](Simd::WANTS_SMALL) find it at the bottom, and multiply sums by what it is worth there.

use std::marker::PhantomData;

use half::{bf16, f16};

use super::{
    BLOCK, FEW, Format, GROUPS, HALVES,
    strip::{self, BlockScales, Source, StripParts, StripShape},
};
use crate::{
    ahead::{Ahead, LINE},
    columns::TileColumns,
    simd::{LANES, Simd, each},
};

/// How far ahead a panel is asked for while it is spread, in bytes.
const SPREAD_AHEAD: usize = 8 << 10;
/// Values of the largest blocks.
pub(crate) const LARGEST: usize = 256;

/// How values come from quants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scales {
    /// `scale * q`, a half-precision scale per block.
    Half,
    /// `scale * q`, a brain float per block.
    Brain,
    /// `scale * q + min`, both in half precision per block.
    HalfMin,
    /// `scale * scales[i] * q`, a half-precision scale per 256 values.
    Super,
    /// `scale * scales[i] * q - min * mins[i]`, both in half precision per 256 values.
    SuperMin,
}

/// A block format.
pub(crate) trait Blocks {
    /// Values of a block of the file: 32 or 256.
    const VALUES: usize;
    /// Bytes of it.
    const BYTES: usize;
    /// Bits of a quant: 2, 3, 4, 5, 6 or 8.
    const BITS: usize;
    /// Values that share a scale: 16 or 32.
    const SHARING: usize = BLOCK;
    /// How values come from quants.
    const SCALES: Scales;
    /// What a quant `q` of 4 bits stands for, where it is not a number; numbers are
    /// `q - 2^(BITS - 1)`, or `q` itself where there are minimums.
    const TABLE: Option<[i8; 16]> = None;
    /// Factor on every scale, a power of two.
    const FACTOR: f32 = 1.0;

    /// Takes a block of the file apart.
    fn take_apart(block: &[u8], integers: &mut Integers);
}

/// A block of a file, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Integers {
    /// `[VALUES]`
    pub quants: [u8; LARGEST],
    /// Bits of the scale.
    pub scale: u16,
    /// Bits of the minimum.
    pub min: u16,
    /// `[VALUES / SHARING]`
    pub scales: [i8; LARGEST / 16],
    /// From 0 to 63. `[VALUES / SHARING]`
    pub mins: [i8; LARGEST / 16],
}

impl Integers {
    pub fn zero() -> Self {
        Self {
            quants: [0; LARGEST],
            scale: 0,
            min: 0,
            scales: [0; LARGEST / 16],
            mins: [0; LARGEST / 16],
        }
    }
}

/// The layout of a block format.
pub(crate) struct Quantised<B>(PhantomData<B>);

impl<B: Blocks> Quantised<B> {
    const IS_SUPER: bool = matches!(B::SCALES, Scales::Super | Scales::SuperMin);
    const HAS_MIN: bool = matches!(B::SCALES, Scales::HalfMin | Scales::SuperMin);
    /// Scales of a block of 32.
    const SHARES: usize = BLOCK / B::SHARING;
    /// Scales of a record.
    const RECORD_SHARES: usize = B::VALUES / B::SHARING;
    /// Bytes of the floats in front of a record.
    const FLOATS: usize = if Self::HAS_MIN { 2 * HALVES } else { HALVES };
    /// Bytes of a record of scales.
    const RECORD: usize = match B::SCALES {
        Scales::Super => Self::FLOATS + LANES * Self::RECORD_SHARES,
        Scales::SuperMin => Self::FLOATS + 2 * LANES * Self::RECORD_SHARES,
        _ => Self::FLOATS,
    };
    /// Bytes of the quants of a block, and of its share of the scales.
    const BLOCK_BYTES: usize = 64 * B::BITS;
    const BLOCK_SCALES: usize = Self::RECORD * BLOCK / B::VALUES;
    /// Lines of a panel that are asked for with each block.
    pub const LINES_ASKED: usize = B::BITS + Self::BLOCK_SCALES.div_ceil(LINE);
    /// Lower bits of a quant, in the first plane.
    const LOW: usize = match B::BITS {
        8 => 8,
        4..=6 => 4,
        _ => 2,
    };
    /// Upper bits, in the second plane.
    const HIGH: usize = B::BITS - Self::LOW;
    /// Bits of a byte that a quant takes when it is loaded: all of them where it is looked up.
    const BYTE_BITS: usize = match B::TABLE {
        Some(_) => 8,
        None => B::BITS,
    };
    /// What the lowest bit of a byte is worth, in scales, where quants stand at the top of theirs.
    const UNIT: f32 = match B::TABLE {
        Some(_) => B::FACTOR,
        None => B::FACTOR / (1 << (8 - B::BITS)) as f32,
    };
    /// The table as bytes around 128.
    const LEVELS: [u8; 16] = match B::TABLE {
        Some(table) => around_128(table),
        None => [0; 16],
    };
    /// Whether a row's block has one half-precision scale, which is never 0: see [`pack`](Format::pack).
    const HAS_PLAIN_SCALES: bool = matches!(B::SCALES, Scales::Half) && B::TABLE.is_none();
    /// Whether activations may have coarse scales.
    pub const IS_COARSE: bool = Self::HAS_PLAIN_SCALES && B::BITS < 8;
    /// What strips of it hold.
    pub const STRIP: StripShape = StripShape {
        spreads: B::BITS < 8,
        bits: Self::BYTE_BITS,
        shares: Self::SHARES,
        has_min: Self::HAS_MIN,
    };

    /// Bytes of the scales in front of the quants.
    fn scale_bytes(cols: usize) -> usize {
        (cols / B::VALUES * Self::RECORD).next_multiple_of(64)
    }

    /// The first line that is asked for with a block: as evenly as blocks are read all of a panel is, its
    /// scales as well as its quants.
    #[inline(always)]
    pub fn first_asked(block: usize) -> usize {
        block * B::BITS + block * Self::BLOCK_SCALES / LINE
    }

    /// One group of a block, as [`Groups::group`](crate::simd::Groups) has it.
    ///
    /// # Safety
    /// `quants` points to the quants of a block.
    #[inline(always)]
    unsafe fn group<S: Simd>(s: S, quants: *const u8, group: usize) -> S::Bytes {
        // SAFETY: `LOW` vectors, then `HIGH` vectors.
        unsafe {
            let low = s.load_bytes(quants.add(64 * (group % Self::LOW)));
            let field = (Self::LOW * (group / Self::LOW)) as i32;
            if B::BITS == 8 {
                return low;
            }
            if B::TABLE.is_some() {
                return s.lookup(&Self::LEVELS, s.shift_bits(low, -field, 15));
            }
            let bottom = if S::WANTS_SMALL {
                0
            } else {
                8 - B::BITS as i32
            };
            let mask = ((1_u32 << Self::LOW) - 1) << bottom;
            let low = s.shift_bits(low, bottom - field, mask as u8);
            if Self::HIGH == 0 {
                return low;
            }
            let width = if Self::HIGH == 0 { 1 } else { Self::HIGH };
            let high = s.load_bytes(quants.add(64 * (Self::LOW + group % width)));
            let field = (width * (group / width)) as i32;
            let bottom = bottom + Self::LOW as i32;
            let mask = ((1_u32 << width) - 1) << bottom;
            s.or(low, s.shift_bits(high, bottom - field, mask as u8))
        }
    }

    /// Scales and minimums of a block, the second of each where 16 values share one.
    ///
    /// # Safety
    /// `panel` points to a panel that has the block.
    #[inline(always)]
    unsafe fn scales<S: Simd>(s: S, panel: *const u8, block: usize) -> [[S::F32; 2]; 2] {
        let record = block * BLOCK / B::VALUES * Self::RECORD;
        let share = block * BLOCK % B::VALUES / B::SHARING;
        // SAFETY: inside of the record of the block.
        unsafe {
            let record = panel.add(record);
            let float = match B::SCALES {
                Scales::Brain => s.load_bf16(record.cast()),
                _ => s.load_f16(record.cast()),
            };
            let float = s.mul(float, s.splat(Self::UNIT));
            let integers = record.add(Self::FLOATS).cast::<i8>();
            let mut scales = [float; 2];
            if Self::IS_SUPER {
                each!(i in 2, 0 1 => if i < Self::SHARES {
                    let factor = s.load_i8(integers.add(LANES * (share + i)));
                    scales[i] = s.mul(float, factor);
                });
            }
            let mut mins = [s.splat(0.0); 2];
            if Self::HAS_MIN {
                let min = s.load_f16(record.add(HALVES).cast());
                each!(i in 2, 0 1 => if i < Self::SHARES {
                    let min = if Self::IS_SUPER {
                        let place = LANES * (Self::RECORD_SHARES + share + i);
                        let factor = s.load_i8(integers.add(place));
                        s.mul(min, s.sub(s.splat(0.0), factor))
                    } else {
                        min
                    };
                    mins[i] = s.mul_add(scales[i], s.splat(128.0), min);
                });
            }
            [scales, mins]
        }
    }

    /// Spreads a panel to bytes, which [`Groups::group`](crate::simd::Groups) has so, and its scales to
    /// single precision. Bytes stay where they are if the panel has them. Asks for all of `next` meanwhile.
    ///
    /// # Safety
    /// `panel` points to a panel of `cols` columns, `strip` to room for a strip of as many.
    #[inline(always)]
    pub unsafe fn spread<S: Simd>(
        s: S,
        panel: *const u8,
        cols: usize,
        mut next: Ahead,
        strip: StripParts,
    ) {
        let quants = panel.wrapping_add(Self::scale_bytes(cols));
        let lines = next.lines_each((cols / BLOCK).max(1));
        for block in 0..cols / BLOCK {
            next.ask(s, lines);
            // SAFETY: `block` is in both.
            unsafe {
                if Self::STRIP.spreads {
                    let quants = quants.add(block * Self::BLOCK_BYTES);
                    for line in 0..B::BITS {
                        s.prefetch(quants.wrapping_add(SPREAD_AHEAD + 64 * line));
                    }
                    each!(group in GROUPS, 0 1 2 3 4 5 6 7 => {
                        let to = strip.quants.add((block * GROUPS + group) * 64);
                        s.store_groups(to, Self::group(s, quants, group));
                    });
                }
                let [scales, mins] = Self::scales(s, panel, block);
                each!(i in 2, 0 1 => if i < Self::SHARES {
                    let place = (block * Self::SHARES + i) * LANES;
                    s.store(strip.scales.add(place), scales[i]);
                    if Self::HAS_MIN {
                        s.store(strip.mins.add(place), mins[i]);
                    }
                });
            }
        }
    }

    /// Blocks read straight from a panel of `cols` columns, and asked for ahead.
    pub fn source(panel: *const u8, cols: usize) -> PanelSource<B> {
        PanelSource {
            panel,
            quants: Self::quants(panel, cols),
            format: PhantomData,
        }
    }

    /// Where the quants of a panel of 8 bits lie.
    pub fn quants(panel: *const u8, cols: usize) -> *const u8 {
        panel.wrapping_add(Self::scale_bytes(cols))
    }

    /// A quant, as [`Integers`] has it.
    fn quant(quants: &[u8], lane: usize, place: usize) -> u8 {
        let (group, byte) = (place / 4, 4 * lane + place % 4);
        let low = quants[64 * (group % Self::LOW) + byte] >> (Self::LOW * (group / Self::LOW));
        let low = low & (((1_u32 << Self::LOW) - 1) as u8);
        if Self::HIGH == 0 {
            return low;
        }
        let width = Self::HIGH.max(1);
        let high = quants[64 * (Self::LOW + group % width) + byte] >> (width * (group / width));
        low | (high & ((1 << width) - 1)) << Self::LOW
    }

    /// What a quant stands for.
    pub fn number(quant: u8) -> f32 {
        match B::TABLE {
            Some(table) => f32::from(table[usize::from(quant)]),
            None if Self::HAS_MIN => f32::from(quant),
            None => f32::from(quant) - (1 << (B::BITS - 1)) as f32,
        }
    }
}

const fn around_128(table: [i8; 16]) -> [u8; 16] {
    let mut levels = [0; 16];
    let mut index = 0;
    while index < 16 {
        levels[index] = table[index].cast_unsigned() ^ 0x80;
        index += 1;
    }
    levels
}

impl<B: Blocks> Format for Quantised<B> {
    const WIDEST: usize = FEW;

    fn panel_bytes(cols: usize) -> usize {
        Self::scale_bytes(cols) + cols / BLOCK * Self::BLOCK_BYTES
    }

    fn pack(panel: &mut [u8], lane: usize, row: &[u8]) {
        let blocks = row.chunks_exact(B::BYTES);
        let (scales, quants) = panel.split_at_mut(Self::scale_bytes(blocks.len() * B::VALUES));
        let records = scales.chunks_exact_mut(Self::RECORD);
        let quants = quants.chunks_exact_mut(Self::BLOCK_BYTES * B::VALUES / BLOCK);
        let mut integers = Integers::zero();
        for (block, (record, quants)) in blocks.zip(records.zip(quants)) {
            B::take_apart(block, &mut integers);
            if Self::HAS_PLAIN_SCALES && f16::from_bits(integers.scale) == f16::ZERO {
                // The same values, and coarse scales of activations are added to exponents of weights'.
                integers.scale = f16::ONE.to_bits();
                integers.quants.fill(1 << (B::BITS - 1));
            }
            pack_scales::<B>(record, lane, &integers);
            let blocks = quants.chunks_exact_mut(Self::BLOCK_BYTES);
            for (quants, from) in blocks.zip(integers.quants.chunks_exact(BLOCK)) {
                pack_quants::<B>(quants, lane, from);
            }
        }
    }

    fn unpack(panel: &[u8], lane: usize, row: &mut [f32]) {
        let (scales, quants) = panel.split_at(Self::scale_bytes(row.len()));
        let records = scales.chunks_exact(Self::RECORD);
        let quants = quants.chunks_exact(Self::BLOCK_BYTES * B::VALUES / BLOCK);
        for (values, (record, quants)) in row.chunks_exact_mut(B::VALUES).zip(records.zip(quants)) {
            let bits = |from: usize| u16::from_le_bytes([record[from], record[from + 1]]);
            let float = match B::SCALES {
                Scales::Brain => bf16::from_bits(bits(2 * lane)).to_f32(),
                _ => f16::from_bits(bits(2 * lane)).to_f32(),
            };
            let min = match Self::HAS_MIN {
                true => f16::from_bits(bits(HALVES + 2 * lane)).to_f32(),
                false => 0.0,
            };
            for (share, values) in values.chunks_exact_mut(B::SHARING).enumerate() {
                let integer = |index: usize| {
                    f32::from(record[Self::FLOATS + LANES * index + lane].cast_signed())
                };
                let (scale, min) = match B::SCALES {
                    Scales::Super => (float * integer(share), 0.0),
                    Scales::SuperMin => (
                        float * integer(share),
                        -min * integer(Self::RECORD_SHARES + share),
                    ),
                    _ => (float, min),
                };
                for (index, value) in values.iter_mut().enumerate() {
                    let place = share * B::SHARING + index;
                    let quants = &quants[place / BLOCK * Self::BLOCK_BYTES..];
                    let quant = Self::quant(quants, lane, place % BLOCK);
                    *value = scale * B::FACTOR * Self::number(quant);
                    if Self::HAS_MIN {
                        *value += min;
                    }
                }
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
        unsafe {
            let sources = &mut [Self::source(panel, cols)];
            let blocks = cols / BLOCK;
            let [sums] = strip::multiply::<S, _, 1, N, N, false>(s, sources, blocks, columns, 0);
            sums
        }
    }
}

fn pack_scales<B: Blocks>(record: &mut [u8], lane: usize, integers: &Integers) {
    let mut write = |place: usize, bits: u16| {
        record[place + 2 * lane..place + 2 * lane + 2].copy_from_slice(&bits.to_le_bytes());
    };
    write(0, integers.scale);
    if Quantised::<B>::HAS_MIN {
        write(HALVES, integers.min);
    }
    if Quantised::<B>::IS_SUPER {
        let shares = Quantised::<B>::RECORD_SHARES;
        let mins = if Quantised::<B>::HAS_MIN { shares } else { 0 };
        let all = integers.scales[..shares]
            .iter()
            .chain(&integers.mins[..mins]);
        let places = record[Quantised::<B>::FLOATS + lane..]
            .iter_mut()
            .step_by(LANES);
        places
            .zip(all)
            .for_each(|(place, integer)| *place = integer.cast_unsigned());
    }
}

/// Four quants at a time.
fn pack_quants<B: Blocks>(quants: &mut [u8], lane: usize, from: &[u8]) {
    let (low, high) = (Quantised::<B>::LOW, Quantised::<B>::HIGH);
    let mut put = |vector: usize, bits: u32| {
        let place = &mut quants[64 * vector + 4 * lane..64 * vector + 4 * lane + 4];
        let so_far = match B::BITS {
            // Nobody shares these bytes.
            8 => 0,
            _ => u32::from_ne_bytes([place[0], place[1], place[2], place[3]]),
        };
        place.copy_from_slice(&(so_far | bits).to_ne_bytes());
    };
    let everywhere = |bits: usize| ((1_u64 << bits) - 1) as u32 * 0x0101_0101;
    for (group, four) in from.as_chunks::<4>().0.iter().enumerate() {
        let four = u32::from_ne_bytes(*four);
        put(
            group % low,
            (four & everywhere(low)) << (low * (group / low)),
        );
        if high > 0 {
            let bits = (four >> low) & everywhere(high);
            put(low + group % high, bits << (high * (group / high)));
        }
    }
}

/// Reads blocks straight from a panel in memory.
pub(crate) struct PanelSource<B> {
    panel: *const u8,
    quants: *const u8,
    format: PhantomData<B>,
}

impl<B: Blocks> PanelSource<B> {
    /// Where the quants of a block are.
    #[inline(always)]
    fn block(&self, block: usize) -> *const u8 {
        self.quants
            .wrapping_add(block * Quantised::<B>::BLOCK_BYTES)
    }
}

impl<S: Simd, B: Blocks> Source<S> for PanelSource<B> {
    const SHARES: usize = Quantised::<B>::SHARES;
    const HAS_MIN: bool = Quantised::<B>::HAS_MIN;
    const BITS: u16 = 1 << Quantised::<B>::BYTE_BITS;
    const ASKED: usize = 1;

    #[inline(always)]
    fn prefetch(&mut self, s: S, block: usize) {
        let from = S::AHEAD + LINE * Quantised::<B>::first_asked(block);
        for line in 0..Quantised::<B>::LINES_ASKED {
            s.prefetch(self.panel.wrapping_add(from + LINE * line));
        }
    }

    #[inline(always)]
    fn bits(&self) -> usize {
        Quantised::<B>::BYTE_BITS
    }

    #[inline(always)]
    unsafe fn group(&self, s: S, block: usize, group: usize) -> S::Bytes {
        // SAFETY: the caller's: the panel has the block.
        unsafe { Quantised::<B>::group(s, self.block(block), group) }
    }

    #[inline(always)]
    unsafe fn scales(&self, s: S, block: usize) -> BlockScales<S> {
        // SAFETY: the caller's: the panel has the block.
        let [scales, mins] = unsafe { Quantised::<B>::scales(s, self.panel, block) };
        BlockScales { scales, mins }
    }
}
