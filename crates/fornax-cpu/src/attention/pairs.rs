//! Attention in pairs of 16 bits, for vectors that multiply those: a product does for two elements
//! what one of single numbers does for one.
//!
//! Owns where numbers are rounded. Must not know the order of the work.
//!
//! Scores are sums of integers: of a key, each element is rounded to a step of its largest, of a query
//! to a step of what all of them add up to. So a sum is exact and fits 32 bits. Scores end up in
//! exponents, and brain floats, which move one of 20 by up to 0.15, cost the built-in model some 40
//! times the KL divergence that a cache of halves does. Outputs are means, where those are enough:
//! weights and values are brain floats, rounded by at most 2⁻⁸ of themselves, and sums in single
//! precision.
//!
//! Pairs are elements `2i` and `2i + 1` of a head, and lanes `2i` and `2i + 1` of a panel, wherever a
//! tile begins: so a query comes to the same in every tile.

use std::arch::x86_64::{__m512, __m512bh, __m512i};

use super::arithmetic::{Arithmetic, Outputs, Products, Scores, read};
use crate::{
    kv::Element,
    simd::{LANES, Simd, avx512::Avx512, avx512_pairs::Avx512Pairs, each},
};

/// Steps from zero to the largest element of a key.
const KEY_STEPS: f32 = 16_383.0;
/// Steps from zero to the largest element of a query, at most.
const QUERY_STEPS: f32 = 32_767.0;
/// Steps of all elements of a query: times [`KEY_STEPS`] this is below 2³¹.
const ALL_QUERY_STEPS: f32 = 131_072.0;
/// Below, the inverse would overflow; numbers so small count as zeros.
const SMALLEST: f32 = 1e-30;
/// A pair of ones.
const ONES: u32 = 0x3F80_3F80;

/// Scores in integers, outputs in brain floats.
#[derive(Clone, Copy)]
pub(super) struct Pairs(pub Avx512Pairs);

/// Products of integers.
#[derive(Clone, Copy)]
pub(super) struct Integers(Avx512Pairs);

/// Products of brain floats.
#[derive(Clone, Copy)]
pub(super) struct Brains(Avx512Pairs);

impl Arithmetic for Pairs {
    type Simd = Avx512;
    type Scores = Integers;
    type Outputs = Brains;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.0.vectors()
    }
    #[inline(always)]
    fn scores(self) -> Integers {
        Integers(self.0)
    }
    #[inline(always)]
    fn outputs(self) -> Brains {
        Brains(self.0)
    }
}

impl Products for Integers {
    type Simd = Avx512;
    type Line = __m512i;
    type Sum = __m512i;
    const DEPTH: usize = 2;

    #[inline(always)]
    fn nothing(self) -> __m512i {
        self.0.splat_bits(0)
    }
    #[inline(always)]
    fn mul_add(self, a: __m512i, b: __m512i, sum: __m512i) -> __m512i {
        self.0.dot_integers(sum, a, b)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512i {
        // SAFETY: the caller's.
        unsafe { self.0.load_bits(from) }
    }
    #[inline(always)]
    unsafe fn splat(self, from: *const f32) -> __m512i {
        // SAFETY: the caller's.
        self.0.splat_bits(unsafe { *from }.to_bits())
    }
    #[inline(always)]
    fn write(self, to: &mut [f32], line: __m512i) {
        assert!(to.len() >= LANES);
        // SAFETY: asserted.
        unsafe { self.0.store_bits(to.as_mut_ptr(), line) };
    }
}

/// The scale of the 16 keys of a panel.
#[derive(Clone, Copy)]
pub(super) struct KeyScale {
    /// Steps of a one.
    steps: __m512,
    /// A step.
    step: __m512,
}

impl Scores for Integers {
    type Scale = KeyScale;
    const SCALE_LINES: usize = 1;

    /// Of a key with an infinity or a NaN the step is that, and so are its scores.
    #[inline(always)]
    unsafe fn scale<E: Element>(self, panel: *const u8, k_dim: usize) -> KeyScale {
        let s = self.0.vectors();
        let mut largest = [s.splat(0.0); 4];
        for step in (0..k_dim).step_by(4) {
            each!(next in 4, 0 1 2 3 => {
                // SAFETY: the caller's.
                let elements = unsafe { E::key(s, panel, k_dim, (step + next).min(k_dim - 1)) };
                largest[next] = s.larger_magnitude(largest[next], elements);
            });
        }
        let largest = [
            s.larger_magnitude(largest[0], largest[1]),
            s.larger_magnitude(largest[2], largest[3]),
        ];
        let largest = s.larger_magnitude(largest[0], largest[1]);
        let steps = s.div(s.splat(KEY_STEPS), largest);
        KeyScale {
            steps: s.select_below(largest, SMALLEST, s.splat(0.0), steps),
            step: s.mul(largest, s.splat(1.0 / KEY_STEPS)),
        }
    }
    #[inline(always)]
    fn write_scale(self, to: &mut [f32], scale: KeyScale) {
        self.0.vectors().write(to, scale.step);
    }
    #[inline(always)]
    fn read_scale(self, from: &[f32]) -> KeyScale {
        let s = self.0.vectors();
        KeyScale {
            steps: s.splat(0.0),
            step: s.read(from),
        }
    }
    #[inline(always)]
    unsafe fn keys<E: Element>(
        self,
        panel: *const u8,
        k_dim: usize,
        step: usize,
        scale: KeyScale,
    ) -> __m512i {
        let s = self.0.vectors();
        let first = step * 2;
        let second = (first + 1).min(k_dim - 1);
        // SAFETY: the caller's.
        let (first, second) = unsafe {
            (
                E::key(s, panel, k_dim, first),
                E::key(s, panel, k_dim, second),
            )
        };
        let (first, second) = (s.mul(first, scale.steps), s.mul(second, scale.steps));
        self.0.pairs_of_integers(s.to_i32(first), s.to_i32(second))
    }
    #[inline(always)]
    fn factors(self, query: &[f32], scale: f32) -> [f32; 2] {
        let s = self.0.vectors();
        let (mut largest, mut sum) = (s.splat(0.0), s.splat(0.0));
        for elements in query.chunks(LANES) {
            let magnitude = s.larger_magnitude(read(s, elements), s.splat(0.0));
            largest = s.max(largest, magnitude);
            sum = s.add(sum, magnitude);
        }
        let (largest, sum) = (s.largest(largest), s.sum(sum));
        if !sum.is_finite() {
            return [0.0, f32::NAN];
        }
        if largest < SMALLEST {
            return [0.0; 2];
        }
        // Rounding adds half a step to each element at most.
        let all = (ALL_QUERY_STEPS - query.len() as f32).max(1.0);
        let steps = (QUERY_STEPS / largest).min(all / sum);
        [steps, scale / steps]
    }
    #[inline(always)]
    fn words(self, from: &[f32], factor: f32) -> __m512i {
        let s = self.0.vectors();
        let (low, high) = from.split_at(from.len().min(LANES));
        let (low, high) = (read(s, low), read(s, high));
        let factor = s.splat(factor);
        self.0
            .packed_integers(s.to_i32(s.mul(low, factor)), s.to_i32(s.mul(high, factor)))
    }
    #[inline(always)]
    fn score(self, sum: __m512i, scale: KeyScale, factor: f32) -> __m512 {
        let s = self.0.vectors();
        s.mul(s.mul(s.to_f32(sum), scale.step), s.splat(factor))
    }
}

impl Products for Brains {
    type Simd = Avx512;
    type Line = __m512bh;
    type Sum = __m512;
    const DEPTH: usize = 2;

    #[inline(always)]
    fn nothing(self) -> __m512 {
        self.0.vectors().splat(0.0)
    }
    #[inline(always)]
    fn mul_add(self, a: __m512bh, b: __m512bh, sum: __m512) -> __m512 {
        self.0.dot_brains(sum, a, b)
    }
    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> __m512bh {
        // SAFETY: the caller's.
        self.0.brains(unsafe { self.0.load_bits(from) })
    }
    #[inline(always)]
    unsafe fn splat(self, from: *const f32) -> __m512bh {
        // SAFETY: the caller's.
        self.0.brains(self.0.splat_bits(unsafe { *from }.to_bits()))
    }
    #[inline(always)]
    fn write(self, to: &mut [f32], line: __m512bh) {
        assert!(to.len() >= LANES);
        // SAFETY: asserted.
        unsafe { self.0.store_bits(to.as_mut_ptr(), self.0.bits(line)) };
    }
}

impl Outputs for Brains {
    #[inline(always)]
    unsafe fn values<E: Element>(
        self,
        rows: [*const u8; 2],
        v_stride: usize,
        vector: usize,
    ) -> __m512bh {
        let s = self.0.vectors();
        // SAFETY: the caller's.
        unsafe {
            let first = E::value(s, rows[0], v_stride, vector);
            let second = E::value(s, rows[1], v_stride, vector);
            self.0.pairs_of_brains(first, second)
        }
    }
    /// The sum is of the weights as they were rounded: then an output is a mean of values, and what
    /// all values have in common passes exactly.
    #[inline(always)]
    fn weigh(self, scores: &mut [f32], largest: __m512, mut sum: __m512) -> __m512 {
        let s = self.0.vectors();
        let panels = scores.len() / LANES;
        let ones = self.0.brains(self.0.splat_bits(ONES));
        for panel in (0..panels).step_by(2) {
            let low = self.weight(s.read(&scores[panel * LANES..]), largest);
            let high = match panel + 1 < panels {
                true => self.weight(s.read(&scores[(panel + 1) * LANES..]), largest),
                false => s.splat(0.0),
            };
            let pairs = self.0.packed_brains(low, high);
            self.write(&mut scores[panel * LANES / 2..], pairs);
            sum = self.0.dot_brains(sum, pairs, ones);
        }
        sum
    }
}

impl Brains {
    /// What a score weighs beside the largest.
    #[inline(always)]
    fn weight(self, score: __m512, largest: __m512) -> __m512 {
        let s = self.0.vectors();
        let below = s.sub(score, largest);
        self.0.exp2(s.mul(below, s.splat(std::f32::consts::LOG2_E)))
    }
}
