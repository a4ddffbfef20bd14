//! No file on earth makes the reader panic, hang or allocate more than the file's size justifies.
//!
//! A small file that holds everything is truncated and corrupted in every place, tens of thousands
//! of times; whatever still opens is read to the last value. The only test of its binary, because
//! its allocator counts for the whole process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use fornax_gguf::{Array, DType, Gguf, GgufWriter, Value};

/// The system's allocator with a record of how much is in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(in_use, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn corrupted_files_are_refused_or_read_in_bounds() {
    let original = everything();
    assert!(
        survives(&"nothing", original.clone()),
        "the original file must open"
    );
    let (mut cases, mut opened) = (0, 0);
    let mut check = |what: &dyn Debug, bytes: Vec<u8>| {
        cases += 1;
        opened += usize::from(survives(what, bytes));
    };
    for length in 0..original.len() {
        check(&("truncated", length), original[..length].to_vec());
    }
    for offset in 0..original.len() {
        for bit in 0..8 {
            let mut bytes = original.clone();
            bytes[offset] ^= 1 << bit;
            check(&("bit flipped", offset, bit), bytes);
        }
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
    let mut random = Random(20_261_121);
    for case in 0..20_000 {
        let mut bytes = original.clone();
        for _ in 0..=random.below(8) {
            let offset = random.below(bytes.len());
            bytes[offset] = random.below(256) as u8;
        }
        // Every other file also loses a byte and gains one elsewhere.
        if case % 2 == 0 {
            bytes.remove(random.below(bytes.len()));
            bytes.insert(random.below(bytes.len()), random.below(256) as u8);
        }
        check(&("random bytes", case), bytes);
    }
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

/// Reads all there is in a file, within its bounds and within memory; whether it opened.
fn survives(what: &dyn Debug, bytes: Vec<u8>) -> bool {
    // Decoding makes 7 bytes from one of Q4_0. The rest is for names, tables and errors.
    let allowed = 8 * bytes.len() + (4 << 10);
    let before = IN_USE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let opened = catch_unwind(AssertUnwindSafe(|| {
        match Gguf::from_bytes("mutant", bytes) {
            Ok(gguf) => {
                read_all(&gguf);
                true
            }
            Err(error) => {
                let message = error.to_string();
                assert!(
                    message.contains("mutant") && message.len() < 1000,
                    "{message}"
                );
                false
            }
        }
    }));
    let peak = PEAK.load(Relaxed) - before;
    assert!(opened.is_ok(), "{what:?}: panicked");
    assert!(
        peak <= allowed,
        "{what:?}: allocated {peak} bytes where {allowed} are justified"
    );
    opened.unwrap_or(false)
}

fn read_all(gguf: &Gguf) {
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        assert_eq!(
            metadata.value(key).map(Value::type_name),
            Some(value.type_name())
        );
        let answers = [
            metadata.u32(key).is_ok(),
            metadata.f32(key).is_ok(),
            metadata.bool(key).is_ok(),
            metadata.str(key).is_ok(),
            metadata.strings(key).is_ok(),
            metadata.f32s(key).is_ok(),
            metadata.i32s(key).is_ok(),
            metadata.u32s(key).is_ok(),
        ];
        assert!(answers.iter().filter(|&&answer| answer).count() <= 2);
    }
    for tensor in gguf.tensors() {
        assert_eq!(
            gguf.tensor(tensor.name).map(|found| found.data),
            Some(tensor.data)
        );
        assert_eq!(tensor.decode().len(), tensor.rows() * tensor.cols());
        assert_eq!(
            tensor.row(tensor.rows() - 1).len(),
            tensor.dtype.row_bytes(tensor.cols())
        );
    }
}

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

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
