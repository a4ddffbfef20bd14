//! The tokenizer on a small vocabulary: special tokens, markers, refusals, time.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::sample::{Sample, repeatable};
use crate::work::steps_of;

const PRE_TOKENIZERS: [&str; 11] = [
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "qwen35",
    "smollm",
    "gpt-4o",
    "tekken",
    "falcon",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
];

/// The sample with each pre-tokenizer.
static EACH_CUT: LazyLock<Vec<Tokenizer>> = LazyLock::new(|| {
    let sample = |pre| Sample {
        pre,
        ..Sample::default()
    };
    PRE_TOKENIZERS.map(|pre| sample(pre).tokenizer()).into()
});

#[test]
fn plain_text_never_becomes_a_control_token() {
    let sample = Sample::default();
    let tokenizer = sample.tokenizer();
    let parsed = tokenizer.encode("low<end>er", Special::Parse);
    assert_eq!(
        parsed,
        [sample.id("low"), sample.id("<end>"), sample.id("er")]
    );
    let plain = tokenizer.encode("low<end>er", Special::Plain);
    assert!(plain.iter().all(|&token| !tokenizer.is_control(token)));
    assert_eq!(
        tokenizer.decode(&plain, ControlTokens::Hide).unwrap(),
        b"low<end>er"
    );
}

#[test]
fn user_defined_tokens_are_words_in_plain_text_and_the_longest_wins() {
    let sample = Sample::default();
    let tokenizer = sample.tokenizer();
    for special in [Special::Plain, Special::Parse] {
        let tokens = tokenizer.encode("<think><th<think", special);
        let rest: Vec<u32> = b"ink".iter().map(|&byte| u32::from(byte)).collect();
        let expected = [sample.id("<think>"), sample.id("<th"), sample.id("<th")];
        assert_eq!(tokens, [&expected[..], &rest].concat());
    }
}

#[test]
fn unused_tokens_are_never_made() {
    let sample = Sample::default();
    let tokens = sample.tokenizer().encode("[PAD]", Special::Parse);
    assert!(!tokens.contains(&sample.id("[PAD]")));
}

#[test]
fn control_tokens_are_shown_only_when_asked() {
    let sample = Sample::default();
    let tokenizer = sample.tokenizer();
    let tokens = tokenizer.encode("<bos><think>low<end>", Special::Parse);
    let text = |control| String::from_utf8(tokenizer.decode(&tokens, control).unwrap()).unwrap();
    assert_eq!(text(ControlTokens::Hide), "<think>low");
    assert_eq!(text(ControlTokens::Show), "<bos><think>low<end>");
    let error = tokenizer
        .decode(&[9999], ControlTokens::Hide)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("token 9999 is not in the vocabulary"),
        "{error}"
    );
}

#[test]
fn markers_are_added_as_the_file_asks_and_never_twice() {
    let mut sample = Sample::default();
    let (bos, eos) = (sample.id("<bos>"), sample.id("<eos>"));
    sample.numbers = vec![("ggml.bos_token_id", bos), ("ggml.eos_token_id", eos)];
    assert_eq!(sample.tokenizer().with_markers(vec![7]), [7]);
    sample.flags = vec![("ggml.add_bos_token", true), ("ggml.add_eos_token", true)];
    let tokenizer = sample.tokenizer();
    assert_eq!(tokenizer.with_markers(vec![7]), [bos, 7, eos]);
    assert_eq!(tokenizer.with_markers(vec![bos, 7, eos]), [bos, 7, eos]);
    assert_eq!(tokenizer.with_markers(vec![]), [bos, eos]);
}

#[test]
fn llama3_begins_with_bos_unless_the_file_says_no() {
    let mut sample = Sample {
        pre: "llama-bpe",
        ..Sample::default()
    };
    assert!(!sample.tokenizer().add_bos(), "there is no BOS to add");
    sample.numbers = vec![("ggml.bos_token_id", sample.id("<bos>"))];
    assert!(sample.tokenizer().add_bos());
    sample.flags = vec![("ggml.add_bos_token", false)];
    assert!(!sample.tokenizer().add_bos());
}

#[test]
fn stop_tokens_are_those_of_the_metadata_each_once() {
    let mut sample = Sample::default();
    assert!(sample.tokenizer().stop_tokens().is_empty());
    let (eos, end) = (sample.id("<eos>"), sample.id("<end>"));
    sample.numbers = vec![
        ("ggml.eos_token_id", eos),
        ("ggml.eot_token_id", end),
        ("ggml.eom_token_id", end),
    ];
    assert_eq!(sample.tokenizer().stop_tokens(), [eos, end]);
}

#[test]
fn llama3_takes_a_whole_word_that_no_merge_leads_to() {
    let mut sample = Sample {
        pre: "llama-bpe",
        ..Sample::default()
    };
    sample.added.push(("xyz", 1));
    let expected = [sample.id("xyz")];
    assert_eq!(sample.tokenizer().encode("xyz", Special::Plain), expected);
    sample.pre = "qwen2";
    assert_eq!(sample.tokenizer().encode("xyz", Special::Plain).len(), 3);
}

#[test]
fn a_byte_without_a_token_is_left_out() {
    let sample = Sample {
        without: Some('\u{F1}'), // The byte 0xF1 begins characters of planes nobody uses.
        ..Sample::default()
    };
    let tokenizer = sample.tokenizer();
    let tokens = tokenizer.encode("lo\u{40000}w", Special::Plain);
    let text = tokenizer.decode(&tokens, ControlTokens::Hide).unwrap();
    assert_eq!(text, b"lo\x80\x80\x80w");
}

#[test]
fn refusals_name_what_is_wrong() {
    let sample = Sample::default;
    let cases = [
        (
            Sample {
                model: "bert",
                ..sample()
            },
            "tokenizer.ggml.model is \"bert\", which is not supported; supported: gpt2, llama",
        ),
        (
            Sample {
                pre: "default",
                ..sample()
            },
            "tokenizer.ggml.pre is \"default\", which is not supported; supported: gpt-2, a.x-4.0",
        ),
        (
            Sample {
                without: Some('z'),
                merges: Vec::new(),
                ..sample()
            },
            "'z' has no token",
        ),
        (
            Sample {
                merges: vec!["ab"],
                ..sample()
            },
            "merge 0, \"ab\", is not two tokens",
        ),
        (
            Sample {
                merges: vec!["a b", "x zz"],
                ..sample()
            },
            "merge 1, \"x zz\", names \"zz\", which is not a token",
        ),
        (
            Sample {
                added: vec![("<x>", 3), ("<x>", 4)],
                ..sample()
            },
            "are both \"<x>\"",
        ),
        (
            Sample {
                added: vec![("<x>", 9)],
                ..sample()
            },
            "has type 9",
        ),
        (
            Sample {
                added: vec![("", 3)],
                ..sample()
            },
            "has no text",
        ),
        // From each place of a text a search would look that far ahead.
        (
            Sample {
                added: vec![("x".repeat(1025).leak(), 3)],
                ..sample()
            },
            "has 1025 bytes of text",
        ),
        (
            Sample {
                numbers: vec![("ggml.eos_token_id", 5000)],
                ..sample()
            },
            "eos_token_id: 5000 is not one of the",
        ),
        (
            Sample {
                flags: vec![("ggml.add_bos_token", true)],
                ..sample()
            },
            "there is no tokenizer.ggml.bos_token_id",
        ),
        (
            Sample {
                texts: vec![("ggml.bos_token_id", "one")],
                ..sample()
            },
            "tokenizer.ggml.bos_token_id",
        ),
    ];
    for (sample, expected) in cases {
        let error = sample.error();
        assert!(
            error.contains(expected),
            "{error:?} does not say {expected:?}"
        );
        assert!(
            error.contains("sample.gguf"),
            "{error:?} does not name the file"
        );
    }
}

#[test]
fn hostile_text_takes_time_in_proportion_to_its_length() {
    for (tokenizer, pre) in EACH_CUT.iter().zip(PRE_TOKENIZERS) {
        for unit in [
            "a", " ", "ab", "🦊", "\n", "1", " \n", "  a", "'", "!", "\u{300}", "<th", "<think",
        ] {
            let steps = |bytes: usize| {
                let text = unit.repeat(bytes / unit.len());
                steps_of(|| drop(tokenizer.encode(&text, Special::Parse)))
            };
            let (small, large) = (steps(1 << 12), steps(1 << 15));
            assert!(
                large <= 9 * small,
                "{pre}, {unit:?}: {small} steps, then {large}"
            );
            assert!(
                large <= 12 << 15,
                "{pre}, {unit:?}: {large} steps for 32 KiB"
            );
        }
    }
}

/// A letter, a space and an emoji, a mebibyte of each.
fn check_a_mebibyte(tokenizer: &Tokenizer, name: &str) {
    for unit in ["a", " ", "🦊"] {
        let text = unit.repeat((1 << 20) / unit.len());
        let steps = steps_of(|| drop(tokenizer.encode(&text, Special::Plain)));
        assert!(steps <= 12 << 20, "{name}, {unit:?}: {steps} steps");
    }
}

#[test]
fn a_mebibyte_of_one_letter_stays_cheap_however_text_is_cut() {
    for (tokenizer, pre) in EACH_CUT.iter().zip(PRE_TOKENIZERS) {
        check_a_mebibyte(tokenizer, pre);
    }
    check_a_mebibyte(&Sample::spm().tokenizer(), "spm");
}

#[test]
#[cfg_attr(no_shared, ignore = "needs ../shared: real vocabularies")]
fn a_mebibyte_of_one_letter_stays_cheap_with_real_vocabularies() {
    let folder = env!("FORNAX_SHARED_DIR");
    for name in ["qwen2", "llama-bpe", "gpt-2", "llama-spm"] {
        let gguf = Gguf::open(format!("{folder}/vocabs/ggml-vocab-{name}.gguf")).unwrap();
        check_a_mebibyte(&Tokenizer::from_gguf(&gguf).unwrap(), name);
    }
}

proptest! {
    #![proptest_config(repeatable(200))]

    #[test]
    fn text_comes_back_from_its_tokens(text in "(?s)(ab|low|er|<end>|<think>| |\n|.){0,40}") {
        for tokenizer in EACH_CUT.iter() {
            for special in [Special::Plain, Special::Parse] {
                let tokens = tokenizer.encode(&text, special);
                let bytes = tokenizer.decode(&tokens, ControlTokens::Show).unwrap();
                prop_assert_eq!(bytes, text.as_bytes());
            }
        }
    }

    #[test]
    fn streamed_tokens_read_as_the_whole(tokens in prop::collection::vec(0u32..270, 0..40)) {
        let tokenizer = Sample::default().tokenizer();
        let bytes = tokenizer.decode(&tokens, ControlTokens::Hide).unwrap();
        let mut stream = crate::Detokenizer::new(&tokenizer, ControlTokens::Hide);
        let mut text = String::new();
        for token in tokens {
            text += &stream.push(token).unwrap();
        }
        text += &stream.finish();
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
    }
}
