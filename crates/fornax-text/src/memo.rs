//! Remembers where in a text a piece has stood before and which tokens it became there: most
//! words of a text are repetitions. Knows neither how text is cut nor how it is merged.

use std::hash::{BuildHasher, Hasher};
use std::ops::Range;

/// Longer pieces seldom come twice.
const LONGEST: usize = 48;

/// The pieces of one text that were seen last.
pub(crate) struct Memo<'t> {
    /// [a power of 2] by the hash of the piece; a newer piece takes the place of an older.
    slots: Vec<Slot<'t>>,
    hasher: foldhash::fast::FixedState,
}

#[derive(Clone, Copy)]
struct Slot<'t> {
    piece: &'t [u8],
    /// Where its tokens stand in the output.
    start: usize,
    count: usize,
}

impl<'t> Memo<'t> {
    /// For a text of `bytes` bytes.
    pub(crate) fn for_text(bytes: usize) -> Memo<'t> {
        let slots = (bytes / 4).next_power_of_two().clamp(16, 1 << 15);
        let empty = Slot {
            piece: &[],
            start: 0,
            count: 0,
        };
        Memo {
            slots: vec![empty; slots],
            hasher: foldhash::fast::FixedState::with_seed(0),
        }
    }

    /// Appends the tokens of `piece` to `out`: those of its last time, or those that `encode`
    /// appends.
    #[inline]
    pub(crate) fn repeat_or(
        &mut self,
        piece: &'t [u8],
        out: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>),
    ) {
        if piece.len() > LONGEST {
            return encode(out);
        }
        let slot = self.slot(piece);
        let Slot {
            piece: seen,
            start,
            count,
        } = *slot;
        if seen == piece {
            let tokens: Range<usize> = start..start + count;
            return out.extend_from_within(tokens);
        }
        let start = out.len();
        encode(out);
        *slot = Slot {
            piece,
            start,
            count: out.len() - start,
        };
    }

    fn slot(&mut self, piece: &[u8]) -> &mut Slot<'t> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(piece);
        let at = hasher.finish() as usize & (self.slots.len() - 1);
        &mut self.slots[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_encoded_again_only_once_another_took_its_place() {
        let text = "a b a bb a";
        let mut memo = Memo::for_text(text.len());
        let (mut out, mut encoded) = (Vec::new(), 0);
        for piece in text.split(' ') {
            memo.repeat_or(piece.as_bytes(), &mut out, |out| {
                encoded += 1;
                out.extend(piece.bytes().map(u32::from));
            });
        }
        assert_eq!(out, [97, 98, 97, 98, 98, 97]);
        assert!((3..=5).contains(&encoded), "{encoded}");
    }

    #[test]
    fn pieces_that_collide_are_kept_apart() {
        let texts: Vec<String> = (0..500).map(|number| format!("w{}", number % 77)).collect();
        let mut memo = Memo::for_text(0);
        let mut out = Vec::new();
        for text in &texts {
            let start = out.len();
            memo.repeat_or(text.as_bytes(), &mut out, |out| {
                out.extend(text.bytes().map(u32::from));
            });
            let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
            assert_eq!(out[start..], tokens);
        }
    }
}
