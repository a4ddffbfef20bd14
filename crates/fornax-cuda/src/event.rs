//! Marks in the order of launches that the host can wait for.
//!
//! Must not know what they stand behind.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use fornax_backend::BackendError;

use crate::device::Device;

/// A mark that is set again and again.
pub(crate) struct Event {
    device: Arc<Device>,
    event: sys::CUevent,
}

// SAFETY: an event's handle may be used from any thread on which the context is current.
unsafe impl Send for Event {}

impl Event {
    pub fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        Self::with(device, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// One that notes when it is reached.
    pub fn timed(device: &Arc<Device>) -> Result<Self, BackendError> {
        Self::with(device, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(device: &Arc<Device>, flags: sys::CUevent_flags) -> Result<Self, BackendError> {
        device.bind();
        let event =
            result::event::create(flags).map_err(|error| device.error("making an event", error))?;
        Ok(Self {
            device: Arc::clone(device),
            event,
        })
    }

    /// Sets the mark behind all that was launched.
    pub fn record(&self) -> Result<(), BackendError> {
        self.device.bind();
        // SAFETY: the event and the stream live as long as `self`.
        unsafe { result::event::record(self.event, self.device.stream()) }
            .map_err(|error| self.device.error("marking what was launched", error))
    }

    /// Waits until all before the mark has ended; not at all where it was never set.
    pub fn wait(&self) -> Result<(), BackendError> {
        self.device.bind();
        // SAFETY: the event lives as long as `self`.
        unsafe { result::event::synchronize(self.event) }
            .map_err(|error| self.device.error("waiting for the device", error))
    }

    /// Milliseconds from another mark to this one, when it has been reached; both note when they are.
    pub fn since(&self, earlier: &Self) -> Result<f32, BackendError> {
        self.wait()?;
        // SAFETY: both events live as long as their owners.
        unsafe { result::event::elapsed(earlier.event, self.event) }
            .map_err(|error| self.device.error("reading the time", error))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.device.bind();
        // SAFETY: it is destroyed once; the driver keeps it until nothing waits for it.
        let _ = unsafe { result::event::destroy(self.event) };
    }
}
