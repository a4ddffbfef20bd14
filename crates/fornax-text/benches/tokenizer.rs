//! How fast text becomes tokens and tokens text, with the vocabulary of the built-in model; read
//! bytes a second.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use divan::{Bencher, counter::BytesCount};
use fornax_gguf::Gguf;
use fornax_text::{ControlTokens, Detokenizer, Special, Tokenizer};

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fornax-cli/model/fornax-mini.gguf"
);

/// What is encoded: prose, code, other scripts, and one word without an end.
const TEXTS: [(&str, &str); 4] = [
    (
        "prose",
        "The fox ran over the hill, and nobody saw where it went. ",
    ),
    ("code", "fn main() {\n    println!(\"{}\", 12 + 30);\n}\n\n"),
    ("scripts", "Привет, мир! 你好，世界。 \u{1f98a} こんにちは "),
    ("one word", "abcdefghij"),
];

fn main() {
    divan::main();
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::open(MODEL).unwrap()).unwrap()
}

/// 16 KiB of a text, or just above.
fn text(kind: &str) -> String {
    let (_, piece) = TEXTS.iter().find(|(name, _)| *name == kind).unwrap();
    piece.repeat((16 << 10) / piece.len() + 1)
}

#[divan::bench(args = TEXTS.map(|(kind, _)| kind))]
fn encode(bencher: Bencher<'_, '_>, kind: &str) {
    let (tokenizer, text) = (tokenizer(), text(kind));
    bencher
        .counter(BytesCount::new(text.len()))
        .bench_local(|| tokenizer.encode(&text, Special::Plain));
}

#[divan::bench(args = TEXTS.map(|(kind, _)| kind))]
fn decode_one_by_one(bencher: Bencher<'_, '_>, kind: &str) {
    let (tokenizer, text) = (tokenizer(), text(kind));
    let tokens = tokenizer.encode(&text, Special::Plain);
    bencher
        .counter(BytesCount::new(text.len()))
        .bench_local(|| {
            let mut detokenizer = Detokenizer::new(&tokenizer, ControlTokens::Hide);
            let mut length = 0;
            for &token in &tokens {
                length += detokenizer.push(token).unwrap().len();
            }
            length + detokenizer.finish().len()
        });
}
