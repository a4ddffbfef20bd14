//! From tokens back to text while they are made: what is given out is certain,
//! whole characters only. Must not know stop strings or who reads.

use crate::error::Error;
use crate::space_prefix::Place;
use crate::tokenizer::{ControlTokens, Tokenizer};

/// Turns a growing row of tokens into a growing text.
///
/// The pieces joined are `String::from_utf8_lossy` of all bytes, at every cut.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    control: ControlTokens,
    stream: Utf8Stream,
    /// What stands before the next token: its space may be one that no one wrote.
    place: Place,
}

impl Detokenizer {
    /// Begins a text.
    pub fn new(tokenizer: &Tokenizer, control: ControlTokens) -> Detokenizer {
        Detokenizer {
            tokenizer: tokenizer.clone(),
            control,
            stream: Utf8Stream::default(),
            place: Place::Start,
        }
    }

    /// Begins a text that continues the one of `tokens`, such as an answer behind its prompt.
    pub fn behind(tokenizer: &Tokenizer, control: ControlTokens, tokens: &[u32]) -> Detokenizer {
        Detokenizer {
            place: tokenizer.place_behind_all(tokens),
            ..Detokenizer::new(tokenizer, control)
        }
    }

    /// Appends `token` and returns the text that is now certain; empty while a character is
    /// still incomplete.
    ///
    /// # Errors
    /// A token that the vocabulary does not have; the text is as before.
    pub fn push(&mut self, token: u32) -> Result<String, Error> {
        let bytes = self
            .tokenizer
            .visible_bytes(token, self.control, self.place)?;
        self.place = self.tokenizer.place_behind(token, self.place);
        Ok(self.stream.push(bytes))
    }

    /// Ends the text and returns what was held back: a character that never became whole, as
    /// U+FFFD. The next push begins a new text.
    pub fn finish(&mut self) -> String {
        self.place = Place::Start;
        self.stream.finish()
    }
}

/// Turns a stream of bytes into text, holding back the beginning of a character until its end
/// has come. Bytes that are not UTF-8 become U+FFFD as in `String::from_utf8_lossy`.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The beginning of a character, at most 3 bytes.
    held: Vec<u8>,
}

impl Utf8Stream {
    /// Appends `bytes` and returns the text that is now certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let certain = certain_length(&self.held);
        let text = String::from_utf8_lossy(&self.held[..certain]).into_owned();
        self.held.drain(..certain);
        text
    }

    /// Ends the stream and returns what was held back; the next push begins a new one.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// How many of `bytes` no later byte can change the reading of: all but an incomplete character
/// at the end.
fn certain_length(bytes: &[u8]) -> usize {
    // A character has at most 4 bytes, so only the last 3 can be the beginning of one.
    let tail = bytes.len().saturating_sub(3);
    (tail..bytes.len())
        .find(|&start| is_incomplete_character(&bytes[start..]))
        .unwrap_or(bytes.len())
}

fn is_incomplete_character(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::repeatable;
    use proptest::prelude::*;

    fn streamed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> String {
        let mut stream = Utf8Stream::default();
        let mut text: String = pieces.map(|piece| stream.push(piece)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Bytes of which many begin or continue a character.
    fn awkward_bytes() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            any::<u8>(),
            0x80..=0xBFu8,
            prop::sample::select(vec![0xC3, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, b'a']),
        ];
        prop::collection::vec(byte, 0..40)
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut stream = Utf8Stream::default();
        let pieces: Vec<String> = "a🦊".bytes().map(|byte| stream.push(&[byte])).collect();
        assert_eq!(pieces, ["a", "", "", "", "🦊"]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn a_character_that_never_ends_is_replaced_once() {
        let mut stream = Utf8Stream::default();
        assert_eq!(stream.push(b"x\xF0\x9F\xA6"), "x");
        assert_eq!(stream.finish(), "\u{FFFD}");
        assert_eq!(stream.push(b"\xF0\x9Fy"), "\u{FFFD}y");
    }

    proptest! {
        #![proptest_config(repeatable(500))]

        #[test]
        fn any_cut_reads_as_the_whole(bytes in awkward_bytes(), size in 1usize..6) {
            let whole = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(streamed(bytes.chunks(size)), whole);
        }

        #[test]
        fn what_is_given_out_never_waits_longer_than_a_character(bytes in awkward_bytes()) {
            let mut stream = Utf8Stream::default();
            for byte in bytes {
                stream.push(&[byte]);
                prop_assert!(stream.held.len() <= 3);
            }
        }
    }
}
