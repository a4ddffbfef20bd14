//! Stop strings: text is held back while it could be the beginning of one and cut
//! before the first that is complete. Knows only text, no tokens.

use crate::error::Error;

/// Bytes of all stop strings of a text together. Every byte of the text is compared with each of
/// them, and they are kept anew for each answer to a prompt.
const MOST_BYTES: usize = 4096;

/// Watches a growing text for any of several strings.
///
/// The text ends as soon as one of them is complete; where several become complete with the
/// same character, before the longest. How the text is cut into pushes changes nothing.
#[derive(Clone, Debug)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// Text that is the beginning of a stop string, not yet given out.
    held: String,
    stopped: bool,
}

/// What became certain with a push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// Text to give out, which no stop string begins in.
    pub text: String,
    /// The stop string that ended the text, by its place in the list.
    pub by: Option<usize>,
}

impl StopStrings {
    /// Begins a text that ends before any of `strings`.
    ///
    /// # Errors
    /// An empty string, or more than 4096 bytes of them.
    pub fn new<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> Result<StopStrings, Error> {
        let (mut patterns, mut bytes) = (Vec::new(), 0);
        for (index, string) in strings.into_iter().enumerate() {
            if string.as_ref().is_empty() {
                return Err(Error::EmptyStopString { index });
            }
            bytes += string.as_ref().len();
            if bytes > MOST_BYTES {
                return Err(Error::LongStopStrings { most: MOST_BYTES });
            }
            patterns.push(Pattern::new(string.as_ref()));
        }
        Ok(StopStrings {
            patterns,
            held: String::new(),
            stopped: false,
        })
    }

    /// Appends `text` and returns what is now certain to be given out. After a stop nothing is.
    pub fn push(&mut self, text: &str) -> Stopped {
        if self.stopped {
            return Stopped {
                text: String::new(),
                by: None,
            };
        }
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            for pattern in &mut self.patterns {
                pattern.advance(byte);
            }
            if let Some((by, length)) = self.complete() {
                self.held.push_str(&text[..=index]);
                return self.stop(by, length);
            }
        }
        self.held.push_str(text);
        let waiting = self.patterns.iter().map(|pattern| pattern.matched).max();
        let certain = self.held.len() - waiting.unwrap_or(0);
        Stopped {
            text: self.held.drain(..certain).collect(),
            by: None,
        }
    }

    /// Ends the text and returns what was held back, which turned out to be no stop string.
    pub fn finish(&mut self) -> String {
        self.stopped = true;
        std::mem::take(&mut self.held)
    }

    /// The longest stop string that ends here, and its length in bytes; of equals the first.
    fn complete(&self) -> Option<(usize, usize)> {
        let complete = self.patterns.iter().enumerate().rev();
        complete
            .filter(|(_, pattern)| pattern.matched == pattern.bytes.len())
            .map(|(index, pattern)| (index, pattern.bytes.len()))
            .max_by_key(|&(_, length)| length)
    }

    fn stop(&mut self, by: usize, length: usize) -> Stopped {
        self.stopped = true;
        let mut text = std::mem::take(&mut self.held);
        text.truncate(text.len() - length);
        Stopped { text, by: Some(by) }
    }
}

/// One stop string and how much of it the text ends with (Knuth, Morris, Pratt 1977).
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// [bytes] length of the longest proper prefix that also ends here, for each prefix.
    borders: Vec<usize>,
    /// Length of the longest prefix that the text ends with, in bytes.
    matched: usize,
}

impl Pattern {
    fn new(string: &str) -> Pattern {
        let bytes = string.as_bytes().to_vec();
        let mut borders = vec![0; bytes.len()];
        for end in 1..bytes.len() {
            borders[end] = extend(&bytes, &borders, borders[end - 1], bytes[end]);
        }
        Pattern {
            bytes,
            borders,
            matched: 0,
        }
    }

    /// Only called while the pattern is incomplete: a complete one ends the text.
    fn advance(&mut self, byte: u8) {
        self.matched = extend(&self.bytes, &self.borders, self.matched, byte);
    }
}

/// The longest prefix that ends with `byte` behind a match of `matched` bytes.
fn extend(bytes: &[u8], borders: &[usize], mut matched: usize, byte: u8) -> usize {
    loop {
        crate::work::step();
        if bytes[matched] == byte {
            return matched + 1;
        }
        if matched == 0 {
            return 0;
        }
        matched = borders[matched - 1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::repeatable;
    use proptest::prelude::*;

    /// All text that is given out, and what stopped it.
    fn run<'a>(stops: &[String], pieces: impl Iterator<Item = &'a str>) -> (String, Option<usize>) {
        let mut watch = StopStrings::new(stops).expect("no empty stop string");
        let mut shown = String::new();
        for piece in pieces {
            let step = watch.push(piece);
            shown.push_str(&step.text);
            if step.by.is_some() {
                assert_eq!(watch.push("more").text, "");
                assert_eq!(watch.finish(), "");
                return (shown, step.by);
            }
        }
        shown.push_str(&watch.finish());
        (shown, None)
    }

    /// The definition: at the first place where any stop string ends, cut the longest.
    fn by_definition(stops: &[String], text: &str) -> (String, Option<usize>) {
        for (end, _) in text.char_indices().chain([(text.len(), ' ')]) {
            let ending = (0..stops.len()).filter(|&index| text[..end].ends_with(&stops[index]));
            let longest = ending.min_by_key(|&index| (usize::MAX - stops[index].len(), index));
            if let Some(index) = longest {
                return (text[..end - stops[index].len()].to_owned(), Some(index));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn text_waits_only_while_it_could_be_a_stop_string() {
        let mut watch = StopStrings::new(["###", "\nUser:"]).expect("no empty stop string");
        assert_eq!(watch.push("one #").text, "one ");
        assert_eq!(watch.push("# two").text, "## two");
        assert_eq!(watch.push("\nUse").text, "");
        let stopped = watch.push("r: hello");
        assert_eq!((stopped.text.as_str(), stopped.by), ("", Some(1)));
    }

    #[test]
    fn without_stop_strings_nothing_waits() {
        let mut watch = StopStrings::new::<&str>([]).expect("no empty stop string");
        assert_eq!(watch.push("anything").text, "anything");
    }

    #[test]
    fn an_empty_stop_string_is_refused_by_its_place() {
        let error = StopStrings::new(["a", ""])
            .expect_err("it is empty")
            .to_string();
        assert!(error.contains("stop string 1 is empty"), "{error}");
    }

    #[test]
    fn more_than_anyone_stops_by_is_refused() {
        let most = "a".repeat(MOST_BYTES);
        StopStrings::new([&most]).expect("as long as may be");
        let together: Vec<&str> = most.split_inclusive('a').chain(["b"]).collect();
        for strings in [vec![most.as_str(), "b"], together, vec![&"é".repeat(2049)]] {
            let error = StopStrings::new(strings).expect_err("it is too long");
            let told = error.to_string();
            assert!(told.contains("more than 4096 bytes"), "{told}");
        }
    }

    proptest! {
        #![proptest_config(repeatable(1000))]

        // Two letters and one of two bytes, so that stop strings overlap themselves and each other.
        #[test]
        fn any_cut_stops_as_the_definition_says(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abé]{0,5}", 0..8),
        ) {
            let whole = pieces.concat();
            let expected = by_definition(&stops, &whole);
            prop_assert_eq!(run(&stops, pieces.iter().map(String::as_str)), expected.clone());
            prop_assert_eq!(run(&stops, [whole.as_str()].into_iter()), expected);
        }
    }
}
