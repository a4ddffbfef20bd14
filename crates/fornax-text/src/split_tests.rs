//! The splitter against the published regular expressions, run by a regex engine.

use fancy_regex::Regex;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::sample::repeatable;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn matches<'t>(pattern: &Regex, text: &'t str) -> Vec<&'t str> {
    let found = pattern.find_iter(text);
    found
        .map(|found| found.expect("little backtracking").as_str())
        .collect()
}

/// Characters that the expressions tell apart, close together, and any others.
fn text() -> impl Strategy<Value = String> {
    let telling = prop::sample::select(
        "'''sStTmMdDrReEvVlLſK  \t\n\r\u{B}\u{85}\u{A0}\u{3000}\u{2028}019٣½Ⅳaéßж漢क्ค่\u{300}\u{345}!.,-_(🦊👩\u{200D}\u{FEFF}\u{1C}ªˢ"
            .chars()
            .collect::<Vec<_>>(),
    );
    let character = prop_oneof![8 => telling, 1 => any::<char>()];
    prop::collection::vec(character, 0..40).prop_map(String::from_iter)
}

fn agrees(splitter: PreTokenizer, expected: impl Fn(&str) -> Vec<String>) {
    let outcome = TestRunner::new(repeatable(4000)).run(&text(), |text| {
        let ours: Vec<&str> = splitter.pieces(&text).collect();
        prop_assert_eq!(ours, expected(&text));
        Ok(())
    });
    outcome.expect("pieces as the expression has them");
}

fn agrees_with(splitter: PreTokenizer, pattern: &str) {
    let pattern = Regex::new(pattern).expect("the published expression");
    agrees(splitter, |text| {
        matches(&pattern, text)
            .into_iter()
            .map(str::to_owned)
            .collect()
    });
}

#[test]
fn gpt2_cuts_as_its_expression() {
    agrees_with(PreTokenizer::Gpt2, GPT2);
}

#[test]
fn llama3_cuts_as_its_expression() {
    agrees_with(PreTokenizer::Llama3, LLAMA3);
}

#[test]
fn qwen2_cuts_as_its_expression() {
    agrees_with(PreTokenizer::Qwen2, QWEN2);
}

#[test]
fn smollm_cuts_at_digits_and_then_as_gpt2() {
    let digit = Regex::new(r"\p{N}|[^\p{N}]+").expect("a valid expression");
    let gpt2 = Regex::new(GPT2).expect("the published expression");
    agrees(PreTokenizer::SmolLm, |text| {
        let sections = matches(&digit, text).into_iter();
        sections
            .flat_map(|section| matches(&gpt2, section))
            .map(str::to_owned)
            .collect()
    });
}

#[test]
fn known_cuts() {
    let cut = |splitter: PreTokenizer, text| splitter.pieces(text).collect::<Vec<_>>();
    let text = "I'LL pay 1234  euros!\n\n ok";
    assert_eq!(
        cut(PreTokenizer::Gpt2, text),
        [
            "I", "'", "LL", " pay", " 1234", " ", " euros", "!", "\n\n", " ok"
        ]
    );
    assert_eq!(
        cut(PreTokenizer::Llama3, text),
        [
            "I", "'LL", " pay", " ", "123", "4", " ", " euros", "!\n\n", " ok"
        ]
    );
    assert_eq!(
        cut(PreTokenizer::Qwen2, text),
        [
            "I", "'LL", " pay", " ", "1", "2", "3", "4", " ", " euros", "!\n\n", " ok"
        ]
    );
    assert_eq!(
        cut(PreTokenizer::SmolLm, text),
        [
            "I", "'", "LL", " pay", " ", "1", "2", "3", "4", " ", " euros", "!", "\n\n", " ok"
        ]
    );
}
