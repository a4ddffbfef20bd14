//! Answers on their way to the host while the next step begins.
//!
//! Must not know what they say, nor who carries them.

use std::sync::Arc;

use fornax_backend::BackendError;

use crate::device::Device;
use crate::event::Event;
use crate::ferry::Piece;
use crate::memory::Pinned;

/// Page-locked memory that one answer comes to, and what says that it is there.
pub(crate) struct Readback {
    device: Arc<Device>,
    /// As long as the longest answer so far.
    values: Pinned<u32>,
    /// What nobody has begun to carry.
    asked: Option<Piece>,
    arrived: Event,
}

impl Readback {
    pub fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        Ok(Self {
            device: Arc::clone(device),
            values: Pinned::zeroed(device, 0)?,
            asked: None,
            arrived: Event::new(device)?,
        })
    }

    /// Asks for `len` words, which are to be [carried](Self::mark_carried) before something is launched that overwrites them.
    pub fn ask(&mut self, from: u64, len: usize) -> Result<(), BackendError> {
        if self.values.len() < len {
            self.values = Pinned::zeroed(&self.device, len.next_power_of_two())?;
        }
        self.asked = Some(Piece {
            to: self.values.pointer(),
            from,
            words: len,
        });
        Ok(())
    }

    /// What was asked for, if nobody has carried it.
    pub fn asked(&self) -> Option<Piece> {
        self.asked
    }

    /// What was asked for was the last to be launched.
    pub fn mark_carried(&mut self) -> Result<(), BackendError> {
        self.arrived.record()?;
        self.asked = None;
        Ok(())
    }

    /// Waits for what was carried.
    pub fn end(&self, len: usize) -> Result<Vec<u32>, BackendError> {
        self.arrived.wait()?;
        Ok(self.values[..len].to_vec())
    }
}
