//! Answers on their way to the host while the next step begins.
//!
//! Must not know what they say.

use std::sync::Arc;

use cudarc::driver::result;
use fornax_backend::BackendError;

use crate::device::Device;
use crate::event::Event;
use crate::memory::Pinned;

/// Page-locked memory that one answer comes to, and what says that it is there.
pub(crate) struct Readback {
    device: Arc<Device>,
    /// As long as the longest answer so far.
    values: Pinned<u32>,
    arrived: Event,
}

impl Readback {
    pub fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        Ok(Self {
            device: Arc::clone(device),
            values: Pinned::zeroed(device, 0)?,
            arrived: Event::new(device)?,
        })
    }

    /// Starts to copy `len` words behind all that was launched.
    pub fn begin(&mut self, pointer: u64, len: usize) -> Result<(), BackendError> {
        self.device.bind();
        if self.values.len() < len {
            self.values = Pinned::zeroed(&self.device, len.next_power_of_two())?;
        }
        let stream = self.device.stream();
        // SAFETY: the words are the caller's promise; the memory is ours, page-locked, and left
        // alone until `end` has seen the event.
        unsafe { result::memcpy_dtoh_async(&mut self.values[..len], pointer, stream) }
            .map_err(|error| self.device.error("reading device memory", error))?;
        self.arrived.record()
    }

    /// Waits for them.
    pub fn end(&self, len: usize) -> Result<Vec<u32>, BackendError> {
        self.arrived.wait()?;
        Ok(self.values[..len].to_vec())
    }
}
