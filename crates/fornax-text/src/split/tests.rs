//! The splitters against the published regular expressions, run by a regex engine.

use fancy_regex::Regex;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::sample::repeatable;

#[path = "../../tests/published/mod.rs"]
mod published;

/// What the expression finds and what lies between.
fn cut<'t>(pattern: &Regex, text: &'t str) -> Vec<&'t str> {
    let mut pieces = Vec::new();
    let mut end = 0;
    for found in pattern.find_iter(text) {
        let found = found.expect("little backtracking");
        pieces.extend([&text[end..found.start()], found.as_str()]);
        end = found.end();
    }
    pieces.push(&text[end..]);
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// Characters that the expressions tell apart, close together, and any others.
fn text() -> impl Strategy<Value = String> {
    let telling = prop::sample::select(
        "'''sStTmMdDrReEvVlLſK  \t\n\r\u{B}\u{85}\u{A0}\u{3000}\u{2028}0199٣½Ⅳaéßж漢字かꀀ한क्ค่\u{300}\u{345}!.,-_(/$+<“、。！ǅʰªˢ🦊👩\u{200D}\u{FEFF}\u{1C}\u{1}\u{E000}ƻႠაᲐ"
            .chars()
            .collect::<Vec<_>>(),
    );
    let character = prop_oneof![8 => telling, 1 => any::<char>()];
    prop::collection::vec(character, 0..40).prop_map(String::from_iter)
}

fn agrees(name: &str, expressions: &[&str]) {
    let scheme = Scheme::from_name(name).expect("a name of the table");
    let patterns: Vec<Regex> = expressions
        .iter()
        .map(|expression| Regex::new(expression).expect("the published expression"))
        .collect();
    let outcome = TestRunner::new(repeatable(3000)).run(&text(), |text| {
        let ours: Vec<&str> = scheme.pieces(&text).collect();
        let mut theirs = vec![text.as_str()];
        theirs.retain(|piece| !piece.is_empty());
        for pattern in &patterns {
            theirs = theirs
                .iter()
                .flat_map(|piece| cut(pattern, piece))
                .collect();
        }
        prop_assert_eq!(ours, theirs);
        Ok(())
    });
    assert!(outcome.is_ok(), "{name}: {outcome:?}");
}

#[test]
fn every_splitter_cuts_as_its_expressions() {
    for (name, expressions) in published::PUBLISHED {
        agrees(name, expressions);
    }
}

#[test]
fn no_name_stands_in_the_table_twice() {
    let mut names = NAMES.map(|(name, _)| name);
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn known_cuts() {
    let text = "I'LL pay 1234  euros!\n\n ok";
    for (name, expected) in [
        (
            "gpt-2",
            &[
                "I", "'", "LL", " pay", " 1234", " ", " euros", "!", "\n\n", " ok",
            ][..],
        ),
        (
            "llama-bpe",
            &[
                "I", "'LL", " pay", " ", "123", "4", " ", " euros", "!\n\n", " ok",
            ],
        ),
        (
            "qwen2",
            &[
                "I", "'LL", " pay", " ", "1", "2", "3", "4", " ", " euros", "!\n\n", " ok",
            ],
        ),
        (
            "smollm",
            &[
                "I", "'", "LL", " pay", " ", "1", "2", "3", "4", " ", " euros", "!", "\n\n", " ok",
            ],
        ),
        (
            "gpt-4o",
            &[
                "I'LL", " pay", " ", "123", "4", " ", " euros", "!\n\n", " ok",
            ],
        ),
        (
            "falcon",
            &[
                "I", "'", "LL", " pay", " ", "123", "4", " ", " euros", "!", "\n\n", " ok",
            ],
        ),
    ] {
        let scheme = Scheme::from_name(name).expect("a name of the table");
        assert_eq!(scheme.pieces(text).collect::<Vec<_>>(), expected, "{name}");
    }
}
