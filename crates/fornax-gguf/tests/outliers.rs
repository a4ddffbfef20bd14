//! Weights with strong outliers keep as much as under llama.cpp's quantiser.
//!
//! Owns a few distributions that `tests/golden/measure_outliers.py` has, too.

use fornax_gguf::DType;

const ROWS: usize = 64;
const COLS: usize = 512;

/// How much more error than llama.cpp's we allow ourselves.
const ALLOWED: f64 = 1.02;

/// Some columns are 50 times the others.
#[test]
fn columns_of_outliers_lose_no_more_than_in_llama_cpp() {
    let scale = |index: usize| if index % COLS % 200 == 7 { 50.0 } else { 1.0 };
    let values = values(|index, drawn| bell(drawn) * scale(index));
    check(&values, COLUMNS);
}

/// Some values are 50 times the others.
#[test]
fn single_outliers_lose_no_more_than_in_llama_cpp() {
    let scale = |index: usize| if index % 499 == 3 { 50.0 } else { 1.0 };
    let values = values(|index, drawn| bell(drawn) * scale(index));
    check(&values, VALUES);
}

/// The greatest are hundreds of times the usual, with all sizes between.
#[test]
fn long_tails_lose_no_more_than_in_llama_cpp() {
    let values = values(|_, [sign, size, ..]| {
        let sign = if sign % 2 == 0 { 1.0 } else { -1.0 };
        sign / ((size + 1) as f32).sqrt()
    });
    check(&values, TAIL);
}

// The weighted errors of llama.cpp's encoders for Q4_K, Q5_K and Q6_K on the same values, relative
// to the weighted squares, as `tests/golden/measure_outliers.py` measured them in the llama.cpp of
// llama-cpp-python 0.3.36.
const COLUMNS: [f64; 3] = [8.4630e-4, 3.4723e-4, 7.3997e-7];
const VALUES: [f64; 3] = [9.5901e-4, 3.5440e-4, 2.9386e-7];
const TAIL: [f64; 3] = [7.8979e-4, 4.4775e-4, 4.3191e-7];

fn check(values: &[f32], theirs: [f64; 3]) {
    for (dtype, theirs) in [DType::Q4_K, DType::Q5_K, DType::Q6_K]
        .into_iter()
        .zip(theirs)
    {
        let mut blocks = Vec::new();
        dtype.encode(values, &mut blocks);
        let mut decoded = vec![0.0; values.len()];
        dtype.decode(&blocks, &mut decoded);
        let ours = error(values, &decoded, dtype);
        let ratio = ours / theirs;
        assert!(
            ratio <= ALLOWED,
            "{dtype}: {ours:.4e} is {ratio:.4} of theirs"
        );
    }
}

/// The error by the weights that llama.cpp's encoder of the format minimises: squares in Q6_K, else
/// a value's magnitude and that of its group.
fn error(values: &[f32], decoded: &[f32], dtype: DType) -> f64 {
    let (mut error, mut whole) = (0.0, 0.0);
    for (values, decoded) in values.chunks(32).zip(decoded.chunks(32)) {
        let square: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
        let usual = (square / 32.0).sqrt();
        for (&value, &decoded) in values.iter().zip(decoded) {
            let (value, decoded) = (f64::from(value), f64::from(decoded));
            let weight = match dtype {
                DType::Q6_K => value * value,
                _ => usual + value.abs(),
            };
            error += weight * (decoded - value).powi(2);
            whole += weight * value * value;
        }
    }
    error / whole
}

/// A value of a bell-shaped distribution around zero: a sum of four even ones.
fn bell(drawn: [u32; 4]) -> f32 {
    (drawn.iter().sum::<u32>() as f32 - 131_070.0) / (1 << 20) as f32
}

/// The values that `of` makes of their index and four 16-bit numbers each.
fn values(of: impl Fn(usize, [u32; 4]) -> f32) -> Vec<f32> {
    let mut state = 1u64;
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as u32
    };
    (0..ROWS * COLS)
        .map(|index| of(index, [draw(), draw(), draw(), draw()]))
        .collect()
}
