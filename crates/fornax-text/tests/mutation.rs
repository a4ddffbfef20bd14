//! Hostile vocabularies: whatever the metadata of a file says, it is read or refused, and what was
//! read encodes and decodes any text without a panic and without memory beyond reason.

use fornax_gguf::{Array, Gguf, GgufWriter, Value};
use fornax_text::{ChatTemplate, ControlTokens, Detokenizer, Special, Tokenizer};
use serde_json::json;

const CASES: u64 = 4000;

#[test]
fn mutated_metadata_is_read_or_refused() {
    let bases = [byte_level(), sentencepiece()];
    let (mut read, mut refused) = (0, 0);
    for seed in 0..CASES {
        let mut random = Random(seed);
        let mut entries = bases[seed as usize % 2].clone();
        for _ in 0..1 + random.below(3) {
            mutate(&mut entries, &mut random);
        }
        match use_all(&file(&entries), seed) {
            true => read += 1,
            false => refused += 1,
        }
    }
    assert!(
        read > CASES / 10 && refused > CASES / 10,
        "{read} read, {refused} refused"
    );
}

#[test]
fn mutated_bytes_are_read_or_refused() {
    for (index, entries) in [byte_level(), sentencepiece()].iter().enumerate() {
        let original = bytes(entries);
        for seed in 0..CASES / 4 {
            let mut random = Random(seed * 2 + index as u64);
            let mut bytes = original.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = random.below(256) as u8;
            }
            if let Ok(file) = Gguf::from_bytes("mutated.gguf", bytes) {
                use_all(&file, seed);
            }
        }
    }
}

/// Reads and uses all that a file has; returns whether it has a tokenizer.
fn use_all(file: &Gguf, seed: u64) -> bool {
    let Ok(tokenizer) = Tokenizer::from_gguf(file) else {
        return false;
    };
    let texts = ["", "abc  <s>x</s>\n▁é🦊 1234", "<0x41><<<end>>> \t a"];
    for text in texts {
        for special in [Special::Plain, Special::Parse] {
            let tokens = tokenizer.with_markers(tokenizer.encode(text, special));
            let bytes = tokenizer.decode(&tokens, ControlTokens::Show);
            bytes.unwrap_or_else(|error| panic!("case {seed}: its own tokens: {error}"));
            let mut stream = Detokenizer::new(&tokenizer, ControlTokens::Hide);
            for token in tokens {
                stream.push(token).expect("a token of its own");
            }
        }
    }
    assert!(tokenizer.decode(&[u32::MAX], ControlTokens::Hide).is_err());
    let request = json!({"messages": [{"role": "user", "content": "a"}]});
    if let Ok(template) = ChatTemplate::from_gguf(file, &tokenizer) {
        let _either = template.render(&request);
        template.stop_tokens(&tokenizer);
    }
    true
}

type Entries = Vec<(String, Value)>;

fn byte_level() -> Entries {
    // The printable ASCII characters spell themselves; the other bytes go without.
    let mut tokens: Vec<String> = (b'!'..=b'~')
        .map(|byte| char::from(byte).to_string())
        .collect();
    tokens.extend(["Ġ", "Ċ", "ab", "abc", "Ġa", "<s>", "</s>", "<end>"].map(String::from));
    let mut types = vec![1; tokens.len() - 3];
    types.extend([3, 3, 4]);
    entries([
        ("ggml.model", "gpt2".into()),
        ("ggml.pre", "qwen2".into()),
        ("ggml.bos_token_id", (tokens.len() as u32 - 3).into()),
        ("ggml.tokens", tokens.into()),
        ("ggml.token_type", types.into()),
        (
            "ggml.merges",
            ["a b", "ab c", "Ġ a"].map(String::from).to_vec().into(),
        ),
        ("ggml.add_bos_token", true.into()),
        (
            "chat_template",
            "{% for m in messages %}{{ bos_token ~ m.content | trim }}<end>{% endfor %}".into(),
        ),
    ])
}

fn sentencepiece() -> Entries {
    let pieces: [(&str, f32, i32); 11] = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<0x41>", 0.0, 6),
        ("▁", -1.0, 1),
        ("a", -2.0, 1),
        ("b", -3.0, 1),
        ("ab", -1.5, 1),
        ("▁a", -1.0, 1),
        ("éa", -4.0, 1),
        ("<end>", 0.0, 4),
    ];
    entries([
        ("ggml.model", "llama".into()),
        (
            "ggml.tokens",
            pieces.map(|piece| piece.0.to_owned()).to_vec().into(),
        ),
        ("ggml.scores", pieces.map(|piece| piece.1).to_vec().into()),
        (
            "ggml.token_type",
            pieces.map(|piece| piece.2).to_vec().into(),
        ),
        ("ggml.bos_token_id", 1u32.into()),
        ("ggml.eos_token_id", 2u32.into()),
        ("ggml.unknown_token_id", 0u32.into()),
        ("ggml.add_space_prefix", true.into()),
    ])
}

fn entries<const N: usize>(named: [(&str, Value); N]) -> Entries {
    named
        .map(|(name, value)| (format!("tokenizer.{name}"), value))
        .to_vec()
}

fn file(entries: &Entries) -> Gguf {
    Gguf::from_bytes("mutated.gguf", bytes(entries)).expect("what was written")
}

fn bytes(entries: &Entries) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    for (key, value) in entries {
        writer.set(key, value.clone()).expect("each key once");
    }
    let tensors = writer.start(Vec::new()).expect("a header");
    tensors.finish().expect("a file without tensors")
}

fn mutate(entries: &mut Entries, random: &mut Random) {
    let at = random.below(entries.len());
    let other = random.below(entries.len());
    match random.below(12) {
        0 if entries.len() > 1 => drop(entries.remove(at)),
        1 => entries[at].1 = entries[other].1.clone(),
        2 => entries[at].1 = odd_value(random),
        _ => mutate_value(&mut entries[at].1, random),
    }
}

fn odd_value(random: &mut Random) -> Value {
    match random.below(6) {
        0 => u32::MAX.into(),
        1 => f32::NAN.into(),
        2 => "".into(),
        3 => Vec::<String>::new().into(),
        4 => vec![i32::MIN, i32::MAX].into(),
        _ => false.into(),
    }
}

fn mutate_value(value: &mut Value, random: &mut Random) {
    match value {
        Value::Array(Array::String(items)) => mutate_list(items, random, odd_text),
        Value::Array(Array::F32(items)) => mutate_list(items, random, |random| {
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e30][random.below(5)]
        }),
        Value::Array(Array::I32(items)) => {
            mutate_list(items, random, |random| random.below(9) as i32 - 1);
        }
        Value::String(text) => *text = odd_text(random),
        Value::U32(number) => *number = random.below(120) as u32,
        Value::Bool(truth) => *truth = !*truth,
        _ => *value = odd_value(random),
    }
}

fn mutate_list<T: Clone>(items: &mut Vec<T>, random: &mut Random, odd: impl Fn(&mut Random) -> T) {
    if items.is_empty() {
        return items.push(odd(random));
    }
    let at = random.below(items.len());
    match random.below(6) {
        0 => items.truncate(at),
        1 => items.push(items[at].clone()),
        2 => items.reverse(),
        _ => items[at] = odd(random),
    }
}

fn odd_text(random: &mut Random) -> String {
    const TEXTS: [&str; 18] = [
        "",
        " ",
        "a",
        "a b",
        " a b",
        "ab",
        "b c",
        "<0x00>",
        "<0xFG>",
        "<0x",
        "▁",
        "▁▁a▁",
        "\u{10FFFF}",
        "gpt2",
        "llama",
        "deepseek-v3",
        "{% for a in b",
        "{{ m }}",
    ];
    match random.below(12) {
        0 => "ab".repeat(random.below(3000)),
        _ => TEXTS[random.below(TEXTS.len())].to_owned(),
    }
}

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
