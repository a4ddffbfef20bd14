//! The same for models of several files: split ones, and folders.
//!
//! One file of the model is corrupted at a time.

mod mutants;
mod small_folder;

use std::fmt::Debug;

use fornax_gguf::{DType, Gguf, GgufWriter};
use mutants::survives;

#[test]
fn corrupted_parts_and_folders_are_refused_or_read_in_bounds() {
    let split: Files = (0..3)
        .map(|number| (format!("mutant-{number}"), part(number)))
        .collect();
    check_each(&split, 8, 500, Gguf::from_parts);
    // JSON takes little room in a file: its trees take more than its text.
    check_each(&small_folder::files(), 32, 2_000, |files| {
        Gguf::from_folder("mutant", files)
    });
}

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

fn check_each(
    files: &[(String, Vec<u8>)],
    per_byte: usize,
    random_cases: usize,
    open: fn(Files) -> Result<Gguf, fornax_gguf::Error>,
) {
    let size: usize = files.iter().map(|(_, bytes)| bytes.len()).sum();
    let allowed = per_byte * size + (64 << 10);
    let opens = |what: &dyn Debug, files| survives(what, "mutant", allowed, || open(files));
    assert!(opens(&"nothing", files.to_vec()), "the original must open");
    let (mut cases, mut opened) = (0, 0);
    for (index, (name, bytes)) in files.iter().enumerate() {
        mutants::mutants(bytes, random_cases, |what, bytes| {
            let mut files = files.to_vec();
            files[index].1 = bytes;
            cases += 1;
            opened += usize::from(opens(&(name, what), files));
        });
        let mut without = files.to_vec();
        without.remove(index);
        opens(&(name, "removed"), without);
    }
    assert!(cases > 2_000, "{cases} cases");
    assert!(opened > 0 && opened < cases, "{opened} of {cases} opened");
}

/// A part of a model of three.
fn part(number: u16) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    let pairs = [("split.no", number), ("split.count", 3)];
    for (key, value) in pairs {
        writer.set(key, value).expect("a valid pair");
    }
    writer
        .set("split.tensors.count", 3i32)
        .expect("a valid pair");
    let name = format!("tensor {number}");
    writer
        .declare(&name, DType::Q8_0, &[32])
        .expect("a valid tensor");
    let mut tensors = writer.start(Vec::new()).expect("a valid head");
    tensors.append(&[1; 34]).expect("memory takes all");
    tensors.finish().expect("all tensors are written")
}
