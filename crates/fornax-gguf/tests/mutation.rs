//! No file on earth makes the reader panic, hang or allocate more than the file's size justifies.
//!
//! A small file that holds everything is truncated and corrupted in every place, tens of thousands
//! of times; whatever still opens is read to the last value.

mod mutants;

use std::fmt::Debug;

use fornax_gguf::{Array, DType, Gguf, GgufWriter, Value};
use mutants::survives;

#[test]
fn corrupted_files_are_refused_or_read_in_bounds() {
    let original = everything();
    let opens = |what: &dyn Debug, bytes: Vec<u8>| {
        // Decoding makes 7 bytes from one of Q4_0. The rest is for names, tables and errors.
        let allowed = 8 * bytes.len() + (4 << 10);
        survives(what, "mutant", allowed, || {
            Gguf::from_bytes("mutant", bytes)
        })
    };
    assert!(
        opens(&"nothing", original.clone()),
        "the original file must open"
    );
    let (mut cases, mut opened) = (0, 0);
    let mut check = |what: &dyn Debug, bytes: Vec<u8>| {
        cases += 1;
        opened += usize::from(opens(what, bytes));
    };
    for offset in 0..original.len() {
        for value in LENGTHS {
            // Wherever a field begins, it gets this value: counts, lengths, dimensions, offsets.
            for width in [1, 4, 8] {
                let mut bytes = original.clone();
                let end = bytes.len().min(offset + width);
                bytes[offset..end].copy_from_slice(&value.to_le_bytes()[..end - offset]);
                check(&("field overwritten", offset, width, value), bytes);
            }
        }
    }
    mutants::mutants(&original, 20_000, check);
    assert!(cases > 30_000, "{cases} cases");
    assert!(
        opened > cases / 100 && opened < cases / 2,
        "{opened} of {cases} opened"
    );
}

/// What a hostile length field says.
const LENGTHS: [u64; 8] = [
    0,
    1,
    33,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX,
];

/// Single numbers and blocks of 32. Every bit pattern is a block of any type, so that larger blocks
/// would only make the file longer.
const TYPES: [DType; 6] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::MXFP4,
];

/// A file with every metadata type and tensors of several types.
fn everything() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    for (key, value) in [
        ("general.alignment", Value::U32(32)),
        ("u8", Value::U8(1)),
        ("i16", Value::I16(-1)),
        ("f32", Value::F32(1.0)),
        ("bool", Value::Bool(true)),
        ("string", Value::from("schön")),
        ("u64", Value::U64(1)),
        ("i32s", Value::from(vec![1i32, 2])),
        ("f64s", Value::from(vec![1.0f64])),
        ("bools", Value::from(vec![true, false])),
        ("strings", Value::from(vec!["a".to_owned(), "é".to_owned()])),
        (
            "nested",
            Value::from(Array::Array(vec![
                Array::U16(vec![1, 2]),
                Array::I8(vec![]),
            ])),
        ),
    ] {
        writer.set(key, value).expect("a valid pair");
    }
    for dtype in TYPES {
        writer
            .declare(dtype.name(), dtype, &[2, dtype.block_len()])
            .expect("a valid tensor");
    }
    let mut tensors = writer.start(Vec::new()).expect("a valid head");
    for dtype in TYPES {
        let values: Vec<f32> = (0..2 * dtype.block_len()).map(|i| i as f32 - 3.5).collect();
        let mut bytes = Vec::new();
        dtype.encode(&values, &mut bytes);
        tensors.append(&bytes).expect("memory takes all");
    }
    tensors.finish().expect("all tensors are written")
}
