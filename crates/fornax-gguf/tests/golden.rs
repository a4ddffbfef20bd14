//! Every block format against the `gguf` Python package, bit for bit, in both directions.
//!
//! `tests/golden/make_goldens.py` made the vectors. Knows nothing of files.

use std::path::{Path, PathBuf};

use fornax_gguf::DType;

#[test]
fn encodes_as_the_reference() {
    let values = floats("values.f32");
    for &dtype in ENCODED_AS_THE_REFERENCE {
        let expected = bytes(&format!("{}.blocks", stem(dtype)));
        let mut blocks = Vec::new();
        dtype.encode(&values, &mut blocks);
        let block = dtype.block_bytes();
        assert_eq!(blocks.len(), expected.len(), "{dtype}");
        for (index, (ours, theirs)) in blocks.chunks(block).zip(expected.chunks(block)).enumerate()
        {
            let input = &values[index * dtype.block_len()..][..dtype.block_len()];
            assert_eq!(ours, theirs, "{dtype}, block {index}, values {input:?}");
        }
    }
}

#[test]
fn decodes_as_the_reference() {
    for dtype in quantised() {
        let encoded = ENCODED_AS_THE_REFERENCE.contains(&dtype);
        let encoded = encoded.then_some(("blocks", "decoded"));
        for (blocks, decoded) in encoded.into_iter().chain([("random", "random.decoded")]) {
            let expected = floats(&format!("{}.{decoded}", stem(dtype)));
            let mut values = vec![f32::NAN; expected.len()];
            dtype.decode(&bytes(&format!("{}.{blocks}", stem(dtype))), &mut values);
            let bits = |values: &[f32]| {
                values
                    .iter()
                    .map(|value| value.to_bits())
                    .collect::<Vec<_>>()
            };
            assert_eq!(bits(&values), bits(&expected), "{dtype} {blocks}");
        }
    }
}

#[test]
fn decoding_gives_back_what_was_encoded_within_a_step() {
    let values = floats("values.f32");
    for &dtype in DType::all() {
        let mut blocks = Vec::new();
        dtype.encode(&values, &mut blocks);
        let mut decoded = vec![0.0; values.len()];
        dtype.decode(&blocks, &mut decoded);
        // One step of the format, relative to the largest value of its block.
        let step = match dtype {
            DType::F32 => 0.0,
            DType::F16 => 1.0 / 1024.0,
            DType::BF16 => 1.0 / 128.0,
            DType::Q8_0 => 1.0 / 127.0,
            DType::Q4_0 | DType::IQ4_NL | DType::IQ4_XS => 1.0 / 7.0,
            DType::Q4_1 | DType::Q4_K => 1.0 / 7.5,
            DType::Q5_0 => 1.0 / 15.0,
            DType::Q5_1 | DType::Q5_K => 1.0 / 15.5,
            DType::Q6_K => 1.0 / 31.0,
            DType::MXFP4 => 1.0 / 4.0,
            DType::Q3_K => 1.0 / 3.0,
            DType::Q2_K => 1.0 / 1.5,
            // Eight values share a pattern, which may have none of them right.
            DType::IQ2_XXS => 1.0,
        };
        let block = dtype.block_len().max(32);
        for (before, after) in values.chunks(block).zip(decoded.chunks(block)) {
            let largest = before
                .iter()
                .fold(0.0f32, |largest, value| largest.max(value.abs()));
            for (before, after) in before.iter().zip(after) {
                // Below half precision's normal range a step is its smallest number.
                let bound = largest * step + if step > 0.0 { 127.0 * 6e-8 } else { 0.0 };
                assert!(
                    (before - after).abs() <= bound,
                    "{dtype}: {before} became {after}"
                );
            }
        }
    }
}

/// Types whose blocks can be chosen in one sensible way only; for the others the reference has no
/// encoder, or ours searches longer.
const ENCODED_AS_THE_REFERENCE: &[DType] = &[
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::MXFP4,
];

/// Any bytes are a block: decoding them is total.
#[test]
fn any_bytes_decode() {
    for byte in 0..=255 {
        for &dtype in DType::all() {
            let mut values = vec![0.0; dtype.block_len()];
            dtype.decode(&vec![byte; dtype.block_bytes()], &mut values);
        }
    }
}

/// Any values have a block: encoding them neither panics nor writes what cannot be read.
#[test]
fn any_values_encode() {
    for &dtype in DType::all() {
        for value in [f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-42] {
            for (first, rest) in [(value, 1.0), (1.0, value), (-value, value)] {
                let mut values = vec![rest; 256];
                values[7] = first;
                let mut blocks = Vec::new();
                dtype.encode(&values, &mut blocks);
                dtype.decode(&blocks, &mut values);
            }
        }
    }
}

/// Decodes more than is kept here: what `make_goldens.py FOLDER N` wrote.
#[test]
#[ignore = "needs $FORNAX_GOLDENS: a folder that make_goldens.py FOLDER N has written"]
fn decodes_millions_of_values_as_the_reference() {
    let folder = std::env::var_os("FORNAX_GOLDENS").expect("$FORNAX_GOLDENS names a folder");
    let read = |name: String| std::fs::read(Path::new(&folder).join(name)).expect("a vector");
    for dtype in quantised() {
        let blocks = read(format!("{}.random", stem(dtype)));
        let expected = read(format!("{}.random.decoded", stem(dtype)));
        let mut values = vec![0.0; expected.len() / 4];
        dtype.decode(&blocks, &mut values);
        for (index, (value, expected)) in values.iter().zip(expected.chunks(4)).enumerate() {
            assert_eq!(value.to_le_bytes(), expected, "{dtype}: value {index}");
        }
    }
}

/// All types that change values: F32 needs no reference.
fn quantised() -> impl Iterator<Item = DType> {
    DType::all()
        .iter()
        .copied()
        .filter(|&dtype| dtype != DType::F32)
}

fn stem(dtype: DType) -> String {
    dtype.name().to_lowercase()
}

fn floats(file: &str) -> Vec<f32> {
    bytes(file)
        .chunks(4)
        .map(|item| f32::from_le_bytes(item.try_into().expect("four bytes")))
        .collect()
}

fn bytes(file: &str) -> Vec<u8> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
