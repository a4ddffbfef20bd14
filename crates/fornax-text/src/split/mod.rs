//! Pre-tokenization: cutting text into the pieces inside which BPE merges.
//! Knows the names of pre-tokenizers and Unicode classes, no vocabulary.
//!
//! The published definition of each pre-tokenizer is one regular expression or several in a row;
//! what stands here are the same rules by hand, each in time linear in the text: a run of
//! characters is looked at a bounded number of times (the expressions, matched by backtracking,
//! are not). The tests compare both.
//!
//! llama.cpp, whose names these are, reads some expressions differently: contractions without the
//! long s (`'ſ`), letters of o200k and tekken by ASCII case and without marks. Here the published
//! `tokenizer.json` counts, because that is what a model was trained with.

mod cl100k;
mod deepseek;
mod falcon;
mod gpt2;
mod o200k;
mod runs;

/// One step of cutting: the length of the first piece of a text that is not empty.
type Step = fn(&str) -> usize;

/// How text is cut: each step cuts the pieces of the step before it.
type Steps = &'static [Step];

const GPT2: Steps = &[gpt2::piece];
const DIGITS_THEN_GPT2: Steps = &[runs::numbers::<1>, gpt2::piece];
const LLAMA3: Steps = &[cl100k::piece::<3>];
const QWEN2: Steps = &[cl100k::piece::<1>];
const QWEN35: Steps = &[cl100k::piece_with_marks::<1>];
const GPT4O: Steps = &[o200k::piece];
const TEKKEN: Steps = &[o200k::tekken_piece];
const FALCON: Steps = &[falcon::punctuation, gpt2::piece, falcon::digit_triples];
const DEEPSEEK_LLM: Steps = &[
    deepseek::line_ends,
    deepseek::cased_words,
    deepseek::listed_punctuation,
    deepseek::space_at_the_end,
    deepseek::eastern,
    deepseek::whole_numbers,
];
const DEEPSEEK_CODER: Steps = &[
    deepseek::line_ends,
    deepseek::words,
    deepseek::punctuation,
    deepseek::eastern,
    runs::numbers::<1>,
];
const DEEPSEEK_V3: Steps = &[
    runs::numbers::<3>,
    deepseek::han_and_kana,
    deepseek::words_and_symbols,
];
const MOST_STEPS: usize = DEEPSEEK_LLM.len();

/// What a value of `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheme {
    steps: Steps,
    /// A piece that is a token as a whole is taken at once, without merging (`ignore_merges`).
    pub whole_pieces: bool,
    /// Whether a BOS is put in front where the file does not say it (`add_bos_token` is absent).
    pub bos_by_default: bool,
}

/// Nothing beside the cutting.
const fn merged(steps: Steps) -> Scheme {
    Scheme {
        steps,
        whole_pieces: false,
        bos_by_default: false,
    }
}

/// Whole pieces are taken at once.
const fn whole(steps: Steps) -> Scheme {
    Scheme {
        whole_pieces: true,
        ..merged(steps)
    }
}

/// Likewise, and files that predate the flag `add_bos_token` rely on their readers knowing that
/// this tokenizer begins with a BOS.
const fn whole_after_bos(steps: Steps) -> Scheme {
    Scheme {
        bos_by_default: true,
        ..whole(steps)
    }
}

/// One row a name; to add a pre-tokenizer, add a row. The names are those that llama.cpp's
/// converter writes, and those that it accepts for the same cuts besides.
const NAMES: [(&str, Scheme); 64] = [
    ("gpt-2", merged(GPT2)),
    ("a.x-4.0", merged(GPT2)),
    ("exaone4", merged(GPT2)),
    ("gigachat", merged(GPT2)),
    ("granite-docling", merged(GPT2)),
    ("jais", merged(GPT2)),
    ("jina-de", merged(GPT2)),
    ("jina-es", merged(GPT2)),
    ("jina-v1-en", merged(GPT2)),
    ("jina-v2-code", merged(GPT2)),
    ("jina-v2-de", merged(GPT2)),
    ("jina-v2-es", merged(GPT2)),
    ("mellum", merged(GPT2)),
    ("modern-bert", merged(GPT2)),
    ("mpt", merged(GPT2)),
    ("olmo", merged(GPT2)),
    ("phi-2", merged(GPT2)),
    ("roberta-bpe", merged(GPT2)),
    ("trillion", merged(GPT2)),
    ("smollm", merged(DIGITS_THEN_GPT2)),
    ("codeshell", merged(DIGITS_THEN_GPT2)),
    ("command-r", merged(DIGITS_THEN_GPT2)),
    ("exaone", merged(DIGITS_THEN_GPT2)),
    ("mellum2", merged(DIGITS_THEN_GPT2)),
    ("minerva-7b", merged(DIGITS_THEN_GPT2)),
    ("refact", merged(DIGITS_THEN_GPT2)),
    ("starcoder", merged(DIGITS_THEN_GPT2)),
    ("llama-bpe", whole_after_bos(LLAMA3)),
    ("falcon-h1", whole_after_bos(LLAMA3)),
    ("falcon3", whole_after_bos(LLAMA3)),
    ("jina-v5-nano", whole_after_bos(LLAMA3)),
    ("lfm2", whole_after_bos(LLAMA3)),
    ("llama-v3", whole_after_bos(LLAMA3)),
    ("llama3", whole_after_bos(LLAMA3)),
    ("midm-2.0", whole_after_bos(LLAMA3)),
    ("pixtral", whole_after_bos(LLAMA3)),
    ("glm4", whole(LLAMA3)),
    ("glm5", whole(LLAMA3)),
    ("chatglm-bpe", merged(LLAMA3)),
    ("dbrx", merged(LLAMA3)),
    ("smaug-bpe", merged(LLAMA3)),
    ("qwen2", merged(QWEN2)),
    ("deepseek-r1-qwen", merged(QWEN2)),
    ("f2llmv2", merged(QWEN2)),
    ("grok-2", merged(QWEN2)),
    ("hunyuan", merged(QWEN2)),
    ("kormo", merged(QWEN2)),
    ("megrez", merged(QWEN2)),
    ("solar-open", merged(QWEN2)),
    ("stablelm2", merged(QWEN2)),
    ("qwen35", merged(QWEN35)),
    ("gpt-4o", merged(GPT4O)),
    ("kanana2", merged(GPT4O)),
    ("llama4", merged(GPT4O)),
    ("minimax-m2", merged(GPT4O)),
    ("talkie", merged(GPT4O)),
    ("tekken", whole_after_bos(TEKKEN)),
    ("falcon", merged(FALCON)),
    ("deepseek-llm", merged(DEEPSEEK_LLM)),
    ("deepseek-coder", merged(DEEPSEEK_CODER)),
    ("deepseek-v3", merged(DEEPSEEK_V3)),
    ("hunyuan-dense", merged(DEEPSEEK_V3)),
    ("hy_v4", merged(DEEPSEEK_V3)),
    ("joyai-llm", merged(DEEPSEEK_V3)),
];

impl Scheme {
    /// The scheme that `tokenizer.ggml.pre` names.
    pub(crate) fn from_name(name: &str) -> Option<Scheme> {
        let row = NAMES.iter().find(|(known, _)| *known == name)?;
        Some(row.1)
    }

    /// The names that are known, for an error message.
    pub(crate) fn names() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }

    /// Cuts `text` into pieces, which joined again are `text`.
    pub(crate) fn pieces(self, text: &str) -> Pieces<'_> {
        Pieces {
            steps: self.steps,
            text,
            at: 0,
            ends: [0; MOST_STEPS],
        }
    }
}

/// The pieces of a text, in order; none is empty.
pub(crate) struct Pieces<'a> {
    steps: Steps,
    text: &'a str,
    /// Byte offset of the next piece.
    at: usize,
    /// Byte offset where the current piece of each step ends; no piece of a later step crosses it.
    ends: [usize; MOST_STEPS],
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        if self.at == self.text.len() {
            return None;
        }
        let mut outer = self.text.len();
        for (step, end) in self.steps.iter().zip(&mut self.ends) {
            if *end == self.at {
                *end += step(&self.text[self.at..outer]);
            }
            outer = *end;
        }
        let piece = &self.text[self.at..outer];
        self.at = outer;
        Some(piece)
    }
}

#[cfg(test)]
mod tests;
