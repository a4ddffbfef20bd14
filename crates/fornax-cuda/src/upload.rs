//! Weights on their way to the device: one page-locked stage is filled from the file while the
//! other is copied, from tensor to tensor.
//!
//! Must not know what the bytes mean.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use fornax_backend::BackendError;

use crate::device::Device;
use crate::event::Event;
use crate::memory::{Memory, Pinned};

/// Two stages that take turns.
pub(crate) struct Upload {
    stages: [Stage; 2],
    next: usize,
}

/// Page-locked memory, and what says that it may be filled again.
struct Stage {
    bytes: Pinned<u8>,
    copied: Event,
}

/// Bytes of a stage, unless a row is longer.
const STAGE: usize = 16 << 20;

impl Upload {
    pub fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        let stage = || {
            Ok(Stage {
                bytes: Pinned::zeroed(device, STAGE)?,
                copied: Event::new(device)?,
            })
        };
        Ok(Self {
            stages: [stage()?, stage()?],
            next: 0,
        })
    }

    /// Brings rows to `memory` from `offset` on, `pitch` bytes each; `pack` lays one out, in zeros.
    pub fn rows<R: Copy + Sync>(
        &mut self,
        memory: &Memory,
        offset: usize,
        rows: &[R],
        pitch: usize,
        pack: impl Fn(R, &mut [u8]) + Sync,
    ) -> Result<(), BackendError> {
        if pitch > STAGE {
            return Err(BackendError(format!(
                "cuda: a row of {pitch} bytes is longer than the {STAGE} that are brought to the device at a time; choose --backend parallel"
            )));
        }
        let at_once = STAGE / pitch.max(1);
        for (index, rows) in rows.chunks(at_once).enumerate() {
            let stage = &mut self.stages[self.next];
            self.next = 1 - self.next;
            stage.copied.wait()?;
            let bytes = &mut stage.bytes[..rows.len() * pitch];
            fill(rows, bytes, pitch, &pack);
            memory.start_write(offset + index * at_once * pitch, bytes)?;
            stage.copied.record()?;
        }
        Ok(())
    }
}

/// Lays rows out, on several threads where there are many: most of the time goes to reading the
/// file.
fn fill<R: Copy + Sync>(
    rows: &[R],
    to: &mut [u8],
    pitch: usize,
    pack: &(impl Fn(R, &mut [u8]) + Sync),
) {
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    let share = rows.len().div_ceil(threads).max(64);
    let fill = |rows: &[R], to: &mut [u8]| {
        for (row, to) in rows.iter().zip(to.chunks_exact_mut(pitch)) {
            to.fill(0);
            pack(*row, to);
        }
    };
    if rows.len() <= share {
        return fill(rows, to);
    }
    // Whoever is free takes the next share: where the system gives no threads, this one takes all.
    let shares = Mutex::new(rows.chunks(share).zip(to.chunks_mut(share * pitch)));
    let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some((rows, to)) = next() {
            fill(rows, to);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let _ = Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_a_pitch_apart_with_zeros_behind_them() {
        let rows: Vec<u8> = (0..200).collect();
        let mut filled = vec![7; 200 * 3];
        fill(&rows, &mut filled, 3, &|row, to: &mut [u8]| {
            to[..2].copy_from_slice(&[row, row ^ 1]);
        });
        for (row, bytes) in rows.iter().zip(filled.chunks(3)) {
            assert_eq!(bytes, [*row, row ^ 1, 0]);
        }
    }
}
