//! Memory of the device and page-locked memory of the host, given back when dropped.
//!
//! Must not know what lies in it.

use std::sync::Arc;

use cudarc::driver::result;
use fornax_backend::BackendError;

use crate::device::Device;

/// A piece of device memory.
pub(crate) struct Memory {
    device: Arc<Device>,
    pointer: u64,
    bytes: usize,
}

impl Memory {
    /// Takes `bytes`, aligned to 256; what they hold is undefined.
    pub fn new(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Self, BackendError> {
        Ok(Self {
            pointer: device.take(bytes, what)?,
            device: Arc::clone(device),
            bytes,
        })
    }

    /// As [`new`](Self::new), filled with zeros.
    pub fn zeroed(device: &Arc<Device>, bytes: usize, what: &str) -> Result<Self, BackendError> {
        let memory = Self::new(device, bytes, what)?;
        memory.clear(0, bytes)?;
        Ok(memory)
    }

    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills a part with zeros, in order with all launches.
    pub fn clear(&self, offset: usize, bytes: usize) -> Result<(), BackendError> {
        assert!(
            offset + bytes <= self.bytes,
            "invariant: inside of the memory"
        );
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind();
        // SAFETY: the range is inside of memory that we own.
        unsafe {
            result::memset_d8_async(self.pointer + offset as u64, 0, bytes, self.device.stream())
        }
        .map_err(|error| self.device.error("clearing memory", error))
    }

    /// Writes from the host, in order with all launches; returns when `values` may be dropped.
    pub fn write<T: Copy>(&self, offset: usize, values: &[T]) -> Result<(), BackendError> {
        self.start_write(offset, values)?;
        self.device.synchronize()
    }

    /// As [`write`](Self::write), without waiting: `values` must be page-locked and stay as they
    /// are until the device has read them, or be pageable, which the driver copies first.
    pub fn start_write<T: Copy>(&self, offset: usize, values: &[T]) -> Result<(), BackendError> {
        let bytes = std::mem::size_of_val(values);
        assert!(
            offset + bytes <= self.bytes,
            "a write behind the end of device memory"
        );
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind();
        // SAFETY: the range is inside of memory that we own, and `values` is that long.
        unsafe {
            result::memcpy_htod_async(self.pointer + offset as u64, values, self.device.stream())
        }
        .map_err(|error| self.device.error("writing to device memory", error))
    }

    /// Reads to the host, after all that was launched.
    pub fn read<T: Copy>(&self, out: &mut [T]) -> Result<(), BackendError> {
        let bytes = std::mem::size_of_val(out);
        assert!(
            bytes <= self.bytes,
            "a read behind the end of device memory"
        );
        // SAFETY: `T` is a plain number, of which any bytes are a value.
        let out = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u8>(), bytes) };
        self.device.read(self.pointer, out)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.device.give_back(self.pointer, self.bytes);
    }
}

/// Memory as large as was ever needed, for what lives no longer than a step. What was too small is kept: steps
/// that were captured point there, and go on as they are. As each is twice the one before at least, all of
/// these together are no larger than the last.
#[derive(Default)]
pub(crate) struct Scratch {
    memory: Option<Memory>,
    outgrown: Vec<Memory>,
}

impl Scratch {
    /// Where there is room for so many bytes; of zeros when it is new.
    pub fn grown(&mut self, device: &Arc<Device>, bytes: usize) -> Result<u64, BackendError> {
        let before = self.memory.as_ref().map(Memory::bytes);
        if before.is_none_or(|before| before < bytes) {
            let larger = bytes.max(2 * before.unwrap_or(0));
            let larger = Memory::zeroed(device, larger, "scratch")?;
            self.outgrown.extend(self.memory.replace(larger));
        }
        Ok(self.memory.as_ref().map_or(0, Memory::pointer))
    }

    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_ref()
    }
}

/// Page-locked host memory: copies from and to it run beside the host.
pub(crate) struct Pinned<T: Copy> {
    device: Arc<Device>,
    values: *mut T,
    len: usize,
}

// SAFETY: it owns its memory, and access follows the usual rules of borrowing.
unsafe impl<T: Copy + Send> Send for Pinned<T> {}

impl<T: Copy> Pinned<T> {
    /// Room for `len` values, all zero bytes; `T` must be a plain number.
    pub fn zeroed(device: &Arc<Device>, len: usize) -> Result<Self, BackendError> {
        device.bind();
        let bytes = (len * std::mem::size_of::<T>()).max(1);
        // SAFETY: a plain allocation, cleared at once; zero bytes are a value of every number.
        let values = unsafe {
            let pointer = result::malloc_host(bytes, 0)
                .map_err(|error| device.error("allocating page-locked host memory", error))?;
            pointer.cast::<u8>().write_bytes(0, bytes);
            pointer.cast()
        };
        Ok(Self {
            device: Arc::clone(device),
            values,
            len,
        })
    }

    /// Where it is, for the device as for the host.
    pub fn pointer(&self) -> u64 {
        self.values as u64
    }
}

impl<T: Copy> std::ops::Deref for Pinned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` values were allocated and initialised.
        unsafe { std::slice::from_raw_parts(self.values, self.len) }
    }
}

impl<T: Copy> std::ops::DerefMut for Pinned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.values, self.len) }
    }
}

impl<T: Copy> Drop for Pinned<T> {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        // SAFETY: copies have ended; the pointer came from `malloc_host`.
        let _ = unsafe { result::free_host(self.values.cast()) };
    }
}
