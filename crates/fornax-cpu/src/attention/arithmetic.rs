//! What attention multiplies with.
//!
//! Owns the traits of an arithmetic, single precision, and which of the two a cache is for. Must not
//! know the order of the work. Where vectors multiply pairs, caches of at most 16 bits an element go
//! through [`pairs`](super::pairs); a cache in single precision was asked for by somebody who wants
//! it, and stays so.

use fornax_backend::KvType;

use crate::{
    isa::Isa,
    kv::Element,
    math,
    simd::{Kernel, LANES, Simd},
};

/// Lines times words, added up by lane.
///
/// A line is 16 words of 32 bits: of K, one or two elements of 16 keys; of V, 16 elements of one or
/// two positions. It meets a word of a query, or of its weights, of as many. Scratch holds words as
/// `f32`, whatever they are.
pub(super) trait Products: Copy {
    type Simd: Simd;
    /// 16 words
    type Line: Copy;
    /// 16 sums
    type Sum: Copy;
    /// Elements of a word, whose products are added up.
    const DEPTH: usize;

    /// Sums of nothing.
    fn nothing(self) -> Self::Sum;
    /// `sum + a · b` in every lane.
    fn mul_add(self, a: Self::Line, b: Self::Line, sum: Self::Sum) -> Self::Sum;
    /// # Safety
    /// 16 readable words.
    unsafe fn load(self, from: *const f32) -> Self::Line;
    /// The same word 16 times.
    ///
    /// # Safety
    /// A readable word.
    unsafe fn splat(self, from: *const f32) -> Self::Line;
    /// Overwrites the first 16 words.
    fn write(self, to: &mut [f32], line: Self::Line);
}

/// Products of keys and queries.
pub(super) trait Scores: Products {
    /// What makes words of the keys of a panel, and scores of their sums.
    type Scale: Copy;
    /// Lines that it takes behind the words of a panel.
    const SCALE_LINES: usize;

    /// # Safety
    /// `panel` points to a panel of `k_dim` vectors.
    unsafe fn scale<E: Element>(self, panel: *const u8, k_dim: usize) -> Self::Scale;
    /// Overwrites the first [`SCALE_LINES`](Self::SCALE_LINES) lines.
    fn write_scale(self, to: &mut [f32], scale: Self::Scale);
    /// What was written, for [`score`](Self::score).
    fn read_scale(self, from: &[f32]) -> Self::Scale;

    /// The elements `step * DEPTH ..` of the 16 keys of a panel. Behind the last one is any that is
    /// there, for the query has zero.
    ///
    /// # Safety
    /// `panel` points to a panel of `k_dim` vectors, and `step * DEPTH < k_dim`.
    unsafe fn keys<E: Element>(
        self,
        panel: *const u8,
        k_dim: usize,
        step: usize,
        scale: Self::Scale,
    ) -> Self::Line;

    /// What the elements of a query are multiplied with to become [words](Self::words), and its sums
    /// to become scores, which are `scale` times the product with a key.
    fn factors(self, query: &[f32], scale: f32) -> [f32; 2];

    /// Up to `16 * DEPTH` elements of a query, times the first factor, in their order; zero behind
    /// them.
    fn words(self, from: &[f32], factor: f32) -> Self::Line;

    /// Scores of 16 keys with a query of this second factor.
    fn score(self, sum: Self::Sum, scale: Self::Scale, factor: f32) -> <Self::Simd as Simd>::F32;
}

/// Products of values and weights.
pub(super) trait Outputs: Products {
    /// 16 elements, `vector` vectors behind their start, of as many positions as a word has elements:
    /// of the first row, or of both.
    ///
    /// # Safety
    /// The rows are of `v_stride` elements, these among them.
    unsafe fn values<E: Element>(
        self,
        rows: [*const u8; 2],
        v_stride: usize,
        vector: usize,
    ) -> Self::Line;

    /// Turns the scores of a query, less its largest, into weights: words in their order, from the
    /// start of the scores on. Returns the sum with theirs. Whole vectors.
    fn weigh(self, scores: &mut [f32], largest: Self::Sum, sum: Self::Sum) -> Self::Sum;
}

/// What scores and outputs are computed with.
pub(super) trait Arithmetic: Copy {
    type Simd: Simd;
    type Scores: Scores<Simd = Self::Simd>;
    type Outputs: Outputs<Simd = Self::Simd, Sum = <Self::Simd as Simd>::F32>;

    fn simd(self) -> Self::Simd;
    fn scores(self) -> Self::Scores;
    fn outputs(self) -> Self::Outputs;
}

/// A computation that is the same in either arithmetic. Implementations are `#[inline(always)]`.
pub(super) trait Work {
    /// Whether it is for a cache in single precision alone: then nothing is compiled for pairs.
    const IS_SINGLE: bool = false;

    fn compute<A: Arithmetic>(self, a: A);
}

/// Runs it in the arithmetic for a cache of such elements.
pub(super) fn run<W: Work>(isa: Isa, element: KvType, work: W) {
    match element {
        KvType::F32 => isa.run(In(work)),
        _ if const { W::IS_SINGLE } => unreachable!("invariant: its cache is in single precision"),
        _ => isa.run_with_pairs(In(work)),
    }
}

/// A work as a kernel.
struct In<W>(W);

impl<W: Work> Kernel for In<W> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.compute(Single(s));
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn run_with_pairs(self, s: crate::simd::avx512_pairs::Avx512Pairs) {
        self.0.compute(super::pairs::Pairs(s));
    }
}

/// Single precision throughout.
#[derive(Clone, Copy)]
struct Single<S>(S);

impl<S: Simd> Arithmetic for Single<S> {
    type Simd = S;
    type Scores = Self;
    type Outputs = Self;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }
    #[inline(always)]
    fn scores(self) -> Self {
        self
    }
    #[inline(always)]
    fn outputs(self) -> Self {
        self
    }
}

impl<S: Simd> Products for Single<S> {
    type Simd = S;
    type Line = S::F32;
    type Sum = S::F32;
    const DEPTH: usize = 1;

    #[inline(always)]
    fn nothing(self) -> S::F32 {
        self.0.splat(0.0)
    }
    #[inline(always)]
    fn mul_add(self, a: S::F32, b: S::F32, sum: S::F32) -> S::F32 {
        self.0.mul_add(a, b, sum)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { self.0.load(from) }
    }
    #[inline(always)]
    unsafe fn splat(self, from: *const f32) -> S::F32 {
        // SAFETY: the caller's.
        self.0.splat(unsafe { *from })
    }
    #[inline(always)]
    fn write(self, to: &mut [f32], line: S::F32) {
        self.0.write(to, line);
    }
}

impl<S: Simd> Scores for Single<S> {
    type Scale = ();
    const SCALE_LINES: usize = 0;

    #[inline(always)]
    unsafe fn scale<E: Element>(self, _: *const u8, _: usize) {}
    #[inline(always)]
    fn write_scale(self, _: &mut [f32], (): ()) {}
    #[inline(always)]
    fn read_scale(self, _: &[f32]) {}
    #[inline(always)]
    unsafe fn keys<E: Element>(
        self,
        panel: *const u8,
        k_dim: usize,
        step: usize,
        (): (),
    ) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { E::key(self.0, panel, k_dim, step) }
    }
    #[inline(always)]
    fn factors(self, _: &[f32], scale: f32) -> [f32; 2] {
        [scale, 1.0]
    }
    #[inline(always)]
    fn words(self, from: &[f32], factor: f32) -> S::F32 {
        self.0.mul(read(self.0, from), self.0.splat(factor))
    }
    #[inline(always)]
    fn score(self, sum: S::F32, (): (), _: f32) -> S::F32 {
        sum
    }
}

impl<S: Simd> Outputs for Single<S> {
    #[inline(always)]
    unsafe fn values<E: Element>(
        self,
        rows: [*const u8; 2],
        v_stride: usize,
        vector: usize,
    ) -> S::F32 {
        // SAFETY: the caller's.
        unsafe { E::value(self.0, rows[0], v_stride, vector) }
    }
    #[inline(always)]
    fn weigh(self, scores: &mut [f32], largest: S::F32, mut sum: S::F32) -> S::F32 {
        let s = self.0;
        for scores in scores.chunks_exact_mut(LANES) {
            let weight = math::exp(s, s.sub(s.read(scores), largest));
            s.write(scores, weight);
            sum = s.add(sum, weight);
        }
        sum
    }
}

/// Up to 16 values, zero behind them.
#[inline(always)]
pub(super) fn read<S: Simd>(s: S, from: &[f32]) -> S::F32 {
    match from.len() {
        LANES => s.read(from),
        _ => s.read_up_to(from, 0.0),
    }
}
