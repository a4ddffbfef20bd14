//! Which of GGUF's named pre-tokenizers a `tokenizer.json` describes.
//!
//! GGUF names how text is cut into words before merging; `tokenizer.json` spells it out. Owns the
//! table from one to the other, by the expressions as they are published; one that is not in the
//! table is an error, because a wrong cut gives other tokens. Must not know vocabularies.

use serde_json::Value;

/// Whether text comes out of it as letters that stand for bytes.
pub(super) fn is_byte_level(pre_tokenizer: &Value) -> bool {
    let mut steps = Vec::new();
    collect(pre_tokenizer, &mut steps);
    let is_byte = |step: &String| step == "gpt2" || step.starts_with("bytes");
    steps.iter().any(is_byte)
}

/// The name of a pre-tokenizer, or what it is made of.
pub(super) fn name(pre_tokenizer: &Value) -> Result<&'static str, String> {
    let mut steps = Vec::new();
    collect(pre_tokenizer, &mut steps);
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    let name = match steps.as_slice() {
        ["gpt2"] => Some("gpt-2"),
        ["digit", "gpt2"] => Some("smollm"),
        [LLAMA3, "bytes"] => Some("llama-bpe"),
        [QWEN2, "bytes"] => Some("qwen2"),
        [QWEN35, "bytes"] => Some("qwen35"),
        [GPT4O, "bytes"] => Some("gpt-4o"),
        [TEKKEN, "bytes"] => Some("tekken"),
        ["punctuation", "gpt2", "digits", "[0-9][0-9][0-9]"] => Some("falcon"),
        [LINE_END, CASED, LISTED, r"\s+$", EASTERN, "digits", "bytes"] => Some("deepseek-llm"),
        [
            LINE_END,
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            EASTERN,
            "digit",
            "bytes",
        ] => Some("deepseek-coder"),
        [r"\p{N}{1,3}", KANA, DEEPSEEK3, "bytes"] => Some("deepseek-v3"),
        _ => None,
    };
    name.ok_or_else(|| steps.join(" ▸ "))
}

/// The steps of a pre-tokenizer, in order.
fn collect(pre_tokenizer: &Value, steps: &mut Vec<String>) {
    let flag = |key: &str| pre_tokenizer.get(key).and_then(Value::as_bool);
    let kind = pre_tokenizer.get("type").and_then(Value::as_str);
    match kind.unwrap_or("none") {
        "Sequence" => {
            let list = pre_tokenizer.get("pretokenizers").and_then(Value::as_array);
            list.into_iter()
                .flatten()
                .for_each(|step| collect(step, steps));
        }
        "Split" => {
            let pattern = pre_tokenizer.get("pattern");
            let pattern = pattern.and_then(|pattern| {
                let of = |kind| pattern.get(kind).and_then(Value::as_str);
                of("Regex").or_else(|| of("String"))
            });
            let pattern = pattern.unwrap_or("a split by nothing");
            // Some files have the line ends themselves in the expression.
            let pattern = pattern.replace('\r', r"\r").replace('\n', r"\n");
            // Pieces are what the expression finds, or what lies between what it finds.
            let behavior = pre_tokenizer.get("behavior").and_then(Value::as_str);
            let behavior = behavior.unwrap_or("Isolated");
            let inverted = flag("invert").unwrap_or(false);
            steps.push(match (behavior, inverted) {
                ("Isolated", _) | ("Removed", true) => pattern,
                _ => format!("{pattern} ({behavior})"),
            });
        }
        "Digits" if flag("individual_digits") == Some(true) => steps.push("digit".to_owned()),
        "Digits" => steps.push("digits".to_owned()),
        "Punctuation" => steps.push("punctuation".to_owned()),
        "ByteLevel" if flag("add_prefix_space") == Some(true) => {
            steps.push("bytes behind a space".to_owned());
        }
        "ByteLevel" if flag("use_regex") == Some(false) => steps.push("bytes".to_owned()),
        "ByteLevel" => steps.push("gpt2".to_owned()),
        other => steps.push(other.to_owned()),
    }
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LINE_END: &str = r"[\r\n]";
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";
const LISTED: &str = r"\s?[!-/:-~！-／：-～‘-‟　-。]+";
const EASTERN: &str = "[一-龥ࠀ-一가-퟿]+";
const KANA: &str = "[一-龥぀-ゟ゠-ヿ]+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
