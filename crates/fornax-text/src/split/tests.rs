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

/// Names that llama.cpp reads as the same expressions, by the pre-tokenizer that has them.
#[rustfmt::skip]
const ALIASES: [(&str, &[&str]); 6] = [
    ("gpt-2", &[
        "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum",
        "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt", "olmo", "jais",
        "trillion", "granite-docling",
    ]),
    ("starcoder", &["refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"]),
    ("llama-bpe", &[
        "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
        "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5",
    ]),
    ("qwen2", &[
        "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
        "grok-2",
    ]),
    ("gpt-4o", &["llama4", "kanana2", "talkie", "minimax-m2"]),
    ("deepseek-v3", &["hunyuan-dense", "joyai-llm", "hy_v4"]),
];

#[test]
fn every_alias_cuts_as_what_it_stands_for() {
    let text = "I'LL pay 1234  euros!\n\n 漢字かな ok\t Été";
    let cut = |name| {
        let scheme = Scheme::from_name(name).unwrap_or_else(|| panic!("{name} is not known"));
        scheme.pieces(text).collect::<Vec<_>>()
    };
    for (name, aliases) in ALIASES {
        for alias in aliases {
            assert_eq!(cut(alias), cut(name), "{alias}");
        }
    }
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
