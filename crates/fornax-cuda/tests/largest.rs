//! The largest of many products, found with a sketch of the matrix, is the one that all products have.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use fornax_backend::{Backend, Element, Sketched, uniform};
use fornax_cuda::{Cuda, CudaOptions};
use fornax_gguf::{DType, TensorView};

/// Numbers of a normal distribution, near enough: sums of twelve thrown ones.
fn normals(seed: u64, len: usize) -> Vec<f32> {
    let one = |index: usize| {
        let thrown = (0..12).map(|part| uniform(seed, 12 * index + part));
        thrown.sum::<f32>() - 6.0
    };
    (0..len).map(one).collect()
}

/// A head, and tokens that it is multiplied with.
struct Case {
    format: DType,
    rows: usize,
    cols: usize,
}

/// Rows of which each hundredth is nearly the first one, so that for a token along it many are almost the
/// largest.
fn weights(case: &Case, seed: u64) -> Vec<f32> {
    // A part is thrown, and repeated with other signs: throwing all takes longer than the test.
    let thrown = normals(seed, 4099 * 64);
    let mut values: Vec<f32> = (0..case.rows * case.cols)
        .map(|index| thrown[(index * 7 + index / case.cols * 31) % thrown.len()])
        .collect();
    for row in (100..case.rows).step_by(100) {
        for col in 0..case.cols {
            let nearly = 1.0 + 0.001 * thrown[(row * 3 + col) % thrown.len()];
            values[row * case.cols + col] = values[col] * nearly;
        }
    }
    values
}

fn check(cuda: &mut Cuda, case: &Case) {
    let Case { format, rows, cols } = *case;
    let values = weights(case, 1);
    let mut data = Vec::new();
    format.encode(&values, &mut data);
    let view = TensorView {
        name: "head",
        dtype: format,
        shape: &[rows, cols],
        data: &data,
    };
    let mut head = cuda.upload(&[view]).unwrap();
    let Sketched { bytes, .. } = cuda.sketch(&mut head).unwrap().expect("it is large");
    assert!(bytes < data.len() as u64);
    let mut x = cuda.alloc(Element::F32, cols).unwrap();
    let mut all = cuda.alloc(Element::F32, rows).unwrap();
    let mut few = cuda.alloc(Element::F32, rows).unwrap();
    let along = |scale: f32| values[..cols].iter().map(|value| scale * value).collect();
    let mut tokens: Vec<Vec<f32>> = (2..12).map(|seed| normals(seed, cols)).collect();
    tokens.push(along(1.0));
    tokens.push(along(-3.0));
    // Too small and too large for the bound, which all rows are read for.
    tokens.push(along(1e-12));
    tokens.push(along(1e25));
    tokens.push(vec![0.0; cols]);
    let mut lone = vec![0.0; cols];
    lone[cols / 2] = 5.0;
    tokens.push(lone);
    let (mut expected, mut told) = (vec![0.0; rows], vec![0.0; rows]);
    for (index, token) in tokens.iter().enumerate() {
        cuda.write_f32(&mut x, token);
        cuda.linear(&mut all, &head, None, &x, 1);
        cuda.write_f32(&mut few, &vec![f32::NAN; rows]);
        cuda.largest(&mut few, &head, &x, 1, 1);
        cuda.read_f32(&all, &mut expected).unwrap();
        cuda.read_f32(&few, &mut told).unwrap();
        let largest = |of: &[f32]| of.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let best = largest(&expected);
        assert_eq!(
            largest(&told).to_bits(),
            best.to_bits(),
            "{format}, token {index}"
        );
        for (row, (told, expected)) in told.iter().zip(&expected).enumerate() {
            let same = told.to_bits() == expected.to_bits();
            assert!(
                same || (*told < best && *expected < best),
                "{format}, token {index}, row {row}: {told} for {expected}"
            );
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn the_largest_product_is_found_and_exact() {
    let mut cuda = Cuda::new(CudaOptions::default()).unwrap();
    for (format, rows, cols) in [
        (DType::Q8_0, 40_003, 1024),
        (DType::BF16, 20_000, 1024),
        (DType::F16, 16_001, 576),
        (DType::Q6_K, 24_000, 1024),
        (DType::Q8_0, 8_000, 4096),
        (DType::BF16, 300_000, 64),
    ] {
        check(&mut cuda, &Case { format, rows, cols });
    }
}

/// Rows whose columns warps share where all products are made.
#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn of_long_rows_it_is_exact_too() {
    let mut cuda = Cuda::new(CudaOptions::default()).unwrap();
    for (format, rows, cols) in [(DType::Q8_0, 2000, 8192), (DType::BF16, 2100, 4096)] {
        check(&mut cuda, &Case { format, rows, cols });
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: run with --ignored where there is one"]
fn what_is_no_number_or_small_is_not_sketched() {
    let mut cuda = Cuda::new(CudaOptions::default()).unwrap();
    let sketched = |cuda: &mut Cuda, rows: usize, bad: f32| {
        let mut values = vec![1.0; rows * 1024];
        values[rows * 512 + 3] = bad;
        let mut data = Vec::new();
        DType::BF16.encode(&values, &mut data);
        let view = TensorView {
            name: "head",
            dtype: DType::BF16,
            shape: &[rows, 1024],
            data: &data,
        };
        let mut head = cuda.upload(&[view]).unwrap();
        cuda.sketch(&mut head).unwrap().is_some()
    };
    assert!(sketched(&mut cuda, 9000, 2.0));
    assert!(!sketched(&mut cuda, 100, 2.0));
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e6] {
        assert!(!sketched(&mut cuda, 9000, bad), "{bad}");
    }
}
