//! The classes of characters that pre-tokenizer patterns tell apart, and sets of them.
//! Unicode 16, as the regex engines that the published patterns are written for.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// A set of classes. Every character is in exactly one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Classes(u16);

impl Classes {
    /// `\p{Lu}` and `\p{Lt}`.
    pub const UPPER: Classes = Classes(1);
    /// `\p{Ll}`.
    pub const LOWER: Classes = Classes(1 << 1);
    /// `\p{Lm}` and `\p{Lo}`: letters of scripts without case, and modifiers.
    pub const CASELESS: Classes = Classes(1 << 2);
    /// `\p{M}`: marks that combine with the character before them.
    pub const MARK: Classes = Classes(1 << 3);
    /// `\p{N}`: decimal digits, letter numbers (Ⅳ), other numbers (½).
    pub const NUMBER: Classes = Classes(1 << 4);
    /// `\s`: the property `White_Space`.
    pub const SPACE: Classes = Classes(1 << 5);
    /// `\p{P}`.
    pub const PUNCTUATION: Classes = Classes(1 << 6);
    /// `\p{S}`.
    pub const SYMBOL: Classes = Classes(1 << 7);
    /// Controls, formats, private use, unassigned.
    pub const OTHER: Classes = Classes(1 << 8);

    /// `\p{L}`: a letter of any script.
    pub const LETTER: Classes = Classes::UPPER.or(Classes::LOWER).or(Classes::CASELESS);

    /// What is in either set.
    pub const fn or(self, other: Classes) -> Classes {
        Classes(self.0 | other.0)
    }

    /// What is not in the set.
    pub const fn not(self) -> Classes {
        Classes(!self.0)
    }

    /// The class of `character`, as a set of one.
    #[inline]
    pub(crate) fn of(character: char) -> Classes {
        crate::work::step();
        match ASCII.get(character as usize) {
            Some(class) => *class,
            None => Classes::of_non_ascii(character),
        }
    }

    /// Whether the class of `character` is one of these.
    #[inline]
    pub(crate) fn contain(self, character: char) -> bool {
        self.0 & Classes::of(character).0 != 0
    }

    const fn of_ascii(byte: u8) -> Classes {
        match byte {
            b'a'..=b'z' => Classes::LOWER,
            b'A'..=b'Z' => Classes::UPPER,
            b'0'..=b'9' => Classes::NUMBER,
            b' ' | b'\t'..=b'\r' => Classes::SPACE,
            b'$' | b'+' | b'<' | b'=' | b'>' | b'^' | b'`' | b'|' | b'~' => Classes::SYMBOL,
            b'!'..=b'~' => Classes::PUNCTUATION,
            _ => Classes::OTHER,
        }
    }

    fn of_non_ascii(character: char) -> Classes {
        use Category as C;
        if character.is_whitespace() {
            return Classes::SPACE;
        }
        match get_general_category(character) {
            C::UppercaseLetter | C::TitlecaseLetter => Classes::UPPER,
            C::LowercaseLetter => Classes::LOWER,
            C::ModifierLetter | C::OtherLetter => Classes::CASELESS,
            C::NonspacingMark | C::SpacingMark | C::EnclosingMark => Classes::MARK,
            C::DecimalNumber | C::LetterNumber | C::OtherNumber => Classes::NUMBER,
            C::ConnectorPunctuation
            | C::DashPunctuation
            | C::OpenPunctuation
            | C::ClosePunctuation
            | C::InitialPunctuation
            | C::FinalPunctuation
            | C::OtherPunctuation => Classes::PUNCTUATION,
            C::MathSymbol | C::CurrencySymbol | C::ModifierSymbol | C::OtherSymbol => {
                Classes::SYMBOL
            }
            _ => Classes::OTHER,
        }
    }
}

/// [128] class of each ASCII character.
static ASCII: [Classes; 128] = {
    let mut classes = [Classes::OTHER; 128];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = Classes::of_ascii(byte as u8);
        byte += 1;
    }
    classes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_regex_classes_on_every_character() {
        let classes = [
            (Classes::UPPER, r"[\p{Lu}\p{Lt}]"),
            (Classes::LOWER, r"\p{Ll}"),
            (Classes::CASELESS, r"[\p{Lm}\p{Lo}]"),
            (Classes::LETTER, r"\p{L}"),
            (Classes::MARK, r"\p{M}"),
            (Classes::NUMBER, r"\p{N}"),
            (Classes::SPACE, r"\s"),
            (Classes::PUNCTUATION, r"\p{P}"),
            (Classes::SYMBOL, r"\p{S}"),
            (
                Classes::SPACE.or(Classes::LETTER).or(Classes::NUMBER).not(),
                r"[^\s\p{L}\p{N}]",
            ),
        ];
        let text: String = (0..=0x10FFFF).filter_map(char::from_u32).collect();
        for (class, pattern) in classes {
            let ours: String = text.chars().filter(|&c| class.contain(c)).collect();
            let theirs: String = fancy_regex::Regex::new(pattern)
                .expect("a valid pattern")
                .find_iter(&text)
                .map(|found| found.expect("no backtracking here").as_str())
                .collect();
            assert!(ours == theirs, "{class:?} differs from {pattern}");
        }
    }
}
