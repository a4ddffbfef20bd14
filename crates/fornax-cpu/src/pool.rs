//! The threads: they spin for work while a step runs, yield when it pauses, and sleep when it ends.
//!
//! Owns threads and how pieces of a job are dealt out; must not know what a job computes. Every
//! thread has its own run of consecutive pieces, so that it reads memory in order, and takes
//! pieces from the others when it is through: a core that another process slows down delays a
//! job by one piece, not by its whole share. Which thread computes a piece never changes the
//! result of it.

use std::{
    any::Any,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use fornax_backend::BackendError;

/// Looks for work before the first yield: some tens of microseconds, longer than the gaps between
/// the jobs of a step.
const SPINS: usize = 2_000;
/// Yields before sleep: some milliseconds, longer than the gaps between steps.
const YIELDS: usize = 5_000;

/// Several threads, the calling one among them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What a job does with one piece: `(piece, thread)`.
type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

struct Shared {
    /// Number of jobs so far; a change starts the workers.
    jobs: AtomicUsize,
    /// The current job. Written before `jobs` changes and while `working` is 0.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Workers that are not through with the current job.
    working: AtomicUsize,
    /// `[threads]`
    queues: Vec<Queue>,
    /// Looks for work before the first yield.
    spins: usize,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    /// What the first panic of a worker said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not Sync; its access is ordered by `jobs` and `working`.
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
        let queue = || Queue {
            next: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
        };
        let shared = Arc::new(Shared {
            jobs: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            working: AtomicUsize::new(0),
            queues: (0..threads).map(|_| queue()).collect(),
            // With more threads than cores, the one that is waited for may need this core.
            spins: if threads > cores { 0 } else { SPINS },
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
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
        if self.workers.is_empty() || pieces <= 1 {
            (0..pieces).for_each(|piece| job(piece, 0));
            return;
        }
        let shared = &*self.shared;
        let threads = shared.queues.len();
        for (index, queue) in shared.queues.iter().enumerate() {
            queue
                .next
                .store(index * pieces / threads, Ordering::Relaxed);
            queue
                .end
                .store((index + 1) * pieces / threads, Ordering::Relaxed);
        }
        let job: &Job<'_> = &job;
        shared.start(job, self.workers.len());
        let own = catch_unwind(AssertUnwindSafe(|| shared.take_pieces(job, 0)));
        // Whatever happened, the workers still use the job.
        shared.wait_for_workers();
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

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.announce();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its job.
            worker.join().expect("invariant: a worker does not panic");
        }
    }
}

impl Shared {
    fn start(&self, job: &Job<'_>, workers: usize) {
        self.working.store(workers, Ordering::Relaxed);
        // SAFETY: all workers are through with the job before, and see this one only after
        // `announce`. The lifetime may be dropped because `Pool::run` does not return or unwind
        // before all are through with this one, too.
        unsafe {
            let job = std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job);
            *self.job.get() = Some(job);
        }
        self.announce();
    }

    fn announce(&self) {
        self.jobs.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // Taken so that nobody is between looking at `jobs` and falling asleep.
            drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
            self.wake.notify_all();
        }
    }

    fn wait_for_workers(&self) {
        let mut looks = 0;
        while self.working.load(Ordering::Acquire) > 0 {
            self.pause(looks);
            looks += 1;
        }
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
        loop {
            seen = self.wait_for_job(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // SAFETY: written before `jobs` changed, and not again until this worker is through.
            let job = unsafe { *self.job.get() };
            let job = job.expect("invariant: a job stands before it is announced");
            // SAFETY: `Pool::run` keeps it alive until this worker is through.
            let job = unsafe { &*job };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_pieces(job, index))) {
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(panic);
            }
            self.working.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until `jobs` is no longer `seen` and returns what it is.
    fn wait_for_job(&self, seen: usize) -> usize {
        for looks in 0..self.spins + YIELDS {
            let jobs = self.jobs.load(Ordering::Acquire);
            if jobs != seen {
                return jobs;
            }
            self.pause(looks);
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.jobs.load(Ordering::SeqCst) == seen {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.jobs.load(Ordering::Acquire)
    }

    /// Computes pieces, its own first, until there are none.
    fn take_pieces(&self, job: &Job<'_>, thread: usize) {
        let threads = self.queues.len();
        for queue in (0..threads).map(|step| &self.queues[(thread + step) % threads]) {
            let end = queue.end.load(Ordering::Relaxed);
            loop {
                let piece = queue.next.fetch_add(1, Ordering::Relaxed);
                if piece >= end {
                    break;
                }
                job(piece, thread);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn check_every_piece_once(threads: usize) {
        let mut pool = Pool::new(threads).unwrap();
        for pieces in [0, 1, 2, 3, 7, 64, 1000] {
            let counts: Vec<AtomicU32> = (0..pieces).map(|_| AtomicU32::new(0)).collect();
            pool.run(pieces, |piece, thread| {
                assert!(thread < threads);
                counts[piece].fetch_add(1, Ordering::Relaxed);
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
            check_every_piece_once(threads);
        }
    }

    #[test]
    fn runs_jobs_after_the_workers_fell_asleep() {
        let mut pool = Pool::new(3).unwrap();
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
        let mut pool = Pool::new(2).unwrap();
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
