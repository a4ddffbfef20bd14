//! Questions that a file cannot answer, and writing what would be no file, are errors by name.
//!
//! Knows the public interface only; faults of files are in `errors.rs`.

use fornax_gguf::{DType, Error, Gguf, GgufWriter, Value};

#[track_caller]
fn names(error: &Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}

#[test]
fn questions_to_metadata() {
    let mut writer = GgufWriter::new();
    for (key, value) in [
        ("text", Value::from("x")),
        ("negative", Value::I8(-1)),
        ("large", Value::U64(1 << 32)),
        ("small", Value::U8(5)),
        ("double", Value::F64(0.5)),
        ("numbers", Value::from(vec![1i64, -2])),
        ("floats", Value::from(vec![1.0f32])),
    ] {
        writer.set(key, value).unwrap();
    }
    let file = writer.start(Vec::new()).unwrap().finish().unwrap();
    let gguf = Gguf::from_bytes("m.gguf", file).unwrap();
    let metadata = gguf.metadata();
    assert_eq!(metadata.u32("small").unwrap(), 5);
    assert_eq!(metadata.u64("large").unwrap(), 1 << 32);
    assert_eq!(metadata.f32("double").unwrap(), 0.5);
    assert_eq!(metadata.i32s("numbers").unwrap(), [1, -2]);
    assert_eq!(metadata.f32s("floats").unwrap(), [1.0]);
    assert_eq!(metadata.optional_str("absent").unwrap(), None);
    let missing = ["m.gguf", "\"absent\"", "missing", "convert"];
    names(
        &metadata.u32("absent").unwrap_err(),
        &[&missing[..], &["an integer"]].concat(),
    );
    names(
        &metadata.str("absent").unwrap_err(),
        &[&missing[..], &["a string"]].concat(),
    );
    names(
        &metadata.strings("absent").unwrap_err(),
        &[&missing[..], &["array of strings"]].concat(),
    );
    names(
        &metadata.u32("text").unwrap_err(),
        &["m.gguf", "\"text\"", "is string", "an integer"],
    );
    names(
        &metadata.optional_u32("text").unwrap_err(),
        &["\"text\"", "is string", "an integer"],
    );
    names(
        &metadata.u32("negative").unwrap_err(),
        &["\"negative\"", "i8 -1", "0 to 4294967295"],
    );
    names(
        &metadata.u32("large").unwrap_err(),
        &["\"large\"", "u64 4294967296"],
    );
    names(
        &metadata.bool("small").unwrap_err(),
        &["\"small\"", "u8 5", "a bool"],
    );
    names(
        &metadata.f32("small").unwrap_err(),
        &["\"small\"", "u8 5", "a float"],
    );
    names(
        &metadata.u32s("numbers").unwrap_err(),
        &["\"numbers\"", "array of i64", "fit u32"],
    );
    names(
        &metadata.f32s("numbers").unwrap_err(),
        &["\"numbers\"", "array of i64", "array of f32"],
    );
    names(
        &metadata.strings("text").unwrap_err(),
        &["\"text\"", "is string", "array of strings"],
    );
}

#[test]
fn what_the_writer_refuses() {
    #[track_caller]
    fn refused(result: Result<(), Error>, parts: &[&str]) {
        let error = result.expect_err("would be no valid file");
        names(&error, &["cannot write GGUF"]);
        names(&error, parts);
    }
    let mut writer = GgufWriter::new();
    writer.set("k", 1u32).unwrap();
    refused(writer.set("k", 2u32), &["\"k\"", "twice"]);
    refused(writer.set("", 2u32), &["0 bytes"]);
    refused(
        writer.set("general.alignment", 24u32),
        &["general.alignment", "power of two"],
    );
    refused(
        writer.set("general.alignment", "32"),
        &["general.alignment", "power of two"],
    );
    // Of any type that the reader takes, and written as a u32.
    writer.set("general.alignment", 64u64).unwrap();
    writer.declare("t", DType::Q8_0, &[2, 32]).unwrap();
    refused(writer.declare("t", DType::F32, &[1]), &["\"t\"", "twice"]);
    refused(writer.declare("", DType::F32, &[1]), &["name is empty"]);
    refused(writer.declare("u", DType::F32, &[]), &["\"u\"", "[]"]);
    refused(
        writer.declare("u", DType::F32, &[2, 0]),
        &["\"u\"", "[2, 0]"],
    );
    refused(writer.declare("u", DType::F32, &[1; 5]), &["\"u\""]);
    refused(
        writer.declare("u", DType::Q4_0, &[33]),
        &["\"u\"", "rows of 33"],
    );
    refused(
        writer.declare("u", DType::F32, &[usize::MAX, 2]),
        &["\"u\"", "overflows"],
    );
    writer.declare("u", DType::F32, &[1]).unwrap();

    let mut tensors = writer.start(Vec::new()).unwrap();
    refused(tensors.tensor("u", &[0; 4]), &["\"u\"", "due", "\"t\""]);
    refused(tensors.tensor("t", &[0; 67]), &["67 bytes", "\"t\"", "68"]);
    refused(
        tensors.append(&[0; 69]),
        &["\"t\"", "lacks 68 bytes, not 69"],
    );
    tensors.append(&[0; 60]).unwrap();
    refused(tensors.tensor("t", &[0; 68]), &["bytes 60 to 68"]);
    tensors.append(&[0; 8]).unwrap();
    tensors.tensor("u", &[0; 4]).unwrap();
    refused(tensors.append(&[]), &["complete"]);
    refused(tensors.tensor("v", &[0; 4]), &["\"v\"", "not declared"]);
    tensors.finish().unwrap();

    let mut writer = GgufWriter::new();
    writer.declare("t", DType::F32, &[2]).unwrap();
    let mut tensors = writer.start(Vec::new()).unwrap();
    tensors.append(&[0; 5]).unwrap();
    refused(tensors.finish().map(drop), &["\"t\"", "5 of 8 bytes"]);
}
