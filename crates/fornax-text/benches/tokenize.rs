//! How fast text becomes tokens on one thread: ten megabytes of prose, code, numbers, Chinese and
//! emoji, with each vocabulary of `../shared/vocabs`; with `--include-ignored`, beside it the
//! `tokenizers` of Hugging Face on the same text in the same run, where Python finds them.

#[path = "../tests/peer_definition/mod.rs"]
mod peer_definition;
#[path = "../tests/shared/mod.rs"]
mod shared;
#[path = "../tests/wheel/mod.rs"]
mod wheel;

use std::{slice, sync::LazyLock};

use divan::{Bencher, counter::BytesCount};
use fornax_text::Special;

const BYTES: usize = 10_000_000;
const VOCABULARIES: [&str; 4] = ["qwen2", "llama-bpe", "gpt-2", "llama-spm"];

static TEXT: LazyLock<String> = LazyLock::new(mixed_text);

fn main() {
    divan::main();
}

#[divan::bench(args = VOCABULARIES, sample_count = 5)]
fn fornax(bencher: Bencher, vocabulary: &str) {
    let tokenizer = shared::tokenizer(vocabulary);
    bencher
        .counter(BytesCount::of_str(&*TEXT))
        .bench(|| tokenizer.encode(&TEXT, Special::Plain));
}

/// With the way to Python and back.
#[divan::bench(args = VOCABULARIES, sample_count = 5, ignore = true)]
fn tokenizers(bencher: Bencher, vocabulary: &str) {
    let gguf = shared::gguf(vocabulary);
    let definition = peer_definition::definition(&gguf, vocabulary, Special::Plain);
    let mut peer = wheel::Peer::new(&definition);
    let text = slice::from_ref(&*TEXT);
    bencher
        .counter(BytesCount::of_str(&*TEXT))
        .bench_local(|| peer.encode(text));
}

/// Always the same text. Words are made of syllables, as many different ones as a text of this
/// length has, the frequent ones short; every fifth paragraph is code, numbers, Chinese or emoji.
fn mixed_text() -> String {
    let mut random = Random(1);
    let words: Vec<String> = (0..40_000).map(|rank| word(&mut random, rank)).collect();
    let mut text = String::new();
    while text.len() < BYTES {
        match random.below(20) {
            0 => code(&mut text, &mut random, &words),
            1 => numbers(&mut text, &mut random),
            2 => (0..60).for_each(|_| text.push(han(&mut random))),
            3 => emoji(&mut text, &mut random),
            _ => prose(&mut text, &mut random, &words),
        }
        text.push_str("\n\n");
    }
    text
}

/// Linear congruence, Knuth's MMIX.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = (self.0.wrapping_mul(6_364_136_223_846_793_005))
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Small numbers far more often than large ones, as ranks of words are in texts.
    fn rank(&mut self, limit: usize) -> usize {
        let uniform = (self.below(1 << 24) + 1) as f64 / f64::from(1 << 24);
        ((limit as f64).powf(uniform) - 1.0) as usize
    }
}

fn word(random: &mut Random, rank: usize) -> String {
    const SYLLABLES: [&str; 24] = [
        "the", "of", "in", "an", "er", "con", "re", "ti", "pro", "ment", "ing", "al", "ter", "es",
        "com", "ble", "wa", "th", "st", "é", "ou", "ly", "de", "per",
    ];
    let syllables = 1 + (rank + 1).ilog2() as usize / 5 + random.below(2);
    (0..syllables)
        .map(|_| SYLLABLES[random.below(SYLLABLES.len())])
        .collect()
}

fn prose(text: &mut String, random: &mut Random, words: &[String]) {
    for at in 0..80 {
        let word = &words[random.rank(words.len())];
        let first = word.chars().next().unwrap_or('x');
        match at % 13 {
            0 => text.extend([
                first.to_uppercase().collect::<String>().as_str(),
                &word[first.len_utf8()..],
            ]),
            _ => text.push_str(word),
        }
        text.push_str(match at % 13 {
            12 => ". ",
            7 => ", ",
            5 if random.below(4) == 0 => "'s ",
            _ => " ",
        });
    }
}

fn code(text: &mut String, random: &mut Random, words: &[String]) {
    for _ in 0..8 {
        let name = |random: &mut Random| words[random.rank(words.len())].clone();
        let (function, first, second) = (name(random), name(random), name(random));
        let number = random.below(1000);
        text.push_str(&format!(
            "    fn {function}_{first}({first}: &mut Vec<u8>) -> usize {{\n        if {first}.len() >= {number} {{\n            return self.{second}[{number}];\n        }}\n        // {second} {first}\n    }}\n"
        ));
    }
}

fn numbers(text: &mut String, random: &mut Random) {
    for _ in 0..40 {
        let (whole, part) = (random.below(1_000_000), random.below(1000));
        text.push_str(&format!(
            "{whole}.{part:03}\t2026-11-{:02}, ",
            1 + part % 30
        ));
    }
}

fn han(random: &mut Random) -> char {
    match random.below(12) {
        0 => '，',
        1 => '。',
        _ => char::from_u32(0x4E00 + random.rank(0x3000) as u32).unwrap_or('一'),
    }
}

fn emoji(text: &mut String, random: &mut Random) {
    for _ in 0..20 {
        text.extend(char::from_u32(0x1F600 + random.below(64) as u32));
        text.push_str(["", " ", "\u{FE0F}", "!! "][random.below(4)]);
    }
}
