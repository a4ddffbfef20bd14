//! What a fuzzer's bytes are given to.

use crate::openai::fields::parse;
use crate::routes::chat::ChatRequest;
use crate::routes::completions::CompletionRequest;
use crate::routes::embeddings::EmbeddingsRequest;
use crate::routes::tokenize::{DetokenizeRequest, TokenizeRequest};

/// Reads bytes as the body of every endpoint. They may be refused; nothing may panic, and an error
/// has a message.
pub fn request_bodies(bytes: &[u8]) {
    let errors = [
        parse::<ChatRequest>(bytes).err(),
        parse::<CompletionRequest>(bytes).err(),
        parse::<EmbeddingsRequest>(bytes).err(),
        parse::<TokenizeRequest>(bytes).err(),
        parse::<DetokenizeRequest>(bytes).err(),
    ];
    for error in errors.into_iter().flatten() {
        let body = error.body();
        let message = body["error"]["message"].as_str();
        assert!(message.is_some_and(|message| !message.is_empty()), "{body}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::routes::description::OPENAPI;

    /// SplitMix64 (Steele, Lea, Flood 2014).
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % bound as u64) as usize
        }
    }

    /// Bodies that are right, or nearly so.
    fn seeds() -> Vec<Vec<u8>> {
        let described: Value = serde_json::from_str(OPENAPI).unwrap();
        let schemas = described["components"]["schemas"].as_object().unwrap();
        let examples = schemas
            .values()
            .filter_map(|schema| schema.pointer("/examples/0"));
        let mut seeds: Vec<Value> = examples.cloned().collect();
        seeds.push(json!({
            "messages": [{"role": "user", "content": [{"type": "text", "text": "é🦊"}]}],
            "stop": ["a", "b"], "logit_bias": {"1": -1.5}, "n": 2, "seed": -7, "stream": true,
            "stream_options": {"include_usage": true}, "priority": -3, "tools": [],
            "response_format": {"type": "text"}, "top_logprobs": 3, "logprobs": true,
        }));
        seeds.push(json!({"prompt": [[1, 2], "x"], "echo": true, "logprobs": 5, "suffix": ""}));
        seeds
            .iter()
            .map(|seed| seed.to_string().into_bytes())
            .collect()
    }

    /// One thing about a body that is changed.
    fn mutate(body: &mut Vec<u8>, random: &mut Random) {
        let at = random.below(body.len().max(1));
        let end = (at + random.below(12)).min(body.len());
        match random.below(6) {
            0 => body.truncate(at),
            1 => drop(body.drain(at.min(end)..end)),
            2 => {
                let again = body[at.min(end)..end].to_vec();
                body.splice(at.min(end)..at.min(end), again);
            }
            3 => {
                let words: [&[u8]; 8] = [
                    b"null",
                    b"-1",
                    b"1e999",
                    b"{}",
                    b"[]",
                    b"true",
                    b"\"\\ud800\"",
                    b"18446744073709551616",
                ];
                let word = words[random.below(words.len())].iter().copied();
                body.splice(at.min(end)..end, word);
            }
            _ if at < body.len() => body[at] = random.below(256) as u8,
            _ => {}
        }
    }

    #[test]
    fn a_body_is_read_or_refused_with_a_message() {
        let (seeds, mut random) = (seeds(), Random(1));
        assert!(seeds.len() > 5);
        for _ in 0..20_000 {
            let mut body = seeds[random.below(seeds.len())].clone();
            for _ in 0..=random.below(4) {
                mutate(&mut body, &mut random);
            }
            request_bodies(&body);
        }
    }
}
