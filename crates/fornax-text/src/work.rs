//! Counts elementary steps in this crate's unit tests, so that "linear time" is
//! a number compared between inputs and not a stopwatch. Costs nothing elsewhere.

/// Notes one elementary step: a character looked up, a queue entry taken, a byte stepped over.
#[inline(always)]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// How many steps `run` takes on this thread.
#[cfg(test)]
pub(crate) fn steps_of(run: impl FnOnce()) -> u64 {
    STEPS.with(|steps| steps.set(0));
    run();
    STEPS.with(std::cell::Cell::get)
}

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
