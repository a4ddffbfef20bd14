//! What AVX-512 with BF16 has beside the vectors of [`Avx512`]: products of pairs, of brain floats and
//! of integers of 16 bits. Must not know operations.

use std::arch::x86_64::*;

use super::avx512::Avx512;

/// Proof that the processor multiplies pairs in vectors.
///
/// Instructions for brain floats take numbers below the smallest normal one for zero, and give zero for
/// them.
#[derive(Clone, Copy)]
pub(crate) struct Avx512Pairs(Avx512);

/// Intrinsics that touch registers only.
macro_rules! registers {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that the processor has the instructions.
        unsafe { $($body)* }
    };
}

impl Avx512Pairs {
    /// # Safety
    /// The processor has AVX-512 BF16 and what [`Avx512::new`] asks for.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        // SAFETY: the caller's.
        Self(unsafe { Avx512::new() })
    }

    /// The vectors of the same processor.
    #[inline(always)]
    pub fn vectors(self) -> Avx512 {
        self.0
    }

    /// Pair `i` is lane `i` of both, rounded to nearest, halves to even.
    #[inline(always)]
    pub fn pairs_of_brains(self, first: __m512, second: __m512) -> __m512bh {
        // SAFETY: 32 places are read; `self` proves that the processor has the instructions.
        unsafe {
            let places = _mm512_loadu_si512(INTERLEAVED.as_ptr().cast());
            let packed = self.bits(self.packed_brains(first, second));
            self.brains(_mm512_permutexvar_epi16(places, packed))
        }
    }

    /// All lanes of one vector and then of another, rounded to nearest, halves to even.
    #[inline(always)]
    pub fn packed_brains(self, low: __m512, high: __m512) -> __m512bh {
        registers! { _mm512_cvtne2ps_pbh(high, low) }
    }

    /// To each lane the products of a pair, one after the other.
    #[inline(always)]
    pub fn dot_brains(self, sums: __m512, a: __m512bh, b: __m512bh) -> __m512 {
        registers! { _mm512_dpbf16_ps(sums, a, b) }
    }

    /// Pair `i` is the low halves of lane `i` of both.
    #[inline(always)]
    pub fn pairs_of_integers(self, first: __m512i, second: __m512i) -> __m512i {
        const UPPER: u32 = 0xAAAA_AAAA;
        registers! { _mm512_mask_blend_epi16(UPPER, first, _mm512_slli_epi32::<16>(second)) }
    }

    /// The low halves of all lanes of one vector and then of another.
    #[inline(always)]
    pub fn packed_integers(self, low: __m512i, high: __m512i) -> __m512i {
        registers! {
            let low = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(low));
            _mm512_inserti64x4::<1>(low, _mm512_cvtepi32_epi16(high))
        }
    }

    /// To each lane the products of a pair, exactly but for what does not fit.
    #[inline(always)]
    pub fn dot_integers(self, sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        registers! { _mm512_dpwssd_epi32(sums, a, b) }
    }

    /// 16 times the same pair.
    #[inline(always)]
    pub fn splat_bits(self, pair: u32) -> __m512i {
        registers! { _mm512_set1_epi32(pair.cast_signed()) }
    }

    /// The same bits as brain floats.
    #[inline(always)]
    pub fn brains(self, bits: __m512i) -> __m512bh {
        // SAFETY: both are 512 bits, any of which are numbers.
        unsafe { std::mem::transmute(bits) }
    }

    /// The bits of brain floats.
    #[inline(always)]
    pub fn bits(self, brains: __m512bh) -> __m512i {
        // SAFETY: as above.
        unsafe { std::mem::transmute(brains) }
    }

    /// `2^a` for `a` up to 127, within 3.5e-6 of it; 0 from -150 down.
    ///
    /// The fraction of `a` goes through the polynomial that is nearest to `2^f` relative to it; a
    /// whole number it takes exactly to a power.
    #[inline(always)]
    pub fn exp2(self, a: __m512) -> __m512 {
        registers! {
            // Of two numbers the second is the result where either is none.
            let a = _mm512_max_ps(_mm512_set1_ps(-200.0), a);
            let f = _mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(a);
            let mut sum = _mm512_set1_ps(EXP2[0]);
            for coefficient in &EXP2[1..] {
                sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(*coefficient));
            }
            _mm512_scalef_ps(sum, a)
        }
    }

    /// # Safety
    /// 16 readable pairs at any alignment.
    #[inline(always)]
    pub unsafe fn load_bits(self, from: *const f32) -> __m512i {
        // SAFETY: the caller's.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    /// # Safety
    /// Room for 16 pairs at any alignment.
    #[inline(always)]
    pub unsafe fn store_bits(self, to: *mut f32, a: __m512i) {
        // SAFETY: the caller's.
        unsafe { _mm512_storeu_si512(to.cast(), a) }
    }
}

/// Places that put two vectors of 16 halves one behind the other into pairs.
const INTERLEAVED: [u16; 32] = {
    let mut places = [0; 32];
    let mut pair = 0;
    while pair < 16 {
        places[2 * pair] = pair as u16;
        places[2 * pair + 1] = 16 + pair as u16;
        pair += 1;
    }
    places
};

/// Of [`exp2`](Avx512Pairs::exp2), from the highest power down.
const EXP2: [f32; 5] = [0.013_426_684, 0.052_242_473, 0.241_280_2, 0.693_044_84, 1.0];

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::{
        isa::Isa,
        simd::{Kernel, LANES, Simd},
    };

    /// Runs a function with the proof.
    struct With<F>(F);

    impl<F: FnOnce(Avx512Pairs)> Kernel for With<F> {
        type Output = ();

        fn run<S: Simd>(self, _: S) {
            unreachable!("pairs were asked for")
        }
        fn run_with_pairs(self, simd: Avx512Pairs) {
            (self.0)(simd);
        }
    }

    fn with_pairs(test: impl FnOnce(Avx512Pairs)) {
        let isa: Isa = "avx512-bf16".parse().expect("AVX-512 BF16");
        isa.run_with_pairs(With(test));
    }

    /// 16 numbers of both signs, of which some lie half-way between brain floats.
    fn numbers(seed: u32) -> [f32; LANES] {
        std::array::from_fn(|lane| {
            let bits = (seed + lane as u32).wrapping_mul(2_654_435_761);
            let number = (bits >> 8) as f32 / (1 << 22) as f32 - 2.0;
            match lane % 3 {
                0 => f32::from_bits(number.to_bits() & 0xFFFF_8000),
                _ => number,
            }
        })
    }

    fn words(pairs: Avx512Pairs, line: __m512i) -> [u32; LANES] {
        let mut words = [0.0; LANES];
        // SAFETY: room for 16.
        unsafe { pairs.store_bits(words.as_mut_ptr(), line) };
        words.map(f32::to_bits)
    }

    fn lanes(pairs: Avx512Pairs, vector: __m512) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        pairs.vectors().write(&mut lanes, vector);
        lanes
    }

    fn pair(first: f32, second: f32) -> u32 {
        let bits = |value| u32::from(bf16::from_f32(value).to_bits());
        bits(first) | bits(second) << 16
    }

    #[test]
    #[cfg_attr(no_avx512_bf16, ignore = "needs a processor with AVX-512 BF16")]
    fn pairs_are_rounded_to_their_places() {
        with_pairs(|pairs| {
            let (s, a, b) = (pairs.vectors(), numbers(1), numbers(50));
            let interleaved = words(
                pairs,
                pairs.bits(pairs.pairs_of_brains(s.read(&a), s.read(&b))),
            );
            let behind = words(
                pairs,
                pairs.bits(pairs.packed_brains(s.read(&a), s.read(&b))),
            );
            let all = [a, b].concat();
            for lane in 0..LANES {
                assert_eq!(interleaved[lane], pair(a[lane], b[lane]));
                assert_eq!(behind[lane], pair(all[2 * lane], all[2 * lane + 1]));
            }
        });
    }

    #[test]
    #[cfg_attr(no_avx512_bf16, ignore = "needs a processor with AVX-512 BF16")]
    fn products_of_pairs_are_added_up() {
        with_pairs(|pairs| {
            let s = pairs.vectors();
            let [a, b, c, d, sum] = [3, 40, 70, 100, 130].map(numbers);
            let (line, other) = (
                pairs.pairs_of_brains(s.read(&a), s.read(&b)),
                pairs.pairs_of_brains(s.read(&c), s.read(&d)),
            );
            let found = lanes(pairs, pairs.dot_brains(s.read(&sum), line, other));
            let rounded = |value| bf16::from_f32(value).to_f64();
            for lane in 0..LANES {
                let products = [(a, c), (b, d)].map(|(x, y)| rounded(x[lane]) * rounded(y[lane]));
                let expected = f64::from(sum[lane]) + products[0] + products[1];
                assert!(
                    (f64::from(found[lane]) - expected).abs() < 2e-6,
                    "lane {lane}"
                );
            }
        });
    }

    #[test]
    #[cfg_attr(no_avx512_bf16, ignore = "needs a processor with AVX-512 BF16")]
    fn powers_of_two_are_near() {
        with_pairs(|pairs| {
            let s = pairs.vectors();
            for tenth in -1200..1200 {
                let from: [f32; LANES] =
                    std::array::from_fn(|lane| tenth as f32 / 10.0 + lane as f32 / 160.0);
                let found = lanes(pairs, pairs.exp2(s.read(&from)));
                for (from, found) in from.into_iter().zip(found) {
                    let ratio = f64::from(found) / f64::from(from).exp2();
                    assert!((ratio - 1.0).abs() < 3.5e-6, "2^{from} is {found}");
                }
            }
            let ends = [0.0, 1.0, -151.0, -1e30, f32::NEG_INFINITY, f32::NAN];
            let found = lanes(pairs, pairs.exp2(s.read_up_to(&ends, 0.0)));
            assert_eq!(found[..5], [1.0, 2.0, 0.0, 0.0, 0.0]);
            assert!(found[5].is_nan());
        });
    }
}
