//! The device: its context, its one stream, and what its driver says of a failure.
//!
//! Must not know kernels or operations.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::{result, sys};
use fornax_backend::BackendError;

use crate::library::Library;

/// One device, its primary context and a stream on it.
pub(crate) struct Device {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    name: String,
    /// Compute capability: major, minor.
    capability: (i32, i32),
    multiprocessors: u32,
    /// Bytes of shared memory that a block may ask for.
    shared_memory: usize,
    /// How many pieces of memory were given back: graphs older than that may point nowhere.
    freed: AtomicU64,
    /// Bytes taken.
    taken: Mutex<u64>,
    /// Names of the kernels that were started last, and of those of the step before them: a failure
    /// is told late, and not of which.
    started: Mutex<[Names; 2]>,
    /// Page-locked memory that small answers come through, so that their copy does not wait for the
    /// driver's own.
    bounce: Mutex<Bounce>,
}

/// Names of the kernels of a step.
pub(crate) type Names = Arc<[&'static str]>;

/// [`BOUNCE`] bytes that the driver gave.
struct Bounce(*mut u8);

// SAFETY: plain memory, which only the holder of the lock touches.
unsafe impl Send for Bounce {}

/// The longest answer that comes through page-locked memory.
const BOUNCE: usize = 256 << 10;

// SAFETY: the driver's handles may be used from any thread on which the context is current; `bind`
// makes it so.
unsafe impl Send for Device {}
// SAFETY: as above; the driver guards its own state.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// No driver, no such device, or one that is too old.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, BackendError> {
        Library::Driver.load()?;
        let failed = |what: &str, error: result::DriverError| {
            BackendError(format!("cuda: {what}: {}", describe(error)))
        };
        result::init().map_err(|error| {
            failed("the driver is there, but finds no device it can use", error)
        })?;
        let count =
            result::device::get_count().map_err(|error| failed("counting devices", error))?;
        let index = i32::try_from(ordinal).unwrap_or(i32::MAX);
        if index >= count {
            return Err(BackendError(format!(
                "cuda: device {ordinal} was asked for, but the driver sees {count}; see `nvidia-smi`"
            )));
        }
        let opening = |error| failed("opening the device", error);
        let device = result::device::get(index).map_err(opening)?;
        let name = result::device::get_name(device).map_err(opening)?;
        let attribute = |attribute| {
            // SAFETY: the device was just got from the driver.
            unsafe { result::device::get_attribute(device, attribute) }.map_err(opening)
        };
        use sys::CUdevice_attribute as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            return Err(BackendError(format!(
                "cuda: {name} has compute capability {major}.{minor}; 8.0 (Ampere) is the least that the kernels run on; choose --backend parallel"
            )));
        }
        let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        // SAFETY: the device is the driver's; the context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(opening)?;
        // SAFETY: the context was just made.
        unsafe { result::ctx::set_current(context) }.map_err(opening)?;
        let stream =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(opening)?;
        // SAFETY: a plain allocation, freed when this is dropped.
        let bounce = unsafe { result::malloc_host(BOUNCE, 0) }.map_err(opening)?;
        Ok(Arc::new(Self {
            device,
            context,
            stream,
            name,
            capability: (major, minor),
            multiprocessors: multiprocessors.unsigned_abs(),
            shared_memory: shared.unsigned_abs() as usize,
            freed: AtomicU64::new(0),
            taken: Mutex::new(0),
            started: Mutex::new([Arc::new([]), Arc::new([])]),
            bounce: Mutex::new(Bounce(bounce.cast())),
        }))
    }

    /// Makes the context that of the calling thread.
    pub fn bind(&self) {
        // SAFETY: the context lives as long as `self`.
        let bound = unsafe { result::ctx::set_current(self.context) };
        bound.expect("invariant: a context that was made can be made current");
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What all who opened this device have in common.
    pub fn context(&self) -> sys::CUcontext {
        self.context
    }

    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    pub fn shared_memory(&self) -> usize {
        self.shared_memory
    }

    /// Whether blocks can form clusters and launches overlap.
    pub fn is_hopper(&self) -> bool {
        self.capability.0 >= 9
    }

    /// Whether it is of that very generation: on it warps of a block give registers to one another.
    pub fn is_only_hopper(&self) -> bool {
        self.capability.0 == 9
    }

    /// What kernels are compiled for. The `a` allows instructions of this very generation.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.capability;
        let own = if major == 9 { "a" } else { "" };
        format!("sm_{major}{minor}{own}")
    }

    /// How often memory was given back so far.
    pub fn freed(&self) -> u64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// Bytes that are free and bytes there are.
    pub fn memory(&self) -> Result<(usize, usize), BackendError> {
        result::mem_get_info().map_err(|error| self.error("asking for free memory", error))
    }

    /// Waits until all that was launched has ended.
    pub fn synchronize(&self) -> Result<(), BackendError> {
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }
            .map_err(|error| self.error("waiting for the device", error))
    }

    /// Reads device memory, after all that was launched.
    pub fn read(&self, pointer: u64, out: &mut [u8]) -> Result<(), BackendError> {
        let failed = |error| self.error("reading device memory", error);
        if out.is_empty() {
            return Ok(());
        }
        self.bind();
        if out.len() > BOUNCE {
            // SAFETY: the range is the caller's promise, and `out` is that long; the wait ends the
            // copy before `out` is seen.
            unsafe { result::memcpy_dtoh_async(out, pointer, self.stream) }.map_err(failed)?;
            return self.synchronize();
        }
        let bounce = self
            .bounce
            .lock()
            .expect("invariant: nothing panics with it");
        // SAFETY: the lock is held, and the memory is longer than `out`.
        let through = unsafe { std::slice::from_raw_parts_mut(bounce.0, out.len()) };
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_async(through, pointer, self.stream) }.map_err(failed)?;
        self.synchronize()?;
        out.copy_from_slice(through);
        Ok(())
    }

    /// Remembers which kernels run from now on.
    pub fn starts(&self, names: Names) {
        let mut started = self
            .started
            .lock()
            .expect("invariant: nothing panics with it");
        started.swap(0, 1);
        started[1] = names;
    }

    /// What went wrong, in the driver's words, and which kernels may have caused it where it is
    /// something that they cause while they run.
    pub fn error(&self, what: &str, error: result::DriverError) -> BackendError {
        let said = format!("cuda ({}): {what}: {}", self.name, describe(error));
        if !is_of_kernels(error) {
            return BackendError(said);
        }
        let started = self
            .started
            .lock()
            .expect("invariant: nothing panics with it");
        let mut names: Vec<&str> = started
            .iter()
            .flat_map(|names| names.iter())
            .copied()
            .collect();
        names.sort_unstable();
        names.dedup();
        BackendError(match names[..] {
            [] => said,
            [name] => format!("{said}; the kernel {name} failed"),
            _ => format!(
                "{said}; one of the kernels {} failed: set FORNAX_CUDA_CHECK=1 to learn which",
                names.join(", ")
            ),
        })
    }

    pub(crate) fn take(&self, bytes: usize, what: &str) -> Result<u64, BackendError> {
        self.bind();
        // SAFETY: plain allocation; the pointer is owned by the caller.
        match unsafe { result::malloc_sync(bytes.max(256)) } {
            Ok(pointer) => {
                *self
                    .taken
                    .lock()
                    .expect("invariant: nothing panics with it") += bytes as u64;
                Ok(pointer)
            }
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let taken = *self
                    .taken
                    .lock()
                    .expect("invariant: nothing panics with it");
                let (free, all) = self.memory().unwrap_or_default();
                Err(BackendError(format!(
                    "cuda ({}): no room for {} of {what}: {} of {} are free, Fornax holds {}. Lower --ctx or the number of sequences, take a smaller --kv-type or a smaller model",
                    self.name,
                    mebibytes(bytes),
                    mebibytes(free),
                    mebibytes(all),
                    mebibytes(taken as usize),
                )))
            }
            Err(error) => Err(self.error(&format!("allocating {what}"), error)),
        }
    }

    pub(crate) fn give_back(&self, pointer: u64, bytes: usize) {
        self.bind();
        // SAFETY: work that may still use the memory ends first; the pointer came from `take` and
        // is given back once. Errors here are those of earlier launches, told elsewhere.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            let _ = result::free_sync(pointer);
        }
        self.freed.fetch_add(1, Ordering::Relaxed);
        *self
            .taken
            .lock()
            .expect("invariant: nothing panics with it") -= bytes as u64;
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.bind();
        // SAFETY: nothing is left that uses the stream or the context.
        unsafe {
            let _ = result::stream::destroy(self.stream);
            let bounce = self
                .bounce
                .get_mut()
                .expect("invariant: nothing panics with it");
            let _ = result::free_host(bounce.0.cast());
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// A size as people read it.
pub(crate) fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Whether kernels cause it while they run, so that it is told at some call after them.
fn is_of_kernels(error: result::DriverError) -> bool {
    use sys::CUresult as Code;
    matches!(
        error.0,
        Code::CUDA_ERROR_ILLEGAL_ADDRESS
            | Code::CUDA_ERROR_LAUNCH_FAILED
            | Code::CUDA_ERROR_LAUNCH_TIMEOUT
            | Code::CUDA_ERROR_ASSERT
            | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
            | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | Code::CUDA_ERROR_MISALIGNED_ADDRESS
            | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | Code::CUDA_ERROR_INVALID_PC
    )
}

fn describe(error: result::DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy());
    let text = text.unwrap_or_default();
    format!("{text} ({:?})", error.0)
}
