//! Every block format against the `gguf` Python package, bit for bit, in both directions.
//!
//! `tests/golden/make_goldens.py` made the vectors. Knows nothing of files.

use std::path::{Path, PathBuf};

use fornax_gguf::DType;

#[test]
fn encodes_as_the_reference() {
    let values = floats("values.f32");
    for dtype in quantised() {
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
        for (blocks, decoded) in [("blocks", "decoded"), ("random", "random.decoded")] {
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
            DType::Q4_0 => 1.0 / 7.0,
        };
        for (before, after) in values.chunks(32).zip(decoded.chunks(32)) {
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
