//! The integer kernels against a scalar twin, bit for bit, what must not depend on threads, and the
//! conformance suite.
//!
//! What is computed here is computed by `fornax_cpu`, the library as others link it, and not by `crate`, which
//! would have kernels of its own: minutes more to compile. What is there of `crate` runs on single blocks.

mod brains;
mod conformance;
mod largest;
mod library;
mod threads;
mod together;

use std::marker::PhantomData;

use fornax_gguf::{DType, TensorView};
use half::{bf16, f16};

use crate::{
    Isa,
    memory::Arena,
    panel::{
        BLOCK,
        blocks::{Blocks, Integers, Quantised, Scales},
        is_quantised, with_blocks,
    },
    pool::Pool,
    simd::{Kernel, LANES, Simd},
    weight::Weight,
};
use library::{Matrix, cpu};

/// The instruction sets of this processor, or that one alone which an emulated processor is there for: others
/// are tested on a processor that has nothing beyond them.
fn tested() -> impl Iterator<Item = Isa> {
    let only = std::env::var("FORNAX_EXPECTED_ISA").ok();
    Isa::available().filter(move |isa| only.as_ref().is_none_or(|only| isa.to_string() == *only))
}

/// SplitMix64 (Steele, Lea & Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn byte(&mut self) -> i8 {
        (self.next() >> 32) as i8
    }

    /// From -1 to 1.
    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// `Σ weights · a` of 16 rows of 32 weights, by [`Simd::dot`].
struct Dots<'a> {
    /// `[16][32]`
    weights: &'a [[i8; BLOCK]; LANES],
    a: &'a [i8; BLOCK],
}

impl Kernel for Dots<'_> {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> [f32; LANES] {
        let sum: i32 = self.a.iter().map(|a| i32::from(*a)).sum();
        let mut sums = s.dot_start(-128 * sum);
        for (group, a) in self.a.as_chunks::<4>().0.iter().enumerate() {
            let mut bytes = [0; 4 * LANES];
            for (row, weights) in self.weights.iter().enumerate() {
                for (byte, weight) in bytes[4 * row..].iter_mut().zip(&weights[4 * group..][..4]) {
                    *byte = weight.cast_unsigned() ^ 0x80;
                }
            }
            // SAFETY: 64 bytes.
            let bytes = unsafe { s.load_bytes(bytes.as_ptr()) };
            sums = s.dot(sums, bytes, i32::from_ne_bytes(a.map(i8::cast_unsigned)));
        }
        let mut out = [0.0; LANES];
        s.write(&mut out, s.to_f32(sums));
        out
    }
}

/// No sum exceeds 32 · 128 · 128 = 2¹⁹, so that `f32` holds it exactly.
fn twin(weights: &[[i8; BLOCK]; LANES], a: &[i8; BLOCK]) -> [f32; LANES] {
    weights.map(|row| {
        let products = row
            .iter()
            .zip(a)
            .map(|(weight, a)| i32::from(*weight) * i32::from(*a));
        products.sum::<i32>() as f32
    })
}

#[test]
fn integer_dots_are_exact_on_random_blocks() {
    let mut random = Random(1);
    for _ in 0..500 {
        let weights = std::array::from_fn(|_| std::array::from_fn(|_| random.byte()));
        let a = std::array::from_fn(|_| random.byte().max(-127));
        for isa in tested() {
            assert_eq!(
                isa.run_with_dots(Dots {
                    weights: &weights,
                    a: &a
                }),
                twin(&weights, &a),
                "{isa}"
            );
        }
    }
}

#[test]
fn integer_dots_are_exact_on_extremes() {
    for weight in [-128, -127, -1, 0, 1, 127] {
        for a in [-127, -1, 0, 1, 127] {
            let alternating = std::array::from_fn(|i| if i % 2 == 0 { a } else { -a });
            for a in [[a; BLOCK], alternating] {
                let weights = [[weight; BLOCK]; LANES];
                for isa in tested() {
                    let dots = isa.run_with_dots(Dots {
                        weights: &weights,
                        a: &a,
                    });
                    assert_eq!(dots, twin(&weights, &a), "{isa}: {weight} times {a:?}");
                }
            }
        }
    }
}

/// Bytes of a block at which a half-precision number lies.
fn half_places(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::MXFP4 => &[],
        _ => &[0],
    }
}

/// Rows of blocks whose bytes `byte` gives, and with scales among the extremes of their type.
fn blocks(
    random: &mut Random,
    dtype: DType,
    count: usize,
    byte: impl Fn(&mut Random) -> u8,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let start = bytes.len();
        bytes.extend((0..dtype.block_bytes()).map(|_| byte(random)));
        for place in half_places(dtype) {
            let scale = [
                f16::from_f32(random.float()),
                f16::MIN_POSITIVE_SUBNORMAL,
                f16::ZERO,
                f16::NEG_ZERO,
            ];
            let scale = scale[random.next() as usize % 6 % 4].to_le_bytes();
            bytes[start + place..start + place + 2].copy_from_slice(&scale);
        }
        if dtype == DType::MXFP4 {
            bytes[start] = [0, 1, 2, 120, 127, 133][random.next() as usize % 6];
        }
    }
    bytes
}

/// Values under one scale as the kernels see them: `scale * number + min`.
struct Share {
    scale: f32,
    min: Option<f32>,
    numbers: Vec<i32>,
}

/// The scales and numbers of a file's block.
fn shares<B: Blocks>(_: PhantomData<Quantised<B>>, block: &[u8], fused: bool) -> Vec<Share> {
    let mut integers = Integers::zero();
    B::take_apart(block, &mut integers);
    let unit = match B::TABLE {
        Some(_) => B::FACTOR,
        None => B::FACTOR / 2.0_f32.powi(8 - B::BITS as i32),
    };
    let number = |quant: &u8| match B::TABLE {
        Some(table) => i32::from(table[usize::from(*quant)]),
        None => (i32::from(*quant) << (8 - B::BITS)) - 128,
    };
    let half = |bits| f16::from_bits(bits).to_f32();
    let quants = integers.quants[..B::VALUES].chunks(B::SHARING);
    let shares = quants.enumerate().map(|(index, quants)| {
        let factor = f32::from(integers.scales[index]);
        let (scale, min) = match B::SCALES {
            Scales::Half => (half(integers.scale) * unit, None),
            Scales::Brain => (bf16::from_bits(integers.scale).to_f32() * unit, None),
            Scales::HalfMin => (half(integers.scale) * unit, Some(half(integers.min))),
            Scales::Super => (half(integers.scale) * unit * factor, None),
            Scales::SuperMin => {
                let min = half(integers.min) * -f32::from(integers.mins[index]);
                (half(integers.scale) * unit * factor, Some(min))
            }
        };
        // Numbers are counted from the middle: 128 steps of it are part of the minimum.
        let min = min.map(|min| mul_add(scale, 128.0, min, fused));
        let numbers = quants.iter().map(number).collect();
        Share {
            scale,
            min,
            numbers,
        }
    });
    shares.collect()
}

fn mul_add(a: f32, b: f32, c: f32, fused: bool) -> f32 {
    if fused { a.mul_add(b, c) } else { a * b + c }
}

/// The least `2^e`, or that with a smaller power of two more or less, that is no lower.
fn coarse(scale: f32) -> f32 {
    let power = |e: i32| f32::from_bits(((127 + e) as u32) << 23);
    let e = (-100..100).find(|e| power(*e) >= scale).unwrap();
    let sums = (1..=24).flat_map(|k| [power(e) - power(e - k), power(e - 1) + power(e - 1 - k)]);
    let all = sums.chain([power(e)]);
    all.filter(|sum| *sum >= scale)
        .min_by(f32::total_cmp)
        .unwrap()
}

/// What the product of a quantised weight and quantised activations must be, to the last bit:
/// an exact integer for every scale, then the scales, then the minimums, fused where `fused`. Scales of
/// activations are coarse where `is_coarse`.
fn product_twin(row: &[Share], x: &[f32], fused: bool, is_coarse: bool) -> f32 {
    let mut sum = 0.0;
    let mut shares = row.iter();
    for x in x.chunks(BLOCK) {
        let largest = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let (scale, inverse) = match is_coarse {
            true => (coarse(largest / 127.0), 1.0 / coarse(largest / 127.0)),
            false => (largest / 127.0, 127.0 / largest),
        };
        let quants: Vec<i32> = x
            .iter()
            .map(|x| (x * inverse).round_ties_even() as i32)
            .collect();
        let mut left = &quants[..];
        let mut halves = Vec::new();
        while !left.is_empty() {
            let share = shares.next().unwrap();
            let (quants, rest) = left.split_at(share.numbers.len());
            let dot: i32 = quants.iter().zip(&share.numbers).map(|(a, b)| a * b).sum();
            halves.push((share, dot as f32, quants.iter().sum::<i32>() as f32));
            left = rest;
        }
        sum = match &halves[..] {
            [(share, dot, _)] => mul_add(*dot, share.scale * scale, sum, fused),
            [(low, low_dot, _), (high, high_dot, _)] => {
                let both = mul_add(*high_dot, high.scale, low_dot * low.scale, fused);
                mul_add(both, scale, sum, fused)
            }
            _ => unreachable!(),
        };
        for (share, _, total) in &halves {
            if let Some(min) = share.min {
                sum = mul_add(min, scale * total, sum, fused);
            }
        }
    }
    sum
}

fn quantised() -> impl Iterator<Item = DType> {
    DType::all()
        .iter()
        .copied()
        .filter(|dtype| dtype.block_len() > 1)
}

/// Compares the products of a weight `[35, cols]` and up to 23 columns with their twins.
fn check_products(dtype: DType, bytes: &[u8], cols: usize, x: &[f32]) {
    let (rows, most) = (35, x.len() / cols);
    let shape = [rows, cols];
    let view = TensorView {
        name: "test",
        dtype,
        shape: &shape,
        data: bytes,
    };
    for isa in tested() {
        let fused = isa.to_string() != "portable";
        let is_coarse = ["avx512-bf16", "avx512-vnni"].contains(&&*isa.to_string())
            && [DType::Q4_0, DType::Q5_0].contains(&dtype);
        let shares_of = |row: usize| -> Vec<Share> {
            let blocks = view.row(row).chunks(dtype.block_bytes());
            blocks
                .flat_map(|block| with_blocks!(dtype, F => shares(PhantomData::<F>, block, fused)))
                .collect()
        };
        let shares: Vec<Vec<Share>> = (0..rows).map(shares_of).collect();
        let mut matrix = Matrix::new(cpu(isa, 2), &[view]);
        for n in [1, 2, 5, 9, 23].into_iter().filter(|n| *n <= most) {
            let out = matrix.times(x, n);
            for (place, out) in out.iter().enumerate() {
                let (column, row) = (place / rows, place % rows);
                let x = &x[column * cols..(column + 1) * cols];
                let expected = product_twin(&shares[row], x, fused, is_coarse);
                assert_eq!(
                    out.to_bits(),
                    expected.to_bits(),
                    "{isa}, {dtype}: row {row} of column {column} of {n}: {out} for {expected}"
                );
            }
        }
    }
}

#[test]
fn products_equal_their_scalar_twin_to_the_last_bit() {
    let mut random = Random(7);
    for dtype in quantised() {
        let cols = dtype.block_len().max(48) * 2;
        let count = 35 * cols / dtype.block_len();
        let bytes = blocks(&mut random, dtype, count, |random| {
            random.byte().cast_unsigned()
        });
        let x: Vec<f32> = (0..23 * cols).map(|_| random.float()).collect();
        check_products(dtype, &bytes, cols, &x);
    }
}

#[test]
fn products_of_large_and_small_activations_equal_their_scalar_twin() {
    let mut random = Random(10);
    for dtype in [DType::Q4_0, DType::Q5_0, DType::Q8_0] {
        let cols = 2 * dtype.block_len();
        let bytes = blocks(&mut random, dtype, 35 * 2, |random| {
            random.byte().cast_unsigned()
        });
        for factor in [1e-22, 1e-10, 1e10, 9e28] {
            let x: Vec<f32> = (0..23 * cols).map(|_| factor * random.float()).collect();
            check_products(dtype, &bytes, cols, &x);
        }
    }
}

#[test]
fn products_of_extremes_equal_their_scalar_twin() {
    let mut random = Random(8);
    for dtype in quantised() {
        let cols = dtype.block_len().max(64);
        let count = 35 * cols / dtype.block_len();
        // As bytes: -128, 127, -127, all bits, none, and halves of bytes at odds.
        for byte in [0x80, 0x7F, 0x81, 0xFF, 0x00, 0xF0] {
            let bytes = blocks(&mut random, dtype, count, |_| byte);
            // Enough columns for a matrix unit.
            let x = (0..23 * cols).map(|index| match index / cols % 4 {
                0 => 1.0,
                1 => -1.0,
                2 => [1.0, -1.0][index % 2],
                _ => [1.0, 0.0, 0.0, -1.0, 0.5][index % 5],
            });
            check_products(dtype, &bytes, cols, &x.collect::<Vec<f32>>());
        }
    }
}

#[test]
fn a_broken_activation_shows_in_the_product() {
    let mut random = Random(3);
    for dtype in [
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_1,
        DType::F16,
        DType::BF16,
    ] {
        let mut bytes = Vec::new();
        let values: Vec<f32> = (0..32 * 64).map(|_| random.float()).collect();
        dtype.encode(&values, &mut bytes);
        let view = TensorView {
            name: "test",
            dtype,
            shape: &[32, 64],
            data: &bytes,
        };
        for isa in tested() {
            let mut matrix = Matrix::new(cpu(isa, 1), &[view]);
            for broken in [f32::NAN, f32::INFINITY] {
                for n in [1, 3, 20] {
                    let mut x: Vec<f32> = (0..n * 64).map(|_| random.float()).collect();
                    x[40] = broken;
                    let out = matrix.times(&x, n);
                    let (first, others) = out.split_at(32);
                    assert!(
                        first.iter().all(|out| !out.is_finite()),
                        "{isa} {dtype} {broken}"
                    );
                    assert!(others.iter().all(|out| out.is_finite()));
                }
            }
        }
    }
}

#[test]
fn rows_come_back_as_they_were_packed() {
    let mut random = Random(5);
    for &dtype in DType::all() {
        let cols = 3 * dtype.block_len().max(7);
        let values: Vec<f32> = (0..21 * cols).map(|_| random.float()).collect();
        let mut bytes = Vec::new();
        dtype.encode(&values, &mut bytes);
        let view = TensorView {
            name: "test",
            dtype,
            shape: &[21, cols],
            data: &bytes,
        };
        let weight =
            Weight::upload(&mut Pool::new(2).unwrap(), &mut Arena::default(), &[view]).unwrap();
        let decoded = view.decode();
        for row in 0..21 {
            let mut out = vec![f32::NAN; cols];
            weight.matrix().unpack_row(row, &mut out);
            assert_eq!(
                out,
                decoded[row * cols..(row + 1) * cols],
                "{dtype}: row {row}"
            );
        }
    }
}

#[test]
fn products_do_not_depend_on_threads_or_on_company() {
    let mut random = Random(9);
    for &dtype in DType::all() {
        let (rows, cols) = (200, 4 * dtype.block_len().max(32));
        let values: Vec<f32> = (0..rows * cols).map(|_| random.float()).collect();
        let mut bytes = Vec::new();
        dtype.encode(&values, &mut bytes);
        let view = TensorView {
            name: "test",
            dtype,
            shape: &[rows, cols],
            data: &bytes,
        };
        let x: Vec<f32> = (0..40 * cols).map(|_| random.float()).collect();
        for isa in tested() {
            let mut results = Vec::new();
            for threads in [1, 2, 3, 4] {
                let mut matrix = Matrix::new(cpu(isa, threads), &[view]);
                results.push(matrix.times(&x, 40));
                let alone = matrix.times(&x, 1);
                for n in [3, 7, 32] {
                    let together = matrix.times(&x, n);
                    assert_eq!(alone, together[..rows], "{isa} {dtype}: one of {n}");
                }
                // A crowd may be multiplied in another precision, but all crowds in the same.
                let crowd = matrix.times(&x, 40);
                for n in [33, 39] {
                    let together = matrix.times(&x, n);
                    assert_eq!(crowd[..rows], together[..rows], "{isa} {dtype}: one of {n}");
                }
                if !isa.has_brains_for_quants() || !is_quantised(dtype) {
                    assert_eq!(alone, crowd[..rows], "{isa} {dtype}: one of 40");
                }
            }
            assert!(
                results.iter().all(|result| *result == results[0]),
                "{isa} {dtype}"
            );
        }
    }
}
