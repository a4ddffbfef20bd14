//! What this processor can do at most: two kernels that do one thing each and nothing else.
//!
//! For people who measure and want to know how far from the limit they are. No operation uses it.

use std::{hint::black_box, time::Instant};

use fornax_backend::BackendError;

use crate::{
    Cpu,
    isa::Isa,
    memory::Memory,
    pool::Pool,
    simd::{Kernel, LANES, Simd, each},
};

/// Bytes that are read: many times what the caches of today's processors hold.
const READ_BYTES: usize = 1 << 30;
/// Floats of a piece of them.
const PIECE: usize = 1 << 18;
/// Times that each kernel runs; the fastest counts, for nothing but disturbance makes one slower.
const TRIES: usize = 4;

/// Limits of some threads on this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Bytes a second from memory.
    pub read: f64,
    /// Multiply-adds of bytes a second, on data in the first cache; with plain AVX2 of bytes that hold few
    /// bits, for it multiplies whole ones half as fast.
    pub dot: f64,
}

impl Cpu {
    /// Measures the limits of the threads and the instruction set chosen; takes about a second.
    ///
    /// # Errors
    /// No memory to read.
    pub fn ceilings(&mut self) -> Result<Ceilings, BackendError> {
        let (isa, pool) = self.cores.parts();
        Ok(Ceilings {
            read: read(isa, pool)?,
            dot: dot(isa, pool),
        })
    }
}

fn read(isa: Isa, pool: &mut Pool) -> Result<f64, BackendError> {
    let mut memory = Memory::<f32>::zeroed(READ_BYTES / size_of::<f32>())?;
    // What was never written may all be one page of zeros, which the caches hold.
    let parts = crate::memory::Parts::new(&mut memory);
    let pieces = READ_BYTES / size_of::<f32>() / PIECE;
    pool.run(pieces, |piece, _| {
        // SAFETY: each piece is another place.
        unsafe { parts.part(piece * PIECE, PIECE) }.fill(piece as f32);
    });
    let mut best = f64::INFINITY;
    // The processor's own prefetch alone is slower on some machines and faster on others.
    for asks in [false, true] {
        for _ in 0..TRIES {
            let start = Instant::now();
            pool.run(pieces, |piece, _| {
                let values = &memory[piece * PIECE..(piece + 1) * PIECE];
                black_box(isa.run(Read { values, asks }));
            });
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(READ_BYTES as f64 / best)
}

/// Looks at every value.
struct Read<'a> {
    values: &'a [f32],
    /// Whether it asks for memory ahead, as products do.
    asks: bool,
}

impl Kernel for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let mut largest = [simd.splat(0.0); 4];
        for group in self.values.chunks_exact(4 * LANES) {
            if self.asks {
                for line in 0..4 {
                    let address = group.as_ptr().cast::<u8>();
                    simd.prefetch(address.wrapping_add(S::AHEAD + line * 64));
                }
            }
            for (largest, values) in largest.iter_mut().zip(group.chunks_exact(LANES)) {
                *largest = simd.max(*largest, simd.read(values));
            }
        }
        let [a, b, c, d] = largest;
        simd.largest(simd.max(simd.max(a, b), simd.max(c, d)))
    }
}

/// Steps of [`Dots`] in a piece: some tens of milliseconds in all.
const STEPS: usize = 1 << 17;
/// Vectors of weights and groups of activations that are gone through in turn.
const VECTORS: usize = 32;

fn dot(isa: Isa, pool: &mut Pool) -> f64 {
    let weights: Vec<u8> = (0..VECTORS * 64).map(|at| (at % 251) as u8).collect();
    let activations: Vec<i32> = (0..VECTORS * 16)
        .map(|at| (at % 127) as i32 * 0x0101_0101)
        .collect();
    let threads = pool.threads();
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        pool.run(threads * 4, |_, _| {
            black_box(isa.run_with_dots(Dots {
                weights: black_box(&weights),
                activations: black_box(&activations),
            }));
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    // A vector holds 64 bytes.
    (threads * 4 * STEPS * isa.columns() * 64) as f64 / best
}

/// The inner loop of a product: a vector of weights with the widest tile of activations.
struct Dots<'a> {
    /// `[VECTORS][64]`
    weights: &'a [u8],
    /// `[VECTORS][16]`, 4 bytes each
    activations: &'a [i32],
}

impl Kernel for Dots<'_> {
    type Output = i32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> i32 {
        assert_eq!(self.weights.len(), VECTORS * 64);
        let activations: &[i32; VECTORS * 16] = self
            .activations
            .try_into()
            .expect("invariant: made so long");
        let mut sums = [simd.dot_start(0); 16];
        for step in 0..STEPS {
            let at = step % VECTORS;
            // SAFETY: 64 bytes of the vector `at`, asserted to be there.
            let weights = unsafe { simd.load_bytes(self.weights.as_ptr().add(at * 64)) };
            each!(column in S::COLUMNS => {
                sums[column] = simd.fastest_dot(sums[column], weights, activations[at * 16 + column]);
            });
        }
        let sums = sums.map(|sums| simd.sum(simd.to_f32(sums)) as i32);
        sums.iter().fold(0, |total, &sum| total.wrapping_add(sum))
    }
}
