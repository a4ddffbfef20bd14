//! What is asked: random prompts of chosen lengths, with a shared beginning, in one turn or several.

use serde_json::{Value, json};

use crate::bench::random::Random;

/// Ids of prompts: in every vocabulary, and none of those that usually are control tokens.
const TOKENS: std::ops::Range<usize> = 300..1000;
/// Words of chats, each about a token.
const WORDS: [&str; 16] = [
    "time", "people", "water", "house", "light", "music", "green", "river", "table", "night",
    "story", "paper", "stone", "world", "heart", "road",
];

/// The longest prompt, prefix or answer that is asked for, in tokens: no model has a longer context.
pub const MOST_TOKENS: usize = 0xff_ffff;

/// A length, or a range in which each length is as likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    pub least: usize,
    pub most: usize,
}

impl std::str::FromStr for Length {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |text: &str| {
            format!("`{text}` is no length; write 150 or 100-200, from 1 up to {MOST_TOKENS}")
        };
        // Of a negative number the sign would be taken for that of a range.
        if text.starts_with('-') {
            return Err(wrong(text));
        }
        let number = |text: &str| {
            let number = text.parse().ok();
            let number = number.filter(|number| (1..=MOST_TOKENS).contains(number));
            number.ok_or_else(|| wrong(text))
        };
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let (least, most) = (number(least)?, number(most)?);
        match least <= most {
            true => Ok(Self { least, most }),
            false => Err(format!("`{text}` ends before it begins")),
        }
    }
}

impl Length {
    fn draw(self, random: &mut Random) -> usize {
        self.least + random.below(self.most - self.least + 1)
    }
}

/// What every request has in common.
#[derive(Clone, Debug)]
pub struct Workload {
    pub model: String,
    pub prompt: Length,
    pub output: Length,
    /// Tokens that all prompts begin with.
    pub shared_prefix: usize,
    /// Questions of a conversation, each with all that was said before.
    pub turns: usize,
    /// Ask by chat even where there is one turn only.
    pub chat: bool,
    /// Ask for answers of the full length.
    pub ignore_end: bool,
    pub seed: u64,
}

/// A user: one request, or a conversation that goes on when an answer has come.
pub struct Session {
    random: Random,
    messages: Vec<Value>,
    turns_left: usize,
}

impl Workload {
    /// The user with this number; the same number asks the same.
    pub fn session(&self, number: usize) -> Session {
        let mut messages = Vec::new();
        if self.shared_prefix > 0 {
            let text = words(&mut Random::new(self.seed), self.shared_prefix);
            messages.push(json!({"role": "system", "content": text}));
        }
        Session {
            random: Random::new(self.seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9)),
            messages,
            turns_left: self.turns,
        }
    }

    /// Whether requests are chats: token ids have no turns.
    fn is_chat(&self) -> bool {
        self.chat || self.turns > 1
    }
}

impl Session {
    /// Path and body of the next request, if there is one.
    pub fn next(&mut self, workload: &Workload) -> Option<(&'static str, Value)> {
        self.turns_left = self.turns_left.checked_sub(1)?;
        let tokens = workload.prompt.draw(&mut self.random);
        let mut body = json!({
            "model": workload.model,
            "max_tokens": workload.output.draw(&mut self.random),
            "temperature": 0.0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if workload.ignore_end {
            body["ignore_eos"] = json!(true);
        }
        if workload.is_chat() {
            let text = words(&mut self.random, tokens);
            self.messages.push(json!({"role": "user", "content": text}));
            body["messages"] = json!(self.messages);
            return Some(("/v1/chat/completions", body));
        }
        let mut shared = Random::new(workload.seed);
        let prefix = (0..workload.shared_prefix).map(|_| token(&mut shared));
        let mut prompt: Vec<usize> = prefix.collect();
        prompt.extend((0..tokens).map(|_| token(&mut self.random)));
        body["prompt"] = json!(prompt);
        Some(("/v1/completions", body))
    }

    /// The answer becomes part of the conversation.
    pub fn answered(&mut self, text: &str) {
        self.messages
            .push(json!({"role": "assistant", "content": text}));
    }
}

fn token(random: &mut Random) -> usize {
    TOKENS.start + random.below(TOKENS.len())
}

fn words(random: &mut Random, count: usize) -> String {
    let words: Vec<&str> = (0..count)
        .map(|_| WORDS[random.below(WORDS.len())])
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: Workload = Workload {
        model: String::new(),
        prompt: Length { least: 5, most: 9 },
        output: Length { least: 3, most: 3 },
        shared_prefix: 4,
        turns: 1,
        chat: false,
        ignore_end: true,
        seed: 7,
    };

    #[test]
    fn prompts_share_their_beginning_and_nothing_else() {
        let prompt = |number| -> Vec<u64> {
            let (path, body) = WORKLOAD.session(number).next(&WORKLOAD).unwrap();
            assert_eq!((path, &body["max_tokens"]), ("/v1/completions", &json!(3)));
            serde_json::from_value(body["prompt"].clone()).unwrap()
        };
        let (one, other) = (prompt(0), prompt(1));
        assert_eq!(one, prompt(0));
        assert_eq!(one[..4], other[..4]);
        assert_ne!(one[4..], other[4..]);
        let lengths: std::collections::BTreeSet<usize> =
            (0..200).map(|number| prompt(number).len()).collect();
        assert!(lengths.into_iter().eq(9..=13));
    }

    #[test]
    fn a_conversation_repeats_what_was_said() {
        let workload = Workload {
            turns: 2,
            ..WORKLOAD
        };
        let mut session = workload.session(0);
        let (path, first) = session.next(&workload).unwrap();
        assert_eq!(path, "/v1/chat/completions");
        session.answered("so be it");
        let (_, second) = session.next(&workload).unwrap();
        let (first, second) = (&first["messages"], &second["messages"]);
        assert_eq!(first[1], second[1]);
        assert_eq!(
            second[2],
            json!({"role": "assistant", "content": "so be it"})
        );
        assert_eq!(second.as_array().unwrap().len(), 4);
        assert!(session.next(&workload).is_none());
    }

    #[test]
    fn lengths_are_a_number_or_a_range() {
        assert_eq!("7".parse(), Ok(Length { least: 7, most: 7 }));
        assert_eq!("7-9".parse(), Ok(Length { least: 7, most: 9 }));
        for text in ["0", "", "9-7", "a", "16777216", "1-18446744073709551615"] {
            assert!(text.parse::<Length>().is_err(), "{text}");
        }
        let error = "-5".parse::<Length>().unwrap_err();
        assert!(error.starts_with("`-5` is no length"), "{error}");
    }
}
