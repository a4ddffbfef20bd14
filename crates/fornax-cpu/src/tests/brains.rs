//! Products of brain floats, in vectors and on the matrix unit, against sums in double precision.

use half::bf16;

use super::{
    Random, blocks,
    library::{Matrix, cpu},
    quantised,
};
use crate::{
    Isa,
    panel::{is_quantised, strip_shape},
};
use fornax_gguf::{DType, TensorView};

#[test]
#[cfg_attr(no_avx512_bf16, ignore = "needs a processor with AVX-512 BF16")]
fn brain_floats_are_as_near_as_their_rounding() {
    for isa in super::tested().filter(|isa| isa.has_brains()) {
        for cols in [2, 30, 96] {
            check_brain_floats(isa, DType::BF16, cols, &[1, 3, 7, 16, 33, 48, 49, 70]);
        }
    }
}

#[test]
#[cfg_attr(no_amx, ignore = "needs a processor with AMX")]
fn quantised_weights_become_brain_floats_for_a_crowd_of_columns() {
    let isa = Isa::available().find(|isa| isa.has_brains_for_quants());
    let isa = isa.expect("a matrix unit");
    for dtype in quantised() {
        check_brain_floats(isa, dtype, 2 * dtype.block_len().max(48), &[33, 48, 49, 70]);
    }
}

/// Compares the products of a weight `[75, cols]` and some numbers of columns with sums in double
/// precision over what they are rounded to.
fn check_brain_floats(isa: Isa, dtype: DType, cols: usize, columns: &[usize]) {
    let mut random = Random(11);
    let rows = 75;
    let bytes = match is_quantised(dtype) {
        true => blocks(
            &mut random,
            dtype,
            rows * cols / dtype.block_len(),
            |random| random.byte().cast_unsigned(),
        ),
        false => {
            let values: Vec<f32> = (0..rows * cols).map(|_| random.float()).collect();
            let mut bytes = Vec::new();
            dtype.encode(&values, &mut bytes);
            bytes
        }
    };
    let view = TensorView {
        name: "test",
        dtype,
        shape: &[rows, cols],
        data: &bytes,
    };
    let values = view.decode();
    let x: Vec<f32> = (0..70 * cols).map(|_| random.float()).collect();
    let mut matrix = Matrix::new(cpu(isa, 2), &[view]);
    // With a minimum, weights in the middle between two brain floats go to either: scale and minimum
    // are put together in one step here and in two there.
    let has_min = is_quantised(dtype) && strip_shape(dtype).has_min;
    let tolerance = if has_min { 1e-3 } else { 1e-6 };
    let rounded = |value: &f32| f64::from(bf16::from_f32(*value).to_f32());
    for &n in columns {
        for (place, out) in matrix.times(&x, n).iter().enumerate() {
            let (x, row) = (&x[place / rows * cols..], &values[place % rows * cols..]);
            let products = x.iter().zip(row).take(cols);
            let products = products.map(|(x, w)| rounded(x) * rounded(w));
            let (sum, most) = products.fold((0.0, 0.0), |(sum, most), product| {
                (sum + product, most + product.abs())
            });
            // These instructions take what is below for zero.
            let least = cols as f64 * f64::from(f32::MIN_POSITIVE);
            let error = (f64::from(*out) - sum).abs();
            assert!(
                error <= most * tolerance + least,
                "{isa} {dtype}, {n} of {cols}: {out} for {sum}"
            );
        }
    }
}
