//! The four classes of characters that pre-tokenizer patterns tell apart.
//! Unicode 16, as the regex engines that the published patterns are written for.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// `\p{L}`, `\p{N}`, `\s` and everything else; no character is in two of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// `\p{L}`: a letter of any script.
    Letter,
    /// `\p{N}`: decimal digits, letter numbers (Ⅳ), other numbers (½).
    Number,
    /// `\s`: the property `White_Space`.
    Space,
    /// Marks, punctuation, symbols, controls, unassigned.
    Other,
}

impl Class {
    /// The class of `character`.
    #[inline]
    pub(crate) fn of(character: char) -> Class {
        crate::work::step();
        match character {
            'a'..='z' | 'A'..='Z' => Class::Letter,
            '0'..='9' => Class::Number,
            ' ' | '\t'..='\r' => Class::Space,
            '\0'..='\x7F' => Class::Other,
            _ => Class::of_non_ascii(character),
        }
    }

    fn of_non_ascii(character: char) -> Class {
        if character.is_whitespace() {
            return Class::Space;
        }
        match get_general_category(character) {
            Category::UppercaseLetter
            | Category::LowercaseLetter
            | Category::TitlecaseLetter
            | Category::ModifierLetter
            | Category::OtherLetter => Class::Letter,
            Category::DecimalNumber | Category::LetterNumber | Category::OtherNumber => {
                Class::Number
            }
            _ => Class::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_regex_classes_on_every_character() {
        let classes = [
            (Class::Letter, r"\p{L}"),
            (Class::Number, r"\p{N}"),
            (Class::Space, r"\s"),
            (Class::Other, r"[^\s\p{L}\p{N}]"),
        ];
        let text: String = (0..=0x10FFFF).filter_map(char::from_u32).collect();
        for (class, pattern) in classes {
            let ours: String = text.chars().filter(|&c| Class::of(c) == class).collect();
            let theirs: String = fancy_regex::Regex::new(pattern)
                .expect("a valid pattern")
                .find_iter(&text)
                .map(|found| found.expect("no backtracking here").as_str())
                .collect();
            assert!(ours == theirs, "{class:?} differs from {pattern}");
        }
    }
}
