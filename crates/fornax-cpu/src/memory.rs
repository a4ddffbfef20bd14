//! Large arrays outside of the allocator, and slices that several threads write to at once.
//!
//! Must not know what they hold.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
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

/// Zeros at first, on pages of their own, huge ones where the system has them: a weight read from
/// end to end then costs few address translations.
#[derive(Debug)]
pub(crate) struct Memory<T> {
    pages: MmapMut,
    /// Elements; the mapping is at least one byte long.
    len: usize,
    element: PhantomData<T>,
}

impl<T: Plain> Memory<T> {
    pub fn zeroed(len: usize) -> Result<Self, BackendError> {
        let bytes = len.checked_mul(size_of::<T>());
        let mapped = bytes.ok_or(std::io::ErrorKind::OutOfMemory.into());
        let mapped = mapped.and_then(|bytes| MmapMut::map_anon(bytes.max(1)));
        let pages = mapped.map_err(|error| {
            let element = size_of::<T>();
            BackendError(format!(
                "cpu: no memory for {len} elements of {element} bytes ({error}); use a smaller model, context or batch"
            ))
        })?;
        #[cfg(target_os = "linux")]
        {
            // Advice only: where the kernel was built without huge pages, small ones serve.
            let _advised = pages.advise(memmap2::Advice::HugePage);
        }
        Ok(Self {
            pages,
            len,
            element: PhantomData,
        })
    }
}

impl<T: Plain> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were mapped, aligned to a page, and any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.len) }
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
        for len in [0, 1, 70_000] {
            let mut memory = Memory::<f32>::zeroed(len).unwrap();
            assert!(memory.len() == len && memory.iter().all(|number| *number == 0.0));
            memory.fill(1.5);
            assert!(memory.iter().all(|number| *number == 1.5));
        }
        let error = Memory::<f32>::zeroed(usize::MAX / 2).unwrap_err();
        assert!(error.to_string().contains("smaller model"), "{error}");
    }
}
