//! Which tokens a sequence has, and how often its answer has them: what penalties read.

/// The distinct tokens of one sequence, by ascending id. Sparse: a sequence has far fewer tokens
/// than the vocabulary.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenTokens {
    /// `[distinct tokens]`
    entries: Vec<Seen>,
}

/// One token of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub token: u32,
    /// How often the answer has it; 0 when only the prompt does.
    pub answered: u32,
}

impl SeenTokens {
    /// Starts anew from `tokens`, of which the first `prompt` are prompt.
    pub fn reset(&mut self, tokens: &[u32], prompt: usize) {
        self.entries.clear();
        let seen = tokens.iter().enumerate().map(|(index, &token)| Seen {
            token,
            answered: u32::from(index >= prompt),
        });
        self.entries.extend(seen);
        self.entries.sort_unstable_by_key(|seen| seen.token);
        self.entries.dedup_by(|later, first| {
            let same = later.token == first.token;
            if same {
                first.answered += later.answered;
            }
            same
        });
    }

    /// Counts a token of the answer.
    pub fn count(&mut self, token: u32) {
        match self.entries.binary_search_by_key(&token, |seen| seen.token) {
            Ok(index) => self.entries[index].answered += 1,
            Err(index) => self.entries.insert(index, Seen { token, answered: 1 }),
        }
    }

    /// By ascending id.
    pub fn iter(&self) -> impl Iterator<Item = Seen> {
        self.entries.iter().copied()
    }
}
