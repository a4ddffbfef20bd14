//! SentencePiece's merging on a small vocabulary: scores, spaces, bytes, and its definition.

use fornax_gguf::Gguf;
use proptest::prelude::*;

use crate::sample::{Sample, repeatable};
use crate::tokenizer::{ControlTokens, Special, Tokenizer};
use crate::work::steps_of;

fn tokens(text: &str) -> Vec<String> {
    let sample = Sample::spm();
    let names = sample.tokens();
    let tokens = sample.tokenizer().encode(text, Special::Parse);
    tokens
        .iter()
        .map(|&token| names[token as usize].clone())
        .collect()
}

#[test]
fn the_highest_score_goes_first_and_of_equals_the_leftmost() {
    assert_eq!(tokens("abc"), ["▁a", "bc"]);
    assert_eq!(tokens("éabc"), ["▁", "é", "abc"]);
    assert_eq!(tokens("éaaca"), ["▁", "é", "aa", "ca"]);
    assert_eq!(tokens("écaaca"), ["▁", "é", "ca", "a", "ca"]);
}

#[test]
fn what_has_no_token_falls_back_to_bytes() {
    assert_eq!(tokens("aü"), ["▁a", "<0xC3>", "<0xBC>"]);
    // No token is `x`, but one begins with it.
    assert_eq!(tokens("éx"), ["▁", "é", "<0x78>"]);
    assert_eq!(tokens("éxa"), ["▁", "é", "xa"]);
}

#[test]
fn a_character_that_bytes_cannot_spell_is_unknown() {
    let mut sample = Sample::spm();
    let without = |sample: &mut Sample, text: &str| {
        sample.pieces.retain(|piece| piece.0 != text);
    };
    without(&mut sample, "<0xBC>");
    let tokenizer = sample.tokenizer();
    assert_eq!(
        tokenizer.encode("üa", Special::Plain)[1..],
        [0, sample.id("a")]
    );
    sample.numbers.retain(|(name, _)| !name.contains("unknown"));
    let tokenizer = sample.tokenizer();
    assert_eq!(
        tokenizer.encode("üa", Special::Plain)[1..],
        [sample.id("a")]
    );
}

#[test]
fn a_space_goes_in_front_of_a_text_and_behind_added_tokens() {
    assert_eq!(tokens(""), [""; 0]);
    assert_eq!(tokens("a"), ["▁a"]);
    assert_eq!(tokens(" a"), ["▁▁", "a"]);
    assert_eq!(tokens("<s>a<end>"), ["<s>", "▁a", "<end>"]);
    assert_eq!(tokens("a<think>a<s>"), ["▁a", "<think>", "▁a", "<s>"]);
    let mut sample = Sample::spm();
    sample.flags = vec![("ggml.add_space_prefix", false)];
    let tokenizer = sample.tokenizer();
    assert_eq!(tokenizer.encode("a", Special::Plain), [sample.id("a")]);
    let spaced = tokenizer.encode(" a", Special::Plain);
    assert_eq!(spaced, [sample.id("▁a")]);
    assert_eq!(
        tokenizer.decode(&spaced, ControlTokens::Hide).unwrap(),
        b" a"
    );
}

#[test]
fn the_space_in_front_is_taken_away_where_it_was_put() {
    let sample = Sample::spm();
    let tokenizer = sample.tokenizer();
    let text = |tokens: &[u32]| {
        String::from_utf8(tokenizer.decode(tokens, ControlTokens::Show).unwrap()).unwrap()
    };
    let (word, end) = (sample.id("▁a"), sample.id("<end>"));
    assert_eq!(text(&[word, word]), "a a");
    assert_eq!(text(&[word, end, word, word]), "a<end>a a");
    assert_eq!(text(&[sample.id("a"), word]), "a a");
    assert_eq!(text(&[sample.id("▁▁"), word]), "  a");
    // A byte is what it is.
    assert_eq!(text(&[3 + 0x20, word]), "  a");
}

#[test]
fn an_answer_that_continues_a_text_keeps_its_space() {
    let sample = Sample::spm();
    let tokenizer = sample.tokenizer();
    let word = sample.id("▁a");
    let first = |prompt: &[u32]| {
        let hide = ControlTokens::Hide;
        let mut answer = crate::Detokenizer::behind(&tokenizer, hide, prompt);
        answer.push(word).unwrap() + &answer.push(word).unwrap()
    };
    assert_eq!(first(&[]), "a a");
    assert_eq!(first(&[word]), " a a");
    assert_eq!(first(&[word, sample.id("<end>")]), "a a");
}

#[test]
fn words_are_cut_apart_only_where_no_token_reaches_across() {
    // `b▁c` spans a space, though only behind `b`.
    assert_eq!(tokens("éb c"), ["▁", "é", "b▁c"]);
    assert_eq!(tokens("éa ca"), ["▁", "é", "a", "▁", "ca"]);
}

#[test]
fn text_is_never_merged_into_a_token_that_is_no_text() {
    let plain = Sample::spm().tokenizer().encode("<s>", Special::Plain);
    assert!(!plain.contains(&1));
    let mut sample = Sample::spm();
    sample.pieces.extend([
        ("<", -1.0, 1),
        ("s", -1.0, 1),
        (">", -1.0, 1),
        ("<s", -1.0, 1),
    ]);
    assert_eq!(sample.tokenizer().encode("<s>", Special::Plain).len(), 3);
}

#[test]
fn a_model_of_this_kind_begins_with_bos_unless_the_file_says_no() {
    let mut sample = Sample::spm();
    assert!(sample.tokenizer().add_bos());
    sample.flags = vec![("ggml.add_bos_token", false)];
    assert!(!sample.tokenizer().add_bos());
}

#[test]
fn white_space_behind_an_added_token_of_phi3_is_no_text() {
    let sample = Sample::spm();
    let bytes = sample.bytes();
    let file = Gguf::from_bytes("phi3.gguf", bytes).unwrap();
    let mut writer = fornax_gguf::GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    writer.set("general.architecture", "phi3").unwrap();
    let bytes = writer.start(Vec::new()).unwrap().finish().unwrap();
    let file = Gguf::from_bytes("phi3.gguf", bytes).unwrap();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let (word, end, bos) = (sample.id("▁a"), sample.id("<end>"), 1);
    assert_eq!(tokenizer.encode("<end>\n a", Special::Parse), [end, word]);
    assert_eq!(tokenizer.encode("<end> \n", Special::Parse), [end]);
    assert_eq!(tokenizer.encode("<end> <end>", Special::Parse), [end, end]);
    let kept = tokenizer.encode("<s> a", Special::Parse);
    assert_eq!(kept, [bos, sample.id("▁▁"), sample.id("a")]);
}

#[test]
fn refusals_name_what_is_wrong() {
    let with = |text: &'static str, score: f32, kind: i32| {
        let mut sample = Sample::spm();
        sample.pieces.push((text, score, kind));
        sample.error()
    };
    for (error, expected) in [
        (with("x", f32::NAN, 1), "the score of token"),
        (
            with("<0xG0>", 0.0, 6),
            "is \"<0xG0>\", not <0x00> to <0xFF>",
        ),
        (with("a", 0.0, 1), "are both \"a\""),
        (
            with("a".repeat(1025).leak(), 0.0, 1),
            "has 1025 bytes of text",
        ),
    ] {
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

/// The definition: again and again the leftmost of the neighbours that together are the token of
/// the highest score, found by looking.
fn by_definition(sample: &Sample, text: &str) -> Vec<u32> {
    let names = sample.tokens();
    let find = |text: &str| {
        let id = names.iter().position(|name| name == text)?;
        matches!(sample.pieces[id].2, 1 | 4).then_some(id)
    };
    let text = format!(" {text}").replace(' ', "▁");
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let mut best: Option<(usize, f32)> = None;
        for at in 1..symbols.len() {
            if let Some(id) = find(&(symbols[at - 1].clone() + &symbols[at])) {
                let score = sample.pieces[id].1;
                if best.is_none_or(|(_, highest)| score > highest) {
                    best = Some((at, score));
                }
            }
        }
        let Some((at, _)) = best else {
            break;
        };
        let right = symbols.remove(at);
        symbols[at - 1] += &right;
    }
    let tokens = symbols.iter().flat_map(|symbol| match find(symbol) {
        Some(id) => vec![id as u32],
        None => symbol.bytes().map(|byte| 3 + u32::from(byte)).collect(),
    });
    tokens.collect()
}

#[test]
fn hostile_text_takes_time_in_proportion_to_its_length() {
    let tokenizer = Sample::spm().tokenizer();
    for unit in ["a", " ", "ab", "🦊", "a ", "b ", "\n", "x", "<think", "ca"] {
        let steps = |bytes: usize| {
            let text = unit.repeat(bytes / unit.len());
            steps_of(|| drop(tokenizer.encode(&text, Special::Parse)))
        };
        let (small, large) = (steps(1 << 12), steps(1 << 15));
        assert!(large <= 9 * small, "{unit:?}: {small} steps, then {large}");
        assert!(large <= 6 << 15, "{unit:?}: {large} steps for 32 KiB");
    }
}

proptest! {
    #![proptest_config(repeatable(400))]

    #[test]
    fn the_queue_merges_by_definition(text in "(a|b|c|x|é| |ü){1,60}") {
        let sample = Sample::spm();
        prop_assert_eq!(
            sample.tokenizer().encode(&text, Special::Plain),
            by_definition(&sample, &text)
        );
    }

    #[test]
    fn any_bytes_come_back(
        bytes in prop::collection::vec(prop_oneof![
            Just(b' '), Just(b'a'), Just(b'b'), Just(0xC3), Just(0xA9), any::<u8>()
        ], 0..40),
    ) {
        let tokenizer = Sample::spm().tokenizer();
        let tokens = tokenizer.encode_bytes(&bytes, Special::Plain);
        let text = tokenizer.decode(&tokens, ControlTokens::Show).unwrap();
        prop_assert_eq!(text, bytes);
    }
}
