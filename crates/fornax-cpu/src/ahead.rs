//! Memory that is asked for ahead of its use, a few cache lines at a time.
//!
//! Must not know what lies there. Few at a time, between products, because a request that finds too
//! many before it holds up everything behind it.

use std::ops::Range;

use crate::simd::{Simd, each};

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// What was not asked for yet.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    from: *const u8,
    lines: usize,
}

impl Ahead {
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            from: bytes.as_ptr(),
            lines: bytes.len().div_ceil(LINE),
        }
    }

    pub fn nothing() -> Self {
        Self::of(&[])
    }

    /// The share of it that falls to some of all turns.
    pub fn share(self, turns: Range<usize>, of: usize) -> Self {
        let Range { start, end } = turns.start * self.lines / of..turns.end * self.lines / of;
        Self {
            from: self.from.wrapping_add(start * LINE),
            lines: end - start,
        }
    }

    /// Lines to ask for at a time, to be through after so many times.
    pub fn lines_each(&self, times: usize) -> usize {
        self.lines.div_ceil(times)
    }

    /// Where it begins, for loops that ask by themselves.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "only the loops of a matrix unit do")
    )]
    pub fn start(&self) -> *const u8 {
        self.from
    }

    /// Asks for so many lines, or for those that are left.
    #[inline(always)]
    pub fn ask<S: Simd>(&mut self, s: S, lines: usize) {
        let lines = lines.min(self.lines);
        for line in 0..lines {
            s.prefetch(self.from.wrapping_add(line * LINE));
        }
        self.from = self.from.wrapping_add(lines * LINE);
        self.lines -= lines;
    }

    /// The same, for loops that ask for some lines each time: by the bits of their number, which do not
    /// change, where a loop of four or six would now and then end unexpectedly for the processor.
    #[inline(always)]
    pub fn ask_by_bits<S: Simd>(&mut self, s: S, lines: usize) {
        let lines = lines.min(self.lines);
        for _ in 0..lines / 16 {
            self.ask_for::<S, 16>(s);
        }
        if lines & 8 != 0 {
            self.ask_for::<S, 8>(s);
        }
        if lines & 4 != 0 {
            self.ask_for::<S, 4>(s);
        }
        if lines & 2 != 0 {
            self.ask_for::<S, 2>(s);
        }
        if lines & 1 != 0 {
            self.ask_for::<S, 1>(s);
        }
    }

    /// Asks for `N` lines, which are left.
    #[inline(always)]
    fn ask_for<S: Simd, const N: usize>(&mut self, s: S) {
        each!(line in N => s.prefetch(self.from.wrapping_add(line * LINE)));
        self.from = self.from.wrapping_add(N * LINE);
        self.lines -= N;
    }

    /// Asks for all that is left.
    #[inline(always)]
    pub fn ask_for_all<S: Simd>(&mut self, s: S) {
        self.ask(s, self.lines);
    }
}

/// Asks the caches for some values that are wanted next, or for room that others may be writing to.
#[inline(always)]
pub(crate) fn ask_near<S: Simd, T>(s: S, first: *const T, count: usize) {
    for line in 0..(count * size_of::<T>()).div_ceil(LINE) {
        s.prefetch_near(first.cast::<u8>().wrapping_add(line * LINE));
    }
}

#[cfg(test)]
mod tests {
    use super::Ahead;
    use crate::{
        Isa,
        simd::{Kernel, Simd},
    };

    /// Asks for so many lines in both ways, three times.
    struct Ask(usize);

    impl Kernel for Ask {
        type Output = ();

        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let bytes = [0; 64 * 70];
            let (mut looped, mut by_bits) = (Ahead::of(&bytes), Ahead::of(&bytes));
            for _ in 0..3 {
                looped.ask(s, self.0);
                by_bits.ask_by_bits(s, self.0);
                assert_eq!(by_bits.from, looped.from, "{} lines", self.0);
                assert_eq!(by_bits.lines, looped.lines, "{} lines", self.0);
            }
        }
    }

    #[test]
    fn the_same_lines_are_asked_for_by_bits() {
        for lines in 0..=70 {
            Isa::detect().run(Ask(lines));
        }
    }

    #[test]
    fn shares_are_all_of_it_once() {
        let bytes = [0; 64 * 37];
        let all = Ahead::of(&bytes);
        let mut next = all.from;
        for turn in 0..5 {
            let share = all.share(turn..turn + 1, 5);
            assert_eq!(share.from, next);
            assert!((7..=8).contains(&share.lines));
            next = next.wrapping_add(share.lines * 64);
        }
        assert_eq!(next, all.from.wrapping_add(bytes.len()));
    }
}
