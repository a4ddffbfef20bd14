//! The integer kernels against a scalar twin, bit for bit, and what must not depend on threads.

use half::f16;

use crate::{
    Isa,
    columns::Columns,
    panel::BLOCK,
    pool::Pool,
    simd::{Kernel, LANES, Simd},
    weight::Weight,
};
use fornax_gguf::{DType, TensorView};

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
        for isa in Isa::available() {
            assert_eq!(
                isa.run(Dots {
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
                for isa in Isa::available() {
                    let dots = isa.run(Dots {
                        weights: &weights,
                        a: &a,
                    });
                    assert_eq!(dots, twin(&weights, &a), "{isa}: {weight} times {a:?}");
                }
            }
        }
    }
}

/// `rows` rows of random blocks, their scales among the extremes of half precision.
fn random_blocks(random: &mut Random, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rows * cols / dtype.block_len() {
        let scale = [
            f16::from_f32(random.float()),
            f16::MIN_POSITIVE_SUBNORMAL,
            f16::ZERO,
        ];
        bytes.extend(scale[random.next() as usize % 5 % 3].to_le_bytes());
        bytes.extend((2..dtype.block_bytes()).map(|_| random.byte().cast_unsigned()));
    }
    bytes
}

/// What the product of a quantised weight and quantised activations must be, to the last bit:
/// an exact integer a block, then `sum + dot * (scale * scale)`, fused where `fused`.
fn product_twin(row: &[f32], scales: &[f32], x: &[f32], fused: bool) -> f32 {
    let mut sum = 0.0;
    for (index, x) in x.chunks(BLOCK).enumerate() {
        let largest = x.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let quants = x
            .iter()
            .map(|x| (x * (127.0 / largest)).round_ties_even() as i32);
        let weights = row[index * BLOCK..].iter().map(|weight| *weight as i32);
        let dot: i32 = quants.zip(weights).map(|(a, weight)| a * weight).sum();
        let scale = scales[index] * (largest / 127.0);
        sum = match fused {
            true => (dot as f32).mul_add(scale, sum),
            false => dot as f32 * scale + sum,
        };
    }
    sum
}

/// A Q4_0 block as the kernels see it: quants 16 times as large under a 16th of the scale.
fn unit(dtype: DType) -> f32 {
    if dtype == DType::Q4_0 { 16.0 } else { 1.0 }
}

fn check_products(dtype: DType) {
    let mut random = Random(7);
    let (rows, cols, most) = (35, 96, 23);
    let bytes = random_blocks(&mut random, dtype, rows, cols);
    let shape = [rows, cols];
    let view = TensorView {
        name: "test",
        dtype,
        shape: &shape,
        data: &bytes,
    };
    let x: Vec<f32> = (0..most * cols).map(|_| random.float()).collect();
    for isa in Isa::available() {
        let mut pool = Pool::new(2).unwrap();
        let weight = Weight::upload(&mut pool, &[view]).unwrap();
        for n in 1..=most {
            let out = product(isa, &mut pool, &weight, &x, n);
            for (place, out) in out.iter().enumerate() {
                let (column, row) = (place / rows, place % rows);
                let blocks = view.row(row).chunks(dtype.block_bytes());
                let scales: Vec<f32> = blocks
                    .map(|block| f16::from_le_bytes([block[0], block[1]]).to_f32())
                    .collect();
                // Quants alone: the same row under scales of 1.
                let mut plain = view.row(row).to_vec();
                for block in plain.chunks_mut(dtype.block_bytes()) {
                    block[..2].copy_from_slice(&f16::ONE.to_le_bytes());
                }
                let mut quants = vec![0.0; cols];
                dtype.decode(&plain, &mut quants);
                let unit = unit(dtype);
                quants.iter_mut().for_each(|quant| *quant *= unit);
                let x = &x[column * cols..(column + 1) * cols];
                let expected = product_twin(&quants, &scales, x, isa.to_string() != "portable");
                assert_eq!(
                    *out,
                    expected / unit,
                    "{isa}, {dtype}: row {row} of column {column}"
                );
            }
        }
    }
}

/// `[n, rows]`
fn product(isa: Isa, pool: &mut Pool, weight: &Weight, x: &[f32], n: usize) -> Vec<f32> {
    let matrix = weight.matrix();
    let mut columns = Columns::default();
    columns.clear(matrix.cols);
    let tiles = columns.push_group(isa, 0..n);
    columns.fill(isa, pool, x, matrix.precisions());
    let mut out = vec![f32::NAN; n * matrix.rows];
    crate::product::multiply(isa, pool, &mut out, matrix, None, &columns, &[(0, tiles)]);
    out
}

#[test]
fn q8_0_products_equal_their_scalar_twin_to_the_last_bit() {
    check_products(DType::Q8_0);
}

#[test]
fn q4_0_products_equal_their_scalar_twin_to_the_last_bit() {
    check_products(DType::Q4_0);
}

#[test]
fn a_broken_activation_shows_in_the_product() {
    let mut random = Random(3);
    for dtype in [DType::Q8_0, DType::Q4_0, DType::F16] {
        let mut bytes = Vec::new();
        let values: Vec<f32> = (0..32 * 64).map(|_| random.float()).collect();
        dtype.encode(&values, &mut bytes);
        let view = TensorView {
            name: "test",
            dtype,
            shape: &[32, 64],
            data: &bytes,
        };
        for isa in Isa::available() {
            let mut pool = Pool::new(1).unwrap();
            let weight = Weight::upload(&mut pool, &[view]).unwrap();
            for broken in [f32::NAN, f32::INFINITY] {
                let mut x: Vec<f32> = (0..64).map(|_| random.float()).collect();
                x[40] = broken;
                let out = product(isa, &mut pool, &weight, &x, 1);
                assert!(
                    out.iter().all(|out| !out.is_finite()),
                    "{isa} {dtype} {broken}"
                );
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
        let weight = Weight::upload(&mut Pool::new(2).unwrap(), &[view]).unwrap();
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
        for isa in Isa::available() {
            let mut results = Vec::new();
            for threads in [1, 2, 5] {
                let mut pool = Pool::new(threads).unwrap();
                let weight = Weight::upload(&mut pool, &[view]).unwrap();
                results.push(product(isa, &mut pool, &weight, &x, 40));
                if matches!(dtype, DType::Q8_0 | DType::Q4_0) {
                    let alone = product(isa, &mut pool, &weight, &x, 1);
                    assert_eq!(alone, results[0][..rows], "{isa} {dtype}: alone");
                }
            }
            assert!(
                results.iter().all(|result| *result == results[0]),
                "{isa} {dtype}"
            );
        }
    }
}
