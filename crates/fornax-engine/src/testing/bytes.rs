//! What a fuzzer's bytes make happen.

use crate::radix::naive::Fuzz;

/// Operates the prefix tree beside a naive one, as these bytes choose, and asserts after each
/// operation that they agree. Panics where they do not.
pub fn radix_operations(bytes: &[u8]) {
    let mut left = bytes.iter();
    let mut below = |bound: usize| match bound {
        0..=256 => usize::from(left.next().copied().unwrap_or(0)) % bound,
        // Two bytes: no bound here is above 65,536.
        _ => {
            let mut byte = || usize::from(left.next().copied().unwrap_or(0));
            (byte() << 8 | byte()) % bound
        }
    };
    let mut fuzz = Fuzz::new(&mut below);
    // Each operation takes three bytes at least.
    for _ in 0..bytes.len() / 3 {
        fuzz.operate(&mut below);
    }
}
