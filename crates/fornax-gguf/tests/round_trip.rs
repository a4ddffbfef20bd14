//! What the writer writes, the reader reads: every metadata type, every tensor type, streams and
//! alignments.
//!
//! Knows the public interface only.

use fornax_gguf::{Array, DType, Error, Gguf, GgufWriter, Value};

fn every_value() -> Vec<(&'static str, Value)> {
    vec![
        ("a.u8", Value::U8(255)),
        ("a.i8", Value::I8(-128)),
        ("a.u16", Value::U16(65535)),
        ("a.i16", Value::I16(-32768)),
        ("a.u32", Value::U32(u32::MAX)),
        ("a.i32", Value::I32(i32::MIN)),
        ("a.f32", Value::F32(-0.1)),
        ("a.bool", Value::Bool(true)),
        ("a.string", Value::from("naïve 🦊\n")),
        ("a.empty", Value::from("")),
        ("a.u64", Value::U64(u64::MAX)),
        ("a.i64", Value::I64(i64::MIN)),
        ("a.f64", Value::F64(1e300)),
        ("b.u8", Value::from(vec![1u8, 2])),
        ("b.i8", Value::from(vec![-1i8, 2])),
        ("b.u16", Value::from(vec![1u16, 65535])),
        ("b.i16", Value::from(vec![-1i16])),
        ("b.u32", Value::from(vec![7u32, 8, 9])),
        ("b.i32", Value::from(vec![-7i32, 8])),
        ("b.f32", Value::from(vec![0.5f32, f32::INFINITY])),
        ("b.bool", Value::from(vec![true, false, true])),
        (
            "b.string",
            Value::from(vec!["".to_owned(), "two".to_owned()]),
        ),
        ("b.u64", Value::from(vec![u64::MAX])),
        ("b.i64", Value::from(vec![i64::MIN])),
        ("b.f64", Value::from(vec![2.5f64])),
        ("b.none", Value::from(Vec::<String>::new())),
        (
            "b.nested",
            Value::from(Array::Array(vec![
                Array::I32(vec![1, 2]),
                Array::String(vec!["deep".to_owned()]),
                Array::Array(vec![Array::Bool(vec![true])]),
            ])),
        ),
    ]
}

#[test]
fn every_metadata_type_survives_in_order() -> Result<(), Error> {
    let mut writer = GgufWriter::new();
    for (key, value) in every_value() {
        writer.set(key, value)?;
    }
    let gguf = Gguf::from_bytes("test", writer.start(Vec::new())?.finish()?)?;
    assert_eq!(gguf.version(), 3);
    let read: Vec<_> = gguf
        .metadata()
        .iter()
        .map(|(key, value)| (key, value.clone()))
        .collect();
    assert_eq!(read, every_value());
    Ok(())
}

#[test]
fn tensors_survive_whole_and_in_pieces() -> Result<(), Error> {
    for alignment in [None, Some(8u32), Some(32), Some(4096)] {
        let mut writer = GgufWriter::new();
        if let Some(alignment) = alignment {
            writer.set("general.alignment", alignment)?;
        }
        let values: Vec<f32> = (0..2 * 3 * 256).map(|i| (i as f32 * 0.37).sin()).collect();
        for dtype in DType::all() {
            writer.declare(&format!("{dtype}.whole"), *dtype, &[2, 3, 256])?;
            writer.declare(&format!("{dtype}.pieces"), *dtype, &[1536])?;
        }
        let mut tensors = writer.start(Vec::new())?;
        for dtype in DType::all() {
            let mut bytes = Vec::new();
            dtype.encode(&values, &mut bytes);
            tensors.tensor(&format!("{dtype}.whole"), &bytes)?;
            for piece in bytes.chunks(61) {
                tensors.append(piece)?;
            }
        }
        let gguf = Gguf::from_bytes("test", tensors.finish()?)?;
        assert_eq!(gguf.tensors().len(), 2 * DType::all().len());
        for dtype in DType::all() {
            let whole = gguf.tensor(&format!("{dtype}.whole")).unwrap();
            let pieces = gguf.tensor(&format!("{dtype}.pieces")).unwrap();
            assert_eq!((whole.shape, whole.dtype), (&[2, 3, 256][..], *dtype));
            assert_eq!(
                (whole.rows(), whole.cols(), whole.elements()),
                (6, 256, 1536)
            );
            assert_eq!(
                (pieces.rows(), pieces.cols(), pieces.elements()),
                (1, 1536, 1536)
            );
            assert_eq!(whole.data(), pieces.data());
            assert_eq!(whole.data().len(), dtype.row_bytes(1536));
            let mut row = vec![0.0; 256];
            dtype.decode(whole.with(&whole.data()).row(5), &mut row);
            assert_eq!(row, whole.decode()[5 * 256..]);
        }
    }
    Ok(())
}

#[test]
fn names_and_numbers_of_types_are_unique_and_found() {
    for &dtype in DType::all() {
        assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        assert_eq!(DType::from_name(&dtype.name().to_lowercase()), Some(dtype));
        assert_eq!(DType::from_ggml_number(dtype.ggml_number()), Some(dtype));
        assert_eq!(
            fornax_gguf::ggml_type_name(dtype.ggml_number()),
            Some(dtype.name())
        );
    }
    assert_eq!(DType::from_name("q9_0"), None);
    assert_eq!(fornax_gguf::ggml_type_name(13), Some("Q5_K"));
    assert_eq!(fornax_gguf::ggml_type_name(40), Some("NVFP4"));
    assert_eq!(fornax_gguf::ggml_type_name(u32::MAX), None);
}

/// Versions 2 and 3 differ in what they allow about byte order, not in their layout.
#[test]
fn version_2_reads_as_version_3() -> Result<(), Error> {
    let mut writer = GgufWriter::new();
    for (key, value) in every_value() {
        writer.set(key, value)?;
    }
    writer.declare("t", DType::F32, &[1, 2])?;
    let mut tensors = writer.start(Vec::new())?;
    tensors.tensor("t", &[0, 0, 128, 63, 0, 0, 0, 64])?;
    let mut bytes = tensors.finish()?;
    bytes[4] = 2;
    let gguf = Gguf::from_bytes("version 2", bytes)?;
    assert_eq!(gguf.version(), 2);
    for (key, value) in every_value() {
        assert_eq!(gguf.metadata().value(key), Some(&value));
    }
    let values = gguf.tensor("t").map(|tensor| tensor.decode());
    assert_eq!(values, Some(vec![1.0, 2.0]));
    Ok(())
}
