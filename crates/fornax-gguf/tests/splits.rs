//! Models split over several files, opened by naming the first.

use std::{env, fs, path::PathBuf};

use fornax_gguf::{DType, Error, Gguf, GgufWriter};

/// A part of a model whose tensors are named; its data are its name's length.
fn part(number: u16, count: u16, tensors: &[&str], total: i32) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("split.no", number).expect("a valid pair");
    writer.set("split.count", count).expect("a valid pair");
    writer
        .set("split.tensors.count", total)
        .expect("a valid pair");
    if number == 0 {
        writer
            .set("general.architecture", "llama")
            .expect("a valid pair");
    }
    for name in tensors {
        writer
            .declare(name, DType::F32, &[1])
            .expect("a valid tensor");
    }
    let mut stream = writer.start(Vec::new()).expect("a valid head");
    for name in tensors {
        let value = name.len() as f32;
        stream
            .append(&value.to_le_bytes())
            .expect("memory takes all");
    }
    stream.finish().expect("all tensors are written")
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("fornax-splits-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    folder
}

fn refused(result: Result<Gguf, Error>, parts: &[&str]) {
    let message = result.expect_err("the model is broken").to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}

#[test]
fn all_parts_make_one_model() -> Result<(), Error> {
    let folder = folder("whole");
    let path = |number: u32| folder.join(format!("model-{number:05}-of-00003.gguf"));
    let files = [
        part(0, 3, &[], 3),
        part(1, 3, &["a", "bb"], 3),
        part(2, 3, &["ccc"], 3),
    ];
    for (number, bytes) in (1..).zip(&files) {
        fs::write(path(number), bytes).expect("a writable folder");
    }
    let model = Gguf::open(path(1))?;
    assert_eq!(model.metadata().str("general.architecture")?, "llama");
    assert_eq!(model.tensors().len(), 3);
    assert_eq!(
        model.tensor("ccc").map(|tensor| tensor.decode()),
        Some(vec![3.0])
    );
    let size: usize = files.iter().map(Vec::len).sum();
    assert_eq!(model.len_bytes(), size as u64);

    refused(
        Gguf::open(path(2)),
        &["00002-of-00003", "part 2 of 3", "name the first part"],
    );
    fs::remove_file(path(3)).expect("it was written");
    let shown = folder.display().to_string();
    refused(
        Gguf::open(path(1)),
        &[
            "missing in",
            &shown,
            ": model-00003-of-00003.gguf;",
            "download",
        ],
    );
    fs::remove_file(path(2)).expect("it was written");
    let both = "model-00002-of-00003.gguf, model-00003-of-00003.gguf";
    refused(Gguf::open(path(1)), &[both]);
    let other = folder.join("renamed.gguf");
    fs::rename(path(1), &other).expect("it was written");
    refused(
        Gguf::open(&other),
        &["renamed.gguf", "-00001-of-00003.gguf"],
    );
    fs::remove_dir_all(&folder).expect("a folder of our own");
    Ok(())
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let named = |parts: &[Vec<u8>]| {
        let names = (0..).map(|number| format!("part {number}"));
        Gguf::from_parts(names.zip(parts.iter().cloned()).collect())
    };
    let (first, second) = (part(0, 2, &["a"], 2), part(1, 2, &["b"], 2));
    assert!(named(&[first.clone(), second.clone()]).is_ok());
    refused(named(&[]), &["no parts"]);
    refused(
        named(std::slice::from_ref(&first)),
        &["part 0", "2 parts", "1 are here"],
    );
    refused(
        named(&[second.clone(), first.clone()]),
        &["part 0", "is part 2 of 2"],
    );
    refused(
        named(&[part(u16::MAX, 2, &["b"], 2)]),
        &["part 0", "is part 65536 of 2"],
    );
    refused(
        named(&[first.clone(), first.clone()]),
        &["part 1", "part 1 of 2 where part 2"],
    );
    refused(
        named(&[first.clone(), part(1, 3, &["b"], 2)]),
        &["part 2 of 3"],
    );
    refused(
        named(&[first.clone(), part(1, 2, &["a"], 2)]),
        &["part 1", "\"a\"", "earlier"],
    );
    refused(
        named(&[first.clone(), part(1, 2, &["b", "c"], 2)]),
        &["have 2 tensors", "have 3"],
    );
    refused(
        Gguf::from_bytes("alone", first),
        &["alone", "first of 2 parts"],
    );
}
