//! Large arrays outside of the allocator, and slices that several threads write to at once.
//!
//! Must not know what they hold.

use std::{
    alloc::{Layout, handle_alloc_error},
    marker::PhantomData,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::Arc,
};

use fornax_backend::BackendError;
use memmap2::MmapMut;

/// A cache line of scratch: what lies in a vector of them is read without crossing lines.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Line([f32; 16]);

impl Line {
    /// Lines that hold so many elements.
    pub fn count<T: Plain>(elements: usize) -> usize {
        (elements * size_of::<T>()).div_ceil(size_of::<Line>())
    }

    /// Lines as what they hold.
    pub fn of<T: Plain>(lines: &mut [Line]) -> &mut [T] {
        let len = size_of_val(lines) / size_of::<T>();
        // SAFETY: a line is 64 written bytes, aligned for any number, and any bits are one.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), len) }
    }
}

/// Numbers for which every bit pattern is a value.
///
/// # Safety
/// Zero bytes and all others are valid, and the alignment is that of a page or less.
pub(crate) unsafe trait Plain: Copy + Send + Sync {}
// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: numbers.
unsafe impl Plain for i8 {}
// SAFETY: numbers.
unsafe impl Plain for u16 {}
// SAFETY: numbers.
unsafe impl Plain for u32 {}
// SAFETY: numbers.
unsafe impl Plain for i32 {}
// SAFETY: numbers.
unsafe impl Plain for f32 {}
// SAFETY: numbers.
unsafe impl Plain for Line {}

/// Zeros at first, on pages that nothing else of the program lies on.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    /// Keeps the pages.
    _chunk: Arc<Chunk>,
    /// Aligned to a small page.
    start: NonNull<T>,
    /// Elements.
    len: usize,
}

// SAFETY: numbers, which this alone refers to, or whoever `Shared` tells where they are.
unsafe impl<T: Plain> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Memory<T> {}

impl<T: Plain> Memory<T> {
    /// Of a mapping of its own.
    pub fn zeroed(len: usize) -> Result<Self, BackendError> {
        Arena::of_chunks(1).zeroed(len)
    }
}

/// Bytes of which several owners have their places, as they settle among themselves; zeros at first. Never
/// a slice as a whole: some may be borrowed while others are written to.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Memory<u8>>);

impl Shared {
    /// Of a mapping of its own.
    pub fn zeroed(bytes: usize) -> Result<Self, BackendError> {
        Ok(Self(Arc::new(Memory::zeroed(bytes)?)))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Where a byte lies.
    #[inline(always)]
    pub fn at(&self, index: usize) -> *mut u8 {
        assert!(index < self.0.len);
        self.0.start.as_ptr().wrapping_add(index)
    }

    /// The bytes `first .. first + count`.
    ///
    /// # Safety
    /// Nobody writes to them while they are borrowed.
    #[inline(always)]
    pub unsafe fn part(&self, first: usize, count: usize) -> &[u8] {
        let len = self.0.len;
        assert!(first <= len && count <= len - first);
        // SAFETY: inside of what is mapped, and the caller vouches for who writes.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr().add(first), count) }
    }
}

/// Arrays that stay, side by side on huge pages where the system has them: an array that is read from
/// end to end then costs few address translations, and the next one is fetched ahead across its
/// small pages. Arrays of a few MiB with a mapping each would rarely hold a whole huge page.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Bytes of a chunk, unless an array needs a larger one.
    chunk_bytes: usize,
    /// The one that the next array goes to, if it fits.
    chunk: Option<Arc<Chunk>>,
    /// Bytes of it that arrays have.
    used: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self::of_chunks(CHUNK)
    }
}

/// Bytes of a chunk. What no array has of the last one is never touched, so that it takes address
/// space only.
const CHUNK: usize = 256 << 20;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Bytes of a small page.
pub(crate) const SMALL: usize = 4096;

impl Arena {
    fn of_chunks(chunk_bytes: usize) -> Self {
        Self {
            chunk_bytes,
            chunk: None,
            used: 0,
        }
    }

    /// The next array.
    pub fn zeroed<T: Plain>(&mut self, len: usize) -> Result<Memory<T>, BackendError> {
        let refuse = |error: std::io::Error| {
            let element = size_of::<T>();
            BackendError(format!(
                "cpu: no memory for {len} elements of {element} bytes ({error}); use a smaller model, context or batch"
            ))
        };
        let bytes = len.checked_mul(size_of::<T>());
        let bytes = bytes.and_then(|bytes| bytes.max(1).checked_next_multiple_of(SMALL));
        let bytes = bytes.ok_or_else(|| refuse(std::io::ErrorKind::OutOfMemory.into()))?;
        let chunk = match &self.chunk {
            Some(chunk) if bytes <= chunk.bytes - self.used => chunk.clone(),
            _ => {
                let chunk = Chunk::map(bytes.max(self.chunk_bytes)).map_err(refuse)?;
                self.used = 0;
                self.chunk.insert(Arc::new(chunk)).clone()
            }
        };
        // SAFETY: `bytes` from there on are in the chunk, behind all that other arrays have.
        let start = unsafe { chunk.start.add(self.used) }.cast();
        self.used += bytes;
        Ok(Memory {
            _chunk: chunk,
            start,
            len,
        })
    }
}

/// A mapping, which begins on a huge page where it holds one.
#[derive(Debug)]
struct Chunk {
    _pages: MmapMut,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it only keeps its pages; who reads and writes them is for `Memory` to say.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// At least so many bytes.
    fn map(bytes: usize) -> std::io::Result<Self> {
        let slack = match bytes >= HUGE {
            true => HUGE,
            false => 0,
        };
        let whole = bytes.checked_add(slack);
        let whole = whole.ok_or(std::io::ErrorKind::OutOfMemory)?;
        let mut pages = MmapMut::map_anon(whole)?;
        #[cfg(target_os = "linux")]
        if whole >= HUGE {
            // Advice only: where the kernel was built without huge pages, small ones serve.
            let _advised = pages.advise(memmap2::Advice::HugePage);
        }
        let skipped = match slack {
            0 => 0,
            _ => pages.as_ptr().align_offset(HUGE).min(slack),
        };
        let start = NonNull::from(&mut pages[skipped..]).cast();
        Ok(Self {
            _pages: pages,
            start,
            bytes,
        })
    }
}

impl<T: Plain> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements are mapped and this array's alone, aligned to a page, and any bytes
        // are valid.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Scratch: grows to what the largest step needs, stays, and holds nothing that lasts. Much of it lies
/// on huge pages; little lies where the allocator puts it, in sight of a sanitizer.
#[derive(Debug)]
pub(crate) enum Growing<T> {
    Little(Vec<T>),
    Much(Memory<T>),
}

impl<T> Default for Growing<T> {
    fn default() -> Self {
        Self::Little(Vec::new())
    }
}

impl<T: Plain + Default> Growing<T> {
    /// Makes room for `len` values, which are zero where there was less.
    pub fn grow(&mut self, len: usize) {
        if self.len() >= len {
            return;
        }
        // So that steps that become a little longer each time do not all take memory.
        let len = len.max(2 * self.len());
        // Not both at once.
        *self = Self::default();
        *self = match len.checked_mul(size_of::<T>()) {
            Some(bytes) if bytes < HUGE => Self::Little(vec![T::default(); len]),
            _ => Self::Much(Memory::zeroed(len).unwrap_or_else(|_| {
                handle_alloc_error(Layout::array::<T>(len).unwrap_or(Layout::new::<T>()))
            })),
        };
    }
}

impl<T: Plain> Deref for Growing<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Little(values) => values,
            Self::Much(values) => values,
        }
    }
}

impl<T: Plain> DerefMut for Growing<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Little(values) => values,
            Self::Much(values) => values,
        }
    }
}

/// A slice whose parts different threads write to.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: threads reach disjoint parts only, which `part` demands.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// The elements `first .. first + count`.
    ///
    /// # Safety
    /// No element of it is in another part that lives at the same time.
    #[inline(always)]
    pub unsafe fn part(self, first: usize, count: usize) -> &'a mut [T] {
        assert!(first <= self.len && count <= self.len - first);
        // SAFETY: inside the slice, and the caller vouches that nobody else has it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), count) }
    }

    /// Where an element lies.
    #[inline(always)]
    pub fn at(self, index: usize) -> *mut T {
        assert!(index < self.len);
        self.start.wrapping_add(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_what_they_hold() {
        let mut lines = vec![Line::default(); Line::count::<u16>(40)];
        assert_eq!(lines.len(), 2);
        let numbers: &mut [u16] = Line::of(&mut lines);
        assert_eq!(numbers.len(), 64);
        numbers[33] = 7;
        let bytes: &mut [u8] = Line::of(&mut lines);
        assert_eq!(bytes.iter().position(|byte| *byte != 0), Some(66));
    }

    #[test]
    fn threads_write_to_parts_at_once() {
        let mut numbers = [0_u32; 10];
        let parts = Parts::new(&mut numbers);
        std::thread::scope(|scope| {
            for index in 0..5 {
                scope.spawn(move || {
                    // SAFETY: each thread has two elements of its own.
                    let part = unsafe { parts.part(2 * index, 2) };
                    part.fill(index as u32);
                });
            }
        });
        assert_eq!(numbers, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
    }

    #[test]
    #[should_panic(expected = "first <= self.len")]
    fn no_part_reaches_beyond_its_slice() {
        let mut numbers = [0_u32; 10];
        // SAFETY: it is the only part.
        let _ = unsafe { Parts::new(&mut numbers).part(8, 3) };
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn memory_is_zero_and_holds_what_is_written() {
        for len in [0, 1, 70_000, HUGE] {
            let mut memory = Memory::<f32>::zeroed(len).unwrap();
            assert!(memory.len() == len && memory.iter().all(|number| *number == 0.0));
            memory.fill(1.5);
            assert!(memory.iter().all(|number| *number == 1.5));
        }
        let error = Memory::<f32>::zeroed(usize::MAX / 2).unwrap_err();
        assert!(error.to_string().contains("smaller model"), "{error}");
        let error = Memory::<u8>::zeroed(usize::MAX).unwrap_err();
        assert!(error.to_string().contains("smaller model"), "{error}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn scratch_grows_and_stays() {
        let mut scratch = Growing::<u32>::default();
        for (wanted, there) in [(3, 3), (2, 3), (4, 6), (HUGE, HUGE), (9, HUGE)] {
            scratch.grow(wanted);
            assert_eq!(scratch.len(), there);
            assert!(scratch[wanted - 1] == 0 || there > wanted);
            scratch.fill(7);
        }
        assert!(matches!(scratch, Growing::Much(_)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn arrays_lie_side_by_side_and_never_in_each_other() {
        let mut arena = Arena::of_chunks(4 * SMALL);
        let mut arrays: Vec<Memory<u32>> = [1, 1024, 1025, 0, 9000, 5]
            .map(|len| arena.zeroed(len).unwrap())
            .into();
        for (number, array) in (1..).zip(&mut arrays) {
            assert!(array.iter().all(|old| *old == 0));
            assert!(array.as_ptr().addr().is_multiple_of(SMALL));
            array.fill(number);
        }
        for (number, array) in (1..).zip(&arrays) {
            assert!(array.iter().all(|written| *written == number));
        }
        assert_eq!(
            arrays[1].as_ptr().addr() - arrays[0].as_ptr().addr(),
            SMALL,
            "of one chunk"
        );
        // Each outlives the others.
        arrays.truncate(2);
        drop((arena, arrays.swap_remove(0)));
        assert!(arrays[0].iter().all(|written| *written == 2));
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory")]
    fn a_large_chunk_begins_on_a_huge_page() {
        let memory = Arena::default().zeroed::<u8>(3 * SMALL).unwrap();
        assert!(memory.as_ptr().addr().is_multiple_of(HUGE));
    }
}
