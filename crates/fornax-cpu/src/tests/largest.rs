//! The few largest of many products, against all of them.

use fornax_backend::{Backend, Sketched};
use fornax_cpu::CpuOptions;
use fornax_gguf::{DType, TensorView};

use super::{
    Random,
    library::{Matrix, buffer, cpu_with, of_library, read, unwritten},
};
use crate::Isa;

/// Of each way that a matrix is multiplied with few columns.
const FORMATS: [DType; 6] = [
    DType::Q8_0,
    DType::Q6_K,
    DType::Q5_1,
    DType::BF16,
    DType::F16,
    DType::F32,
];
/// The last panel is not whole, and the last 16 panels are not.
const ROWS: usize = 5003;
const COLS: usize = 256;

/// A sum of some has a bell's shape, as weights have.
fn bell(random: &mut Random) -> f32 {
    (0..6).map(|_| random.float()).sum()
}

fn encoded(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut data = Vec::new();
    dtype.encode(values, &mut data);
    data
}

/// A matrix, and what is said of its sketch where one is made from so many bytes on.
fn sketched(
    isa: Isa,
    threads: usize,
    least_bytes: usize,
    dtype: DType,
    data: &[u8],
) -> (Matrix, Option<Sketched>) {
    let row = COLS / dtype.block_len() * dtype.block_bytes();
    let view = TensorView {
        name: "test",
        dtype,
        shape: &[data.len() / row, COLS],
        data,
    };
    let cpu = cpu_with(CpuOptions {
        threads: Some(threads),
        isa: Some(of_library(isa)),
        sketched_from: Some(least_bytes),
        ..CpuOptions::default()
    });
    let mut matrix = Matrix::new(cpu, &[view]);
    let sketch = matrix.cpu.sketch(&mut matrix.weight).unwrap();
    (matrix, sketch)
}

/// A matrix with a sketch, and for how many columns that is used.
fn upload(isa: Isa, threads: usize, dtype: DType, data: &[u8]) -> (Matrix, usize) {
    let (matrix, sketch) = sketched(isa, threads, 0, dtype, data);
    (matrix, sketch.expect("a sketch").rows)
}

fn all(matrix: &mut Matrix, x: &[f32]) -> Vec<f32> {
    matrix.times(x, x.len() / COLS)
}

fn largest(matrix: &mut Matrix, x: &[f32], count: usize) -> Vec<f32> {
    let (n, cpu) = (x.len() / COLS, &mut matrix.cpu);
    let x = buffer(cpu, x);
    let mut out = unwritten(cpu, n * matrix.rows);
    cpu.largest(&mut out, &matrix.weight, &x, count, n);
    read(cpu, &out, n * matrix.rows)
}

/// Checks a row, and returns how many of its products are those of the matrix.
fn check(got: &[f32], expected: &[f32], count: usize, what: &str) -> usize {
    let mut order: Vec<usize> = (0..expected.len()).collect();
    order.sort_by(|a, b| expected[*b].total_cmp(&expected[*a]));
    let least = expected[order[count - 1]];
    for (row, (got, expected)) in got.iter().zip(expected).enumerate() {
        match *expected >= least {
            true => assert_eq!(got.to_bits(), expected.to_bits(), "{what}: row {row}"),
            false => assert!(*got < least, "{what}: row {row} at {got}, of {least}"),
        }
    }
    got.iter().zip(expected).filter(|(a, b)| a == b).count()
}

#[test]
fn the_largest_are_those_of_the_matrix_and_most_of_it_is_not_read() {
    let mut random = Random(5);
    for dtype in FORMATS {
        let values: Vec<f32> = (0..ROWS * COLS).map(|_| bell(&mut random)).collect();
        let data = encoded(dtype, &values);
        // The same for all instructions: every processor reads about as much.
        let columns: Vec<f32> = (0..8 * COLS).map(|_| bell(&mut random)).collect();
        for isa in super::tested() {
            for (threads, n, count) in [(1, 1, 1), (2, 1, 1), (2, 3, 2), (2, 8, 1), (2, 1, 9)] {
                let (mut matrix, most) = upload(isa, threads, dtype, &data);
                let n = n.min(most);
                let x = &columns[..n * COLS];
                let expected = all(&mut matrix, x);
                let got = largest(&mut matrix, x, count);
                let rows = got.chunks(ROWS).zip(expected.chunks(ROWS));
                for (column, (got, expected)) in rows.enumerate() {
                    let what = format!("{isa}, {dtype}, column {column} of {n}, {count} largest");
                    let read = check(got, expected, count, &what);
                    // Several columns read what any of them needs.
                    assert!(read < ROWS / 2 || n * count > 1, "{what}: {read} read");
                }
            }
        }
    }
}

/// So many rows that threads share them, and that several panels are read first.
#[test]
fn the_largest_of_many_rows_are_found_in_pieces() {
    const MANY: usize = 4 * ROWS;
    let mut random = Random(9);
    let values: Vec<f32> = (0..MANY * COLS).map(|_| bell(&mut random)).collect();
    let data = encoded(DType::Q8_0, &values);
    for isa in super::tested() {
        for (threads, n, count) in [(1, 1, 1), (2, 1, 1), (2, 8, 1), (2, 3, 4)] {
            let (mut matrix, most) = upload(isa, threads, DType::Q8_0, &data);
            let n = n.min(most);
            let x: Vec<f32> = (0..n * COLS).map(|_| bell(&mut random)).collect();
            let expected = all(&mut matrix, &x);
            let got = largest(&mut matrix, &x, count);
            for (got, expected) in got.chunks(MANY).zip(expected.chunks(MANY)) {
                check(
                    got,
                    expected,
                    count,
                    &format!("{isa}, {n} columns, {count} largest"),
                );
            }
        }
    }
}

/// Rows that differ by less than a sketch can tell, far from each other.
#[test]
fn near_ties_are_told_apart() {
    let mut random = Random(6);
    for dtype in [DType::Q8_0, DType::BF16] {
        let mut values: Vec<f32> = (0..ROWS * COLS).map(|_| bell(&mut random)).collect();
        let x: Vec<f32> = (0..COLS).map(|_| bell(&mut random)).collect();
        for tie in 0..40 {
            let row = (tie * 1237 + 11) % ROWS;
            for (value, x) in values[row * COLS..][..COLS].iter_mut().zip(&x) {
                *value = x * (1.0 + 1e-3 * random.float());
            }
        }
        let (mut matrix, _) = upload(Isa::detect(), 2, dtype, &encoded(dtype, &values));
        let expected = all(&mut matrix, &x);
        // As many as there are and more: requests ask for any number.
        for count in [ROWS, usize::MAX] {
            assert!(
                largest(&mut matrix, &x, count) == expected,
                "{dtype}, {count} largest"
            );
        }
        for count in [1, 3] {
            let got = largest(&mut matrix, &x, count);
            let read = check(&got, &expected, count, &format!("{dtype}, {count} largest"));
            assert!(read < ROWS / 2, "{read} read");
        }
    }
}

/// Outliers, as hidden states have them: most of a column's length is in one of its values.
#[test]
fn columns_of_one_loud_value_are_no_exception() {
    let mut random = Random(7);
    let values: Vec<f32> = (0..ROWS * COLS).map(|_| bell(&mut random)).collect();
    for dtype in [DType::Q8_0, DType::F16] {
        let (mut matrix, _) = upload(Isa::detect(), 2, dtype, &encoded(dtype, &values));
        for loud in [0, 31, 255] {
            let mut x: Vec<f32> = (0..COLS).map(|_| bell(&mut random)).collect();
            x[loud] = -50.0;
            let expected = all(&mut matrix, &x);
            let got = largest(&mut matrix, &x, 1);
            check(&got, &expected, 1, &format!("{dtype}, loud at {loud}"));
        }
    }
}

#[test]
fn what_no_bound_holds_for_is_as_without_a_sketch() {
    let mut random = Random(8);
    let values: Vec<f32> = (0..ROWS * COLS).map(|_| bell(&mut random)).collect();
    let data = encoded(DType::BF16, &values);
    let (mut matrix, _) = upload(Isa::detect(), 2, DType::BF16, &data);
    for bad in [f32::NAN, f32::INFINITY, 1e35] {
        let mut x: Vec<f32> = (0..2 * COLS).map(|_| bell(&mut random)).collect();
        x[COLS + 7] = bad;
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let expected = bits(all(&mut matrix, &x));
        assert!(bits(largest(&mut matrix, &x, 1)) == expected, "{bad}");
    }
    for scale in [0.0, 1e-30, 1e-12] {
        let x: Vec<f32> = (0..COLS).map(|_| scale * bell(&mut random)).collect();
        let expected = all(&mut matrix, &x);
        assert!(largest(&mut matrix, &x, 1) == expected, "{scale}");
    }
    let mut values = values;
    for bad in [f32::NAN, f32::INFINITY, 1e7] {
        values[ROWS / 2 * COLS + 3] = bad;
        let data = encoded(DType::F32, &values);
        let (_, sketch) = sketched(Isa::detect(), 2, 0, DType::F32, &data);
        assert!(sketch.is_none(), "{bad}");
    }
}

/// A sketch takes memory: small matrices stay in the caches, and few bits are read as fast.
#[test]
fn sketches_are_made_where_they_pay() {
    let pays = |dtype, least_bytes| {
        let data = encoded(dtype, &vec![0.0; 1600 * COLS]);
        let (_, sketch) = sketched(Isa::detect(), 1, least_bytes, dtype, &data);
        sketch.is_some()
    };
    assert!(pays(DType::Q8_0, 1600 * COLS) && pays(DType::BF16, 2 * 1600 * COLS));
    assert!(!pays(DType::BF16, 3 * 1600 * COLS));
    assert!(!pays(DType::Q4_0, 0) && !pays(DType::Q5_0, 0));
}
