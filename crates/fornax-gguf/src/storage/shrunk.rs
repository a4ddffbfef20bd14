//! A mapped file that another program cuts short: the system answers a read behind its new end with
//! SIGBUS, which ends a program without a word. Here it gets one.
//!
//! Owns the signal handler and the list of mapped files that it looks into; must not know what is in
//! the files.

use std::{
    io::{IsTerminal, stderr},
    mem::MaybeUninit,
    ops::Range,
    path::Path,
    ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    },
};

/// Whether files are put on the list.
static IS_WATCHING: AtomicBool = AtomicBool::new(false);
/// The list's head: the file that was mapped last.
static NEWEST: AtomicPtr<Watched> = AtomicPtr::new(ptr::null_mut());
/// Whether it was said already.
static IS_SAID: AtomicBool = AtomicBool::new(false);
/// What the program did on SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapped file on the list. It stays there for good, so that the handler can walk the list at any
/// moment, but holds no address any more once it is [ended](Watched::end).
pub(super) struct Watched {
    start: usize,
    /// Behind the last byte; 0 once the map is gone.
    end: AtomicUsize,
    /// All that is said. A handler may not allocate, so it is put together before.
    told: String,
    next: Option<&'static Watched>,
}

impl Watched {
    /// The map goes away; its addresses may be something else from now on.
    pub(super) fn end(&self) {
        self.end.store(0, Ordering::Release);
    }
}

/// Ends the program with exit code 1 and a message that names the file, from now on, where a model's
/// file that is mapped can no longer be read: another program cut it short, or its disk failed.
/// Without this the system ends it by SIGBUS.
///
/// For programs, not for libraries: it decides how the whole process ends, and takes over a signal.
/// There is no milder way. A read through a map has no result that could be an error, what stands
/// behind a signal cannot be unwound, and to read files in place of mapping them would double the
/// memory of loading. Any other SIGBUS is left to whoever had it before. Of each file that is opened
/// from now on a few bytes are kept for good.
pub fn end_where_a_file_shrinks() {
    let mut is_done = lock();
    if *is_done {
        return;
    }
    *is_done = true;
    let mut before = MaybeUninit::uninit();
    // SAFETY: zeros are a valid `sigaction`, which has numbers and pointers that may be null, and it
    // is filled in before use; both pointers are to this frame. The handler has the signature that
    // SA_SIGINFO asks for, and does nothing that a signal may not interrupt. It runs on the stack that
    // the thread has for signals, as the standard library's does, for the fault may be a full stack.
    let before = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut action.sa_mask);
        match libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr()) {
            0 => before.assume_init(),
            // Then all stays as it was.
            _ => return,
        }
    };
    BEFORE.get_or_init(|| before);
    IS_WATCHING.store(true, Ordering::Release);
}

/// Puts the mapped bytes of a file on the list, where anybody looks into it.
pub(super) fn watch(path: &Path, bytes: Range<*const u8>) -> Option<&'static Watched> {
    if !IS_WATCHING.load(Ordering::Acquire) {
        return None;
    }
    // The name comes from anywhere, and this goes to a terminal, where a bar may stand in the line.
    let name = path.display().to_string();
    let name = name.replace(char::is_control, "\u{fffd}");
    let line_end = match stderr().is_terminal() {
        true => "\n",
        false => "",
    };
    let told = format!(
        "{line_end}error: {name}: the file can no longer be read: it was cut short while it was in use, or its disk failed; start again once it is whole, and replace a model by renaming a new file to its name\n"
    );
    let _alone = lock();
    // SAFETY: what stands in the list came from `Box::leak` below.
    let next = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
    let watched = Box::leak(Box::new(Watched {
        start: bytes.start.addr(),
        end: AtomicUsize::new(bytes.end.addr()),
        told,
        next,
    }));
    NEWEST.store(watched, Ordering::Release);
    Some(watched)
}

/// Held by whoever changes the list, and true once the handler is there.
fn lock() -> std::sync::MutexGuard<'static, bool> {
    static IS_DONE: Mutex<bool> = Mutex::new(false);
    IS_DONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says which file it is and ends the program, or lets the signal come once more, to whoever was there
/// before. Only atomics and calls that a signal may interrupt.
extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the system gives a handler of SA_SIGINFO a valid `siginfo_t`.
    let info = unsafe { &*info };
    // One that a program sent has no address, and would not come again by itself. Codes of faults are
    // small and positive (BUS_ADRALN to BUS_MCEERR_AO).
    let is_sent = !(1..=5).contains(&info.si_code);
    if !is_sent {
        // SAFETY: that of a fault has an address.
        end_where_it_is_listed(unsafe { info.si_addr() }.addr());
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: it was the system that gave it; no answer is asked for.
        unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) };
    }
    if is_sent {
        // SAFETY: it comes when this returns, for it is held back until then.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Ends the program where an address is in a file on the list.
fn end_where_it_is_listed(address: usize) {
    // SAFETY: what stands in the list came from `Box::leak`.
    let mut watched = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
    while let Some(file) = watched {
        if (file.start..file.end.load(Ordering::Acquire)).contains(&address) {
            // Several threads may read the file: one says it, and the others wait for the end.
            while IS_SAID.swap(true, Ordering::AcqRel) {
                // SAFETY: it only waits.
                unsafe { libc::pause() };
            }
            // SAFETY: the text is there for good. Nobody is left to tell that it could not be written.
            unsafe {
                libc::write(
                    libc::STDERR_FILENO,
                    file.told.as_ptr().cast(),
                    file.told.len(),
                );
                libc::_exit(1);
            }
        }
        watched = file.next;
    }
}
