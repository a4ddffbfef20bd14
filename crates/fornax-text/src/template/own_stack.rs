//! A stack that is deep enough for whatever a template may nest while it renders: the engine calls itself
//! for each macro, call block and loop inside of another, with frames of tens of KiB where it was compiled
//! without optimisation.
//!
//! Must not know what is rendered.

use std::io;
use std::thread::{self, Builder};

/// As far as the engine lets a template nest it takes more than 4 and less than 8 MiB where it was not
/// optimised, and 256 to 384 KiB in tests (minijinja 3.0.5, x86-64). A thread takes 60 µs.
const STACK: usize = 16 << 20;

/// What `work` answers, on a thread with such a stack; `None` where it panicked.
///
/// # Errors
/// The system gives no thread.
pub(super) fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<Option<T>> {
    thread::scope(|scope| {
        let builder = Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK);
        Ok(builder.spawn_scoped(scope, work)?.join().ok())
    })
}
