//! Answers on their way to the host while the next step begins.
//!
//! Must not know what they say.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use fornax_backend::BackendError;

use crate::device::Device;
use crate::memory::Pinned;

/// Page-locked memory that one answer comes to, and what says that it is there.
pub(crate) struct Readback {
    device: Arc<Device>,
    /// As long as the longest answer so far.
    values: Pinned<u32>,
    arrived: sys::CUevent,
}

// SAFETY: an event's handle may be used from any thread on which the context is current.
unsafe impl Send for Readback {}

impl Readback {
    pub fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        device.bind();
        let values = Pinned::zeroed(device, 0)?;
        let arrived = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
            .map_err(|error| device.error("making an event", error))?;
        Ok(Self {
            device: Arc::clone(device),
            values,
            arrived,
        })
    }

    /// Starts to copy `len` words behind all that was launched.
    pub fn begin(&mut self, pointer: u64, len: usize) -> Result<(), BackendError> {
        self.device.bind();
        if self.values.len() < len {
            self.values = Pinned::zeroed(&self.device, len.next_power_of_two())?;
        }
        let failed = |error| self.device.error("reading device memory", error);
        let stream = self.device.stream();
        // SAFETY: the words are the caller's promise; the memory is ours, page-locked, and left
        // alone until `end` has seen the event.
        unsafe {
            result::memcpy_dtoh_async(&mut self.values[..len], pointer, stream).map_err(failed)?;
            result::event::record(self.arrived, stream).map_err(failed)
        }
    }

    /// Waits for them.
    pub fn end(&self, len: usize) -> Result<Vec<u32>, BackendError> {
        self.device.bind();
        // SAFETY: the event was recorded by `begin`.
        unsafe { result::event::synchronize(self.arrived) }
            .map_err(|error| self.device.error("waiting for the device", error))?;
        Ok(self.values[..len].to_vec())
    }
}

impl Drop for Readback {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        // SAFETY: nothing waits for it any more; it is destroyed once.
        let _ = unsafe { result::event::destroy(self.arrived) };
    }
}
