//! The threads: they spin for work while a step runs, yield when it pauses, and sleep when it ends.
//!
//! Owns threads and how pieces of a job are dealt out; must not know what a job computes. Every
//! thread has its own run of consecutive pieces, so that it reads memory in order, and takes
//! pieces from the others when it is through. Which thread computes a piece never changes the
//! result of it.
//!
//! Nobody waits for a thread that does nothing. A worker *enters* a job while it is open; when no
//! piece is left the caller closes it and waits for those inside alone. So a worker whose core
//! another process has taken costs nothing until it is back, and no more threads enter a job than
//! there are cores, however many were asked for.

use std::{
    any::Any,
    cell::UnsafeCell,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use fornax_backend::BackendError;

/// Looks for work before the first yield: some tens of microseconds, longer than the gaps between
/// the jobs of a step.
const SPINS: usize = 2_000;
/// Yields before sleep: some milliseconds, longer than the gaps between steps.
const YIELDS: usize = 5_000;

/// In [`Shared::state`]: how many workers are inside of the job.
const INSIDE: u64 = 0xFFFF;
/// In [`Shared::state`]: workers may enter.
const OPEN: u64 = 1 << 16;
/// In [`Shared::state`]: the pool ends.
const STOP: u64 = 1 << 17;
/// In [`Shared::state`]: one job more.
const JOB: u64 = 1 << 18;

/// Several threads, the calling one among them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What a job does with pieces that follow each other: `(pieces, thread)`.
type Job<'a> = dyn Fn(Range<usize>, usize) + Sync + 'a;

/// Where a thread may take several pieces at a time it takes one in so many of those that are left: fewer
/// towards the end, so that all threads end together.
const ONE_IN: usize = 3;

struct Shared {
    /// Number of the job, whether it is open, and how many workers are inside: in one word, so
    /// that none enters what was just closed.
    state: AtomicU64,
    /// The current job. Written while no job is open and nobody inside.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Pieces of it that a thread takes at a time, at most.
    most: AtomicUsize,
    /// `[threads]`
    queues: Vec<Queue>,
    /// Workers that may be inside at once: those that have a core beside the caller's.
    most_inside: usize,
    /// Looks for work before the first yield.
    spins: usize,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    /// What the first panic of a worker said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not Sync; its access is ordered by `state`.
unsafe impl Sync for Shared {}
// SAFETY: the pointer in `job` is to a `Sync` closure that outlives its job.
unsafe impl Send for Shared {}

/// Pieces that a thread has before it; on a cache line of its own.
#[repr(align(128))]
struct Queue {
    next: AtomicUsize,
    end: AtomicUsize,
}

impl Pool {
    /// Starts `threads - 1` threads.
    pub fn new(threads: usize) -> Result<Self, BackendError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self::on_cores(threads, cores)
    }

    fn on_cores(threads: usize, cores: usize) -> Result<Self, BackendError> {
        let shared = Arc::new(Shared::new(threads, cores));
        let mut pool = Self {
            shared,
            workers: Vec::new(),
        };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let named = thread::Builder::new().name(format!("fornax-cpu-{index}"));
            let spawned = named.spawn(move || shared.work(index));
            let worker = spawned.map_err(|error| {
                BackendError(format!(
                    "cpu: thread {index} of {threads} did not start ({error}); ask for fewer"
                ))
            })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that work, the calling one included.
    pub fn threads(&self) -> usize {
        self.shared.queues.len()
    }

    /// Computes the pieces `0 .. pieces`, each once, and returns when all are done. `job` is given
    /// a piece and the number of the thread that computes it.
    pub fn run(&mut self, pieces: usize, job: impl Fn(usize, usize) + Sync) {
        self.run_together(pieces, 1, |pieces, thread| {
            pieces.for_each(|piece| job(piece, thread));
        });
    }

    /// The same; `job` is given up to `most` pieces at a time, at least one, which follow each other.
    pub fn run_together(
        &mut self,
        pieces: usize,
        most: usize,
        job: impl Fn(Range<usize>, usize) + Sync,
    ) {
        let shared = &*self.shared;
        if shared.most_inside == 0 || pieces <= 1 {
            let firsts = (0..pieces).step_by(most);
            firsts.for_each(|first| job(first..pieces.min(first + most), 0));
            return;
        }
        shared.most.store(most, Ordering::Relaxed);
        let threads = shared.queues.len();
        for (index, queue) in shared.queues.iter().enumerate() {
            let share = share(pieces, threads, index);
            queue.next.store(share.start, Ordering::Relaxed);
            queue.end.store(share.end, Ordering::Relaxed);
        }
        let job: &Job<'_> = &job;
        shared.open(job);
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_pieces(job, 0)));
        // Whatever happened, workers inside still use the job.
        shared.close();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        let panic = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

/// The pieces of a job that a thread has before it at first.
pub(crate) fn share(pieces: usize, threads: usize, thread: usize) -> Range<usize> {
    thread * pieces / threads..(thread + 1) * pieces / threads
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::SeqCst);
        self.shared.wake_up(self.workers.len());
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its job.
            worker.join().expect("invariant: a worker does not panic");
        }
    }
}

impl Shared {
    fn new(threads: usize, cores: usize) -> Self {
        let queue = || Queue {
            next: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        };
        Self {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            most: AtomicUsize::new(1),
            queues: (0..threads).map(|_| queue()).collect(),
            most_inside: threads.min(cores) - 1,
            // With more threads than cores, the one that is waited for may need this core.
            spins: if threads > cores { 0 } else { SPINS },
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Lets workers into a job.
    fn open(&self, job: &Job<'_>) {
        // SAFETY: the job before was closed with nobody inside, and workers read this one only
        // after they entered it. The lifetime may be dropped because `Pool::run` does not return
        // or unwind before this one is closed, too.
        unsafe {
            let job = std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job);
            *self.job.get() = Some(job);
        }
        self.state.fetch_add(JOB + OPEN, Ordering::SeqCst);
        let workers = self.queues.len() - 1;
        let awake = workers - self.sleepers.load(Ordering::SeqCst);
        if awake < self.most_inside {
            self.wake_up(self.most_inside - awake);
        }
    }

    /// Lets nobody in any more and waits until all are out.
    fn close(&self) {
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while state & INSIDE > 0 {
            self.pause(looks);
            looks += 1;
            state = self.state.load(Ordering::Acquire);
        }
    }

    fn wake_up(&self, count: usize) {
        // Taken so that nobody is between looking at `state` and falling asleep.
        drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        (0..count).for_each(|_| self.wake.notify_one());
    }

    fn pause(&self, looks: usize) {
        match looks < self.spins {
            true => std::hint::spin_loop(),
            false => thread::yield_now(),
        }
    }

    /// A worker's life.
    fn work(&self, index: usize) {
        let mut seen = 0;
        while let Some(number) = self.enter_next(seen) {
            seen = number;
            // SAFETY: it stands since before this worker entered, until it has left.
            let job = unsafe { *self.job.get() };
            let job = job.expect("invariant: a job stands before it is open");
            // SAFETY: `Pool::run` keeps it alive until this worker has left.
            let job = unsafe { &*job };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_pieces(job, index))) {
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(panic);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for an open job other than number `seen` and enters it; `None` when the pool ends.
    fn enter_next(&self, seen: u64) -> Option<u64> {
        let mut looks = 0;
        loop {
            let state = self.state.load(Ordering::SeqCst);
            if state & STOP > 0 {
                return None;
            }
            let is_new = state & OPEN > 0 && state / JOB != seen;
            let is_full = (state & INSIDE) as usize >= self.most_inside;
            if is_new && !is_full {
                let entered = self.state.compare_exchange_weak(
                    state,
                    state + 1,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                );
                if entered.is_ok() {
                    return Some(state / JOB);
                }
            } else if is_new || looks >= self.spins + YIELDS {
                // There are enough others, or there was no job for long.
                self.fall_asleep(seen);
                looks = 0;
            } else {
                self.pause(looks);
                looks += 1;
            }
        }
    }

    /// Sleeps until there may be something to do.
    fn fall_asleep(&self, seen: u64) {
        let guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let state = self.state.load(Ordering::SeqCst);
        let is_full = (state & INSIDE) as usize >= self.most_inside;
        let is_new = state & OPEN > 0 && state / JOB != seen;
        if state & STOP == 0 && (is_full || !is_new) {
            // Woken for nothing it looks again and comes back.
            drop(
                self.wake
                    .wait(guard)
                    .unwrap_or_else(PoisonError::into_inner),
            );
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Computes pieces, its own first, until there are none.
    fn take_pieces(&self, job: &Job<'_>, thread: usize) {
        let (threads, most) = (self.queues.len(), self.most.load(Ordering::Relaxed));
        for queue in (0..threads).map(|step| &self.queues[(thread + step) % threads]) {
            let end = queue.end.load(Ordering::Relaxed);
            loop {
                let left = end.saturating_sub(queue.next.load(Ordering::Relaxed));
                let count = (left / ONE_IN).clamp(1, most);
                let first = queue.next.fetch_add(count, Ordering::Relaxed);
                if first >= end {
                    break;
                }
                job(first..end.min(first + count), thread);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn check_every_piece_once(threads: usize, cores: usize) {
        let mut pool = Pool::on_cores(threads, cores).unwrap();
        for (pieces, most) in [0, 1, 2, 3, 7, 64, 1000]
            .into_iter()
            .flat_map(|pieces| [(pieces, 1), (pieces, 8)])
        {
            let counts: Vec<AtomicU32> = (0..pieces).map(|_| AtomicU32::new(0)).collect();
            pool.run_together(pieces, most, |pieces, thread| {
                assert!(thread < threads && (1..=most).contains(&pieces.len()));
                for piece in pieces {
                    counts[piece].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(
                counts
                    .iter()
                    .all(|count| count.load(Ordering::Relaxed) == 1)
            );
        }
    }

    #[test]
    fn computes_every_piece_once_on_any_number_of_threads() {
        for threads in [1, 2, 3, 16] {
            for cores in [1, 2, 64] {
                check_every_piece_once(threads, cores);
            }
        }
    }

    #[test]
    fn lets_no_more_threads_compute_than_there_are_cores() {
        let mut pool = Pool::on_cores(8, 3).unwrap();
        let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
        for _ in 0..50 {
            pool.run(40, |_, _| {
                most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
            });
        }
        assert!(most.into_inner() <= 3);
    }

    #[test]
    fn waits_for_no_worker_that_has_not_entered() {
        let shared = Arc::new(Shared::new(2, 2));
        // The worker never comes.
        let workers = Vec::new();
        let mut pool = Pool { shared, workers };
        let done = AtomicU32::new(0);
        pool.run(9, |_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 9);
    }

    #[test]
    fn waits_for_a_worker_inside() {
        let mut pool = Pool::on_cores(2, 2).unwrap();
        for _ in 0..20 {
            let (entered, left) = (AtomicU32::new(0), AtomicU32::new(0));
            pool.run(2, |_, thread| {
                // The caller goes on only when the worker is in its piece.
                if thread == 1 {
                    entered.fetch_add(1, Ordering::SeqCst);
                    (0..100).for_each(|_| thread::yield_now());
                    left.fetch_add(1, Ordering::SeqCst);
                } else {
                    while entered.load(Ordering::SeqCst) == 0 {
                        thread::yield_now();
                    }
                }
            });
            assert_eq!(left.into_inner(), 1);
        }
    }

    #[test]
    fn runs_jobs_after_the_workers_fell_asleep() {
        let mut pool = Pool::on_cores(3, 3).unwrap();
        for _ in 0..3 {
            while pool.shared.sleepers.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            let done = AtomicU32::new(0);
            pool.run(9, |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 9);
        }
    }

    #[test]
    fn hands_a_panic_to_the_caller_and_works_on() {
        let mut pool = Pool::on_cores(2, 2).unwrap();
        for bad in [0, 99] {
            let run = catch_unwind(AssertUnwindSafe(|| {
                pool.run(100, |piece, _| assert_ne!(piece, bad, "piece {bad}"));
            }));
            let message = *run.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(&format!("piece {bad}")));
            pool.run(4, |_, _| {});
        }
    }
}
