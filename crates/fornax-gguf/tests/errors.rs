//! Every fault of a file is refused with an error that says what, where and what to do.
//!
//! Builds files byte by byte, as the writer refuses to write broken ones.

use std::path::Path;

use fornax_gguf::{DType, Error, Gguf};

/// A file in the making, field by field.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(tensors: u64, pairs: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(pairs)
    }

    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }

    fn u32(self, value: u32) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    fn string(self, text: &str) -> Raw {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A pair with a u32 value.
    fn pair(self, key: &str, value: u32) -> Raw {
        self.string(key).u32(4).u32(value)
    }

    /// A tensor's description; `dims` innermost first.
    fn tensor(self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Raw {
        let named = self.string(name).u32(dims.len() as u32);
        dims.iter()
            .fold(named, |raw, &length| raw.u64(length))
            .u32(kind)
            .u64(offset)
    }

    /// Padding to 32 bytes, then tensor data.
    fn data(mut self, length: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32) + length, 0);
        self
    }
}

/// Opens a broken file and checks that the error names the file and all of `parts`.
#[track_caller]
fn refused(raw: Raw, parts: &[&str]) {
    let error = Gguf::from_bytes("bad.gguf", raw.0).expect_err("the file is broken");
    names(&error, &["bad.gguf", ";"]);
    names(&error, parts);
}

#[track_caller]
fn names(error: &Error, parts: &[&str]) {
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}

#[test]
fn the_builder_builds_a_valid_file() {
    let raw = Raw::header(1, 1)
        .pair("a", 7)
        .tensor("t", &[32, 2], 8, 0)
        .data(68);
    let gguf = Gguf::from_bytes("good.gguf", raw.0).unwrap();
    assert_eq!(gguf.metadata().u32("a").unwrap(), 7);
    assert_eq!(gguf.tensor("t").unwrap().shape, [2, 32]);
    let mut version_2 = Raw::header(0, 0);
    version_2.0[4] = 2;
    assert_eq!(
        Gguf::from_bytes("good.gguf", version_2.0)
            .unwrap()
            .version(),
        2
    );
}

#[test]
fn files_of_other_kinds() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let error = Gguf::open(folder.join("absent.gguf")).unwrap_err();
    names(&error, &["absent.gguf", "cannot open"]);
    names(&Gguf::open(folder).unwrap_err(), &["folder", ".gguf"]);
    let empty = folder.join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    names(
        &Gguf::open(&empty).unwrap_err(),
        &["empty.gguf", "too short"],
    );

    refused(Raw(b"GG".to_vec()), &["too short"]);
    refused(
        Raw(b"PK\x03\x04zip".to_vec()),
        &["not a GGUF file", "PK\\x03\\x04", "convert"],
    );
    let version = |number: u32| Raw(b"GGUF".to_vec()).u32(number).u64(0).u64(0);
    refused(version(1), &["version 1 is not supported", "convert"]);
    refused(version(4), &["version 4 is not supported"]);
    refused(version(3u32.swap_bytes()), &["big-endian", "little-endian"]);
    refused(version(2u32.swap_bytes()), &["big-endian"]);
}

#[test]
fn a_mapped_file_reads_as_one_in_memory() {
    let bytes = Raw::header(1, 1)
        .pair("a", 7)
        .tensor("t", &[32, 2], 8, 0)
        .data(68)
        .0;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mapped.gguf");
    std::fs::write(&path, &bytes).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.source(), path.display().to_string());
    assert_eq!(gguf.len_bytes(), bytes.len() as u64);
    assert_eq!(gguf.tensor("t").unwrap().data(), &bytes[bytes.len() - 68..]);
}

#[test]
fn counts_that_the_file_cannot_hold() {
    refused(
        Raw::header(u64::MAX, 0),
        &["byte 8", "the number of tensors is 18446744073709551615"],
    );
    refused(
        Raw::header(0, 1 << 60),
        &["byte 16", "the number of metadata pairs is 11529215"],
    );
    refused(
        Raw::header(0, 1),
        &[
            "byte 16",
            "the number of metadata pairs is 1",
            "0 bytes are left",
        ],
    );
    let string = Raw::header(0, 1).string("some.key").u32(8).u64(1000);
    refused(
        string,
        &["byte 44", "\"some.key\"", "length of a string is 1000"],
    );
    let array = Raw::header(0, 1)
        .string("some.key")
        .u32(9)
        .u32(10)
        .u64(1 << 61)
        .u64(0);
    refused(
        array,
        &[
            "byte 48",
            "\"some.key\"",
            "the array's length is 2305843009213693952",
        ],
    );
    let strings = Raw::header(0, 1)
        .string("some.key")
        .u32(9)
        .u32(8)
        .u64(2)
        .u64(0);
    refused(
        strings,
        &["byte 48", "the array's length is 2", "8 bytes are left"],
    );
}

/// Of a file that is larger than memory a damaged count may claim nearly all.
#[test]
fn counts_that_memory_cannot_hold() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sparse.gguf");
    let array = |kind| Raw::header(0, 1).string("some.key").u32(9).u32(kind);
    let claims = [
        (Raw::header(1 << 25, 0), "the header"),
        (array(0).u64(3 << 30), "\"some.key\""),
        (array(8).u64(1 << 28), "\"some.key\""),
        (array(9).u64(1 << 27), "\"some.key\""),
        (
            Raw::header(0, 1).string("some.key").u32(8).u64(3 << 30),
            "\"some.key\"",
        ),
    ];
    for (raw, subject) in claims {
        std::fs::write(&path, &raw.0).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(4 << 30).unwrap();
        let error = Gguf::open(&path).err().unwrap();
        names(&error, &["sparse.gguf", subject, "more than 1 GiB"]);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn truncated_values() {
    let number = Raw::header(0, 1).string("some.key").u32(10).u32(0);
    refused(
        number,
        &[
            "byte 44",
            "\"some.key\"",
            "needs 8 bytes",
            "ends after 4",
            "download",
        ],
    );
    let key = Raw::header(0, 1).u64(6).bytes(b"aaaaaa");
    refused(key, &["byte 38", "\"aaaaaa\"", "type needs 4 bytes"]);
}

#[test]
fn metadata_that_means_nothing() {
    let key = Raw::header(0, 1).u64(3).bytes(b"a\xffb").u32(4).u32(0);
    refused(
        key,
        &["byte 33", "metadata pair 0", "the key is not valid UTF-8"],
    );
    let text = Raw::header(0, 1)
        .string("k")
        .u32(8)
        .u64(2)
        .bytes(b"\xc3\x28");
    refused(text, &["byte 45", "\"k\"", "not valid UTF-8"]);
    refused(
        Raw::header(0, 1).pair("", 0).u64(0),
        &["byte 24", "1 to 65535 bytes, not 0"],
    );
    refused(
        Raw::header(0, 1).pair(&"k".repeat(65536), 0),
        &["not 65536", "kkkk\"…"],
    );
    refused(
        Raw::header(0, 2).pair("k", 0).pair("k", 1),
        &["byte 41", "\"k\"", "twice"],
    );
    refused(
        Raw::header(0, 1).string("k").u32(13).u32(0),
        &["byte 33", "\"k\"", "no metadata type 13"],
    );
    let element = Raw::header(0, 1).string("k").u32(9).u32(77).u64(0);
    refused(element, &["byte 37", "\"k\"", "no metadata type 77"]);
    let boolean = Raw::header(0, 1).string("k").u32(7).bytes(&[2]);
    refused(boolean, &["byte 37", "\"k\"", "a bool is 0 or 1, not 2"]);
    let nested = (0..1000).fold(Raw::header(0, 1).string("k").u32(9), |raw, _| {
        raw.u32(9).u64(1)
    });
    refused(nested, &["\"k\"", "deeper than 8"]);
    let control = Raw::header(0, 2)
        .pair("\u{1b}[31m", 0)
        .pair("\u{1b}[31m", 0);
    refused(control, &["\"\\u{1b}[31m\""]);
}

#[test]
fn alignments() {
    for wrong in [0, 1, 4, 24, 1 << 21, u32::MAX] {
        let raw = Raw::header(0, 1).pair("general.alignment", wrong);
        refused(
            raw,
            &[
                "\"general.alignment\"",
                &format!("is {wrong},"),
                "power of two",
            ],
        );
    }
    let text = Raw::header(0, 1)
        .string("general.alignment")
        .u32(8)
        .string("32");
    refused(text, &["\"general.alignment\"", "string", "an integer"]);
    let huge = Raw::header(1, 1)
        .pair("general.alignment", 1 << 20)
        .tensor("t", &[1], 0, 0);
    refused(huge.data(4), &["\"t\"", "ends after the file"]);
}

#[test]
fn tensors_that_cannot_be() {
    let one = || Raw::header(1, 0);
    refused(
        one().tensor("", &[32], 0, 0).data(128),
        &["byte 24", "tensor 0 of 1", "the name is empty"],
    );
    refused(
        one().tensor("t", &[], 0, 0).data(128),
        &["byte 33", "\"t\"", "0 dimensions, not 1 to 4"],
    );
    refused(
        one().tensor("t", &[1; 5], 0, 0).data(128),
        &["byte 33", "\"t\"", "5 dimensions, not 1 to 4"],
    );
    refused(
        one().tensor("t", &[32, 0], 0, 0).data(128),
        &["byte 45", "\"t\"", "dimension 1 is 0"],
    );
    refused(
        one().tensor("t", &[48, 2], 8, 0).data(128),
        &["\"t\"", "rows of 48", "Q8_0 blocks of 32"],
    );
    refused(
        one().tensor("t", &[1 << 32, 1 << 32], 0, 0).data(128),
        &["\"t\"", "overflows"],
    );
    // The elements overflow though the bytes would not.
    refused(
        one().tensor("t", &[1 << 32, 1 << 32], 2, 0).data(128),
        &["\"t\"", "overflows"],
    );
    let twice = Raw::header(2, 0)
        .tensor("t", &[8], 0, 0)
        .tensor("t", &[8], 0, 32)
        .data(64);
    refused(twice, &["byte 57", "\"t\"", "twice"]);
}

#[test]
fn tensor_types_that_are_not_read() {
    let kind = |number| {
        Raw::header(1, 0)
            .tensor("blk.0.x", &[256], number, 0)
            .data(256)
    };
    let supported = DType::list();
    refused(
        kind(18),
        &[
            "byte 51",
            "\"blk.0.x\"",
            "IQ3_XXS (ggml type 18) is not supported",
            &supported,
        ],
    );
    refused(kind(5), &["Q4_3 (ggml type 5)"]);
    refused(kind(999), &["an unknown type (ggml type 999)"]);
}

#[test]
fn tensor_data_out_of_place() {
    let one = |offset| Raw::header(1, 0).tensor("t", &[8], 0, offset);
    refused(
        one(8).data(64),
        &["byte 49", "\"t\"", "offset 8 is not a multiple of 32"],
    );
    refused(
        one(0).data(31),
        &["\"t\"", "bytes 0 to 32", "ends after the file (95 bytes)"],
    );
    refused(
        one(32).data(32),
        &["\"t\"", "bytes 32 to 64", "ends after the file"],
    );
    refused(
        one(u64::MAX - 31).data(64),
        &["byte 49", "\"t\"", "far outside"],
    );
    refused(
        one((i64::MAX as u64) & !31).data(64),
        &["\"t\"", "ends after the file"],
    );
    refused(one(0), &["\"t\"", "ends after the file"]);
    let overlapping = Raw::header(2, 0)
        .tensor("a", &[16], 0, 32)
        .tensor("b", &[9], 0, 0);
    refused(
        overlapping.data(128),
        &["byte 128", "\"a\"", "overlaps that of tensor \"b\""],
    );
    let same = Raw::header(2, 0)
        .tensor("a", &[8], 0, 0)
        .tensor("b", &[8], 0, 0);
    refused(same.data(128), &["\"b\"", "overlaps that of tensor \"a\""]);
}
