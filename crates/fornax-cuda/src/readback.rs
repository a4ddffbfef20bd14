//! Answers on their way to the host while the next step begins.
//!
//! Must not know what they say.

use std::sync::Arc;

use fornax_backend::BackendError;

use crate::device::Device;
use crate::event::Event;
use crate::ferry;
use crate::kernels::Kernels;
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
    pub fn begin(
        &mut self,
        kernels: &mut Kernels,
        from: u64,
        len: usize,
    ) -> Result<(), BackendError> {
        self.device.bind();
        if self.values.len() < len {
            self.values = Pinned::zeroed(&self.device, len.next_power_of_two())?;
        }
        let (to, whole) = (self.values.pointer(), 0..len);
        ferry::carry(
            &self.device,
            kernels,
            to,
            from,
            std::slice::from_ref(&whole),
        )?;
        self.arrived.record()
    }

    /// Waits for them.
    pub fn end(&self, len: usize) -> Result<Vec<u32>, BackendError> {
        self.arrived.wait()?;
        Ok(self.values[..len].to_vec())
    }
}
