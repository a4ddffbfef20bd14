//! What the mutation tests share: an allocator that counts, ways to corrupt a file, a small model
//! of every kind.
//!
//! The allocator counts for the whole process, so each test that uses it is the only one of its
//! binary.
#![allow(dead_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use fornax_gguf::{Error, Gguf, Value};

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

/// Reads all there is in a model, within its bounds and within `allowed` bytes of memory; whether it
/// opened.
pub fn survives(
    what: &dyn Debug,
    name: &str,
    allowed: usize,
    open: impl FnOnce() -> Result<Gguf, Error>,
) -> bool {
    let before = IN_USE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let opened = catch_unwind(AssertUnwindSafe(|| match open() {
        Ok(gguf) => {
            read_all(&gguf);
            true
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains(name) && message.len() < 1000, "{message}");
            false
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

/// Every prefix, every flipped bit, hostile lengths everywhere, and random damage.
pub fn mutants(original: &[u8], random_cases: usize, mut check: impl FnMut(&dyn Debug, Vec<u8>)) {
    for length in 0..original.len() {
        check(&("truncated", length), original[..length].to_vec());
    }
    for offset in 0..original.len() {
        for bit in 0..8 {
            let mut bytes = original.to_vec();
            bytes[offset] ^= 1 << bit;
            check(&("bit flipped", offset, bit), bytes);
        }
    }
    let mut random = Random(20_261_121);
    for case in 0..random_cases {
        let mut bytes = original.to_vec();
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
            gguf.tensor(tensor.name).map(|found| found.data()),
            Some(tensor.data())
        );
        assert_eq!(tensor.decode().len(), tensor.rows() * tensor.cols());
        assert_eq!(
            tensor.with(&tensor.data()).row(tensor.rows() - 1).len(),
            tensor.dtype.row_bytes(tensor.cols())
        );
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// In `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}
