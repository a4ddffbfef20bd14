//! The vector that every kernel is written over: 16 lanes, whatever the registers are.
//!
//! Owns the [`Simd`] trait. A file below implements it for one instruction set with intrinsics and
//! nothing else; algorithms stand once, generic over the trait, in the files of the operations.
//! Must not know operations or layouts.
//!
//! A value of a type that implements [`Simd`] proves that its instructions are there: only
//! [`Isa::run`](crate::Isa) makes one, after asking the processor. So register arithmetic is safe;
//! what takes pointers is not.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_base;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2_vnni;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512_pairs;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_base;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon_i8mm;
#[cfg(target_arch = "aarch64")]
mod neon_quads;
#[cfg(not(target_arch = "aarch64"))]
pub(crate) mod portable;

/// Lanes of every vector.
pub(crate) const LANES: usize = 16;

/// A computation written over vectors, run by [`Isa::run`](crate::Isa).
pub(crate) trait Kernel {
    /// Its result.
    type Output;

    /// Computes with the instructions of `S`. Implementations are `#[inline(always)]`, as is all
    /// they call with `S`, so that it compiles with those instructions.
    fn run<S: Simd>(self, simd: S) -> Self::Output;

    /// The same where vectors multiply pairs of 16 bits, for kernels that make use of it.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_with_pairs(self, simd: avx512_pairs::Avx512Pairs) -> Self::Output
    where
        Self: Sized,
    {
        self.run(simd.vectors())
    }
}

/// Repeats a statement for `0 .. $count`, with `$index` a constant: unlike a loop it can leave no
/// array index for run time, which would push a register tile into memory. `$count` is a constant of
/// up to 16, or up to the length of the list of numbers.
macro_rules! each {
    ($index:ident in $count:expr => $body:expr) => {
        const { assert!($count <= 16, "numbers for more have to be listed") };
        each!($index in $count, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 => $body)
    };
    ($index:ident in $count:expr, $($number:literal)* => $body:expr) => {
        $(if const { $number < $count } {
            #[allow(non_upper_case_globals)]
            const $index: usize = $number;
            $body;
        })*
    };
}
pub(crate) use each;

/// Groups of 4 values in a block.
const GROUPS: usize = 8;

/// One block of 32 values of `N` columns that stand side by side in a tile.
#[derive(Clone, Copy)]
pub(crate) struct BlockColumns {
    /// Other than -128. `[N][32]`
    pub quants: *const i8,
    /// `[N]`
    pub scales: *const f32,
    /// -128 times the sum of the quants under each share of the block. `[N]`, `[N]`
    pub starts: [*const i32; 2],
    /// Where the scales are coarse, what [`columns`](crate::columns) has of them: starts, bases and terms.
    /// `[N]` each
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX-512 has coarse scales")
    )]
    pub coarse: [*const i32; 3],
}

/// Weights of a block of 16 rows, loaded when they are wanted. A trait, for a closure would not be
/// compiled with the instructions of `S` for certain.
pub(crate) trait Groups<S: Simd> {
    /// All that [`bits`](Self::bits) may be, as a set: bit `n` where some weights take `n` bits. For others
    /// nothing has to be compiled.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX2 wants small weights")
    )]
    const BITS: u16;

    /// 4 weights of each row, around 128, or at the bottom of their bytes where `S` [wants
    /// that](Simd::WANTS_SMALL); `index` is below 8. Implementations are `#[inline(always)]`.
    fn group(&self, index: usize) -> S::Bytes;

    /// Bits of a byte that weights take at its bottom, around `2^(bits - 1)`: at the top they are
    /// `2^(8 - bits)` times as much. 8 where they are looked up.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only AVX2 wants small weights")
    )]
    fn bits(&self) -> usize;

    /// What the weights of each row are scaled by, where all of a row are by the same.
    fn scale(&self) -> S::F32;
}

/// One instruction set.
pub(crate) trait Simd: Copy + Send + Sync {
    /// 16 × `f32`
    type F32: Copy;
    /// 16 × `i32`
    type I32: Copy;
    /// 16 groups of 4 unsigned bytes
    type Bytes: Copy;

    /// Columns of the widest register tile that leaves room for the weights: 1, 2, 4, 8 or 16.
    const COLUMNS: usize;
    /// Panels that [`add_block`](Self::add_block) takes at a time where there are many columns, four or
    /// six of which it then takes: 1 or 2.
    const PANELS: usize = 1;

    /// How far ahead a few columns ask for their weights, in bytes: more than a core reads while memory
    /// answers. From 8 to 32 KiB are the same to AVX-512 (Zen 4), for the second level has room; 4 KiB are
    /// too near.
    const AHEAD: usize = 8 << 10;
    /// Whether weights of fewer than 8 bits are wanted at the bottom of their bytes, where sums of their
    /// products fit into fewer bits, and not at the top, where those of all formats are alike.
    const WANTS_SMALL: bool = false;

    fn splat(self, value: f32) -> Self::F32;
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once where the instruction set can.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// To the nearest whole number, halves to even; `|a| < 2²²`.
    fn round(self, a: Self::F32) -> Self::F32;
    /// `2^a` for whole `a` from -126 to 127.
    fn power_of_two(self, a: Self::F32) -> Self::F32;
    /// Lanes of `low` where `a < limit` (false for NaN), of `high` elsewhere.
    fn select_below(self, a: Self::F32, limit: f32, low: Self::F32, high: Self::F32) -> Self::F32;
    /// Lanes `first .. end` of `a`, and `fill` in the others; `first ≤ end ≤ 16`.
    fn keep_lanes(self, a: Self::F32, first: usize, end: usize, fill: f32) -> Self::F32;
    /// Sum of the lanes.
    fn sum(self, a: Self::F32) -> f32;
    /// Largest lane of numbers that are not NaN.
    fn largest(self, a: Self::F32) -> f32;
    /// The larger magnitude of two lanes; NaN where either is NaN.
    fn larger_magnitude(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// Lane `r` of row `c` of the result is lane `c` of row `r`.
    fn transpose(self, rows: [Self::F32; LANES]) -> [Self::F32; LANES];
    /// Lane `r` is the sum of row `r`, taken in an order that is an instruction set's own.
    #[inline(always)]
    fn sum_of_each(self, rows: [Self::F32; LANES]) -> Self::F32 {
        let mut sum = self.splat(0.0);
        for lanes in self.transpose(rows) {
            sum = self.add(sum, lanes);
        }
        sum
    }
    /// Lane `r` is the largest magnitude in row `r`; NaN where one is.
    #[inline(always)]
    fn largest_magnitude_of_each(self, rows: [Self::F32; LANES]) -> Self::F32 {
        let mut largest = self.splat(0.0);
        for lanes in self.transpose(rows) {
            largest = self.larger_magnitude(largest, lanes);
        }
        largest
    }

    fn to_f32(self, a: Self::I32) -> Self::F32;
    /// To the nearest whole number, halves to even.
    fn to_i32(self, a: Self::F32) -> Self::I32;

    /// Every byte shifted to the left, or to the right where `left` is negative, and of the result
    /// the bits in `mask`, none of which may come from a neighbour. `left` is a constant.
    fn shift_bits(self, a: Self::Bytes, left: i32, mask: u8) -> Self::Bytes;
    /// The bits of both.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `table[a]` for bytes below 16.
    fn lookup(self, table: &[u8; LANES], a: Self::Bytes) -> Self::Bytes;
    /// What [`dot`](Self::dot) accumulates on, given `-128 Σ a` over all activations that follow.
    fn dot_start(self, minus_128_sum: i32) -> Self::I32;
    /// With the right start, adds `Σ (weights - 128) · a` over each group of 4 bytes, exactly;
    /// `a` holds 4 signed bytes other than -128.
    fn dot(self, sums: Self::I32, weights: Self::Bytes, a: i32) -> Self::I32;

    /// What products of the fewest bits do in place of [`dot`](Self::dot), for who measures how fast that is;
    /// the sums mean nothing.
    #[inline(always)]
    fn fastest_dot(self, sums: Self::I32, weights: Self::Bytes, a: i32) -> Self::I32 {
        self.dot(sums, weights, a)
    }

    /// Adds to each of `P · N` sums the product of a block of 16 rows with a column: `scale ·
    /// Σ (weights - 128) · a` times `scales`, the integers exactly. With 2 shares the last 4 of 8
    /// groups have scales of their own.
    ///
    /// Weights that stand at the bottom of their bytes count as at the top. How registers are best filled
    /// differs: this is one column after another, as plain vectors do it.
    ///
    /// # Safety
    /// `columns` are `N` columns, their starts of `SHARES` shares. `P` is 1 or [`PANELS`](Self::PANELS),
    /// then with four columns or, where their scales are coarse, six.
    #[inline(always)]
    unsafe fn add_block<const P: usize, const N: usize, const SHARES: usize>(
        self,
        sums: &mut [[Self::F32; N]; P],
        weights: &[impl Groups<Self>; P],
        scales: &[[Self::F32; 2]; P],
        columns: BlockColumns,
    ) {
        const { assert!(!Self::WANTS_SMALL, "products of these are its own") }
        let ([sums], [weights], [scales]) = (&mut sums[..], &weights[..], &scales[..]) else {
            unreachable!("invariant: one panel at a time")
        };
        let mut groups = [weights.group(0); GROUPS];
        each!(index in GROUPS, 1 2 3 4 5 6 7 => groups[index] = weights.group(index));
        let quants = columns.quants.cast::<i32>();
        // SAFETY: the caller's: all offsets are inside of the columns.
        unsafe {
            each!(c in N => {
                let scale = self.splat(*columns.scales.add(c));
                let four = |group: usize| quants.add(c * GROUPS + group).read_unaligned();
                if SHARES == 1 {
                    let mut dot = self.dot_start(*columns.starts[0].add(c));
                    each!(group in GROUPS, 0 1 2 3 4 5 6 7 => {
                        dot = self.dot(dot, groups[group], four(group));
                    });
                    let scale = self.mul(scales[0], scale);
                    sums[c] = self.mul_add(self.to_f32(dot), scale, sums[c]);
                } else {
                    let mut low = self.dot_start(*columns.starts[0].add(c));
                    let mut high = self.dot_start(*columns.starts[1].add(c));
                    each!(group in 4, 0 1 2 3 => {
                        low = self.dot(low, groups[group], four(group));
                        high = self.dot(high, groups[group + 4], four(group + 4));
                    });
                    let sum = self.mul(self.to_f32(low), scales[0]);
                    let sum = self.mul_add(self.to_f32(high), scales[1], sum);
                    sums[c] = self.mul_add(sum, scale, sums[c]);
                }
            });
        }
    }

    /// The same sums of a block that has one share, for columns whose scales are coarse.
    ///
    /// # Safety
    /// As for [`add_block`](Self::add_block), with what coarse scales have.
    #[inline(always)]
    unsafe fn add_coarse_block<const P: usize, const N: usize>(
        self,
        sums: &mut [[Self::F32; N]; P],
        weights: &[impl Groups<Self>; P],
        columns: BlockColumns,
    ) {
        let scales = weights.each_ref().map(|weights| [weights.scale(); 2]);
        // SAFETY: the caller's.
        unsafe { self.add_block::<P, N, 1>(sums, weights, &scales, columns) };
    }

    /// # Safety
    /// 16 readable values at any alignment.
    unsafe fn load(self, from: *const f32) -> Self::F32;
    /// # Safety
    /// 16 readable half-precision values at any alignment.
    unsafe fn load_f16(self, from: *const u16) -> Self::F32;
    /// # Safety
    /// 16 readable brain floats at any alignment.
    unsafe fn load_bf16(self, from: *const u16) -> Self::F32;
    /// # Safety
    /// 16 readable signed bytes at any alignment.
    unsafe fn load_i8(self, from: *const i8) -> Self::F32;
    /// # Safety
    /// 64 readable bytes at any alignment.
    unsafe fn load_bytes(self, from: *const u8) -> Self::Bytes;
    /// # Safety
    /// 64 writable bytes at any alignment.
    unsafe fn store_groups(self, to: *mut u8, a: Self::Bytes);
    /// 16 pairs of brain floats: the first of each, and the second.
    ///
    /// # Safety
    /// 32 readable brain floats at any alignment.
    unsafe fn load_bf16_pairs(self, from: *const u16) -> [Self::F32; 2];
    /// # Safety
    /// 16 writable values at any alignment.
    unsafe fn store(self, to: *mut f32, a: Self::F32);
    /// # Safety
    /// 16 writable values at any alignment.
    unsafe fn store_i32(self, to: *mut i32, a: Self::I32);
    /// Rounds to nearest, halves to even.
    ///
    /// # Safety
    /// 16 writable half-precision values at any alignment.
    unsafe fn store_f16(self, to: *mut u16, a: Self::F32);
    /// Rounds to nearest, halves to even.
    ///
    /// # Safety
    /// 16 writable brain floats at any alignment.
    unsafe fn store_bf16(self, to: *mut u16, a: Self::F32);
    /// Lanes from -128 to 127 as bytes.
    ///
    /// # Safety
    /// 16 writable bytes.
    unsafe fn store_bytes(self, to: *mut i8, a: Self::I32);
    /// Asks memory for the cache line at an address that need not be readable. It comes as far as the
    /// second level where that can be said: the first one waits for a dozen or two at a time, which is
    /// fewer than memory has to be asked for to be always at work.
    fn prefetch(self, address: *const u8);
    /// Asks the caches for the line at an address that need not be readable, into the first one.
    fn prefetch_near(self, address: *const u8);

    /// The first 16 values of a slice.
    #[inline(always)]
    fn read(self, values: &[f32]) -> Self::F32 {
        assert!(values.len() >= LANES);
        // SAFETY: asserted.
        unsafe { self.load(values.as_ptr()) }
    }

    /// Up to 16 values, `fill` behind them.
    #[inline(always)]
    fn read_up_to(self, values: &[f32], fill: f32) -> Self::F32 {
        let mut padded = [fill; LANES];
        let count = values.len().min(LANES);
        padded[..count].copy_from_slice(&values[..count]);
        self.read(&padded)
    }

    /// Overwrites the first 16 values of a slice.
    #[inline(always)]
    fn write(self, values: &mut [f32], a: Self::F32) {
        assert!(values.len() >= LANES);
        // SAFETY: asserted.
        unsafe { self.store(values.as_mut_ptr(), a) }
    }

    /// Overwrites up to 16 values.
    #[inline(always)]
    fn write_up_to(self, values: &mut [f32], a: Self::F32) {
        let mut lanes = [0.0; LANES];
        self.write(&mut lanes, a);
        let count = values.len().min(LANES);
        values[..count].copy_from_slice(&lanes[..count]);
    }
}
