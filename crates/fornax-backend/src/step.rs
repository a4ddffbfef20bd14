//! What a backend is told about one step before its operations run, and the sampled answer.
//!
//! Everything that changes from step to step is in [`StepRows`]; operations themselves see only
//! the [`StepShape`], so that a recorded step can be replayed.

/// Most likely tokens that can be named beside a sampled one.
pub const MAX_TOP: usize = 20;

/// `u32` words of one row of the `samples` buffer; see [`Sample::decode`].
pub const SAMPLE_WORDS: usize = 2 + 2 * MAX_TOP;

/// The largest step a backend must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepCapacity {
    /// Rows of a step.
    pub rows: usize,
    /// New tokens of a step.
    pub tokens: usize,
    /// Page tables of a row, by KV group: tokens of a page and entries of the longest table.
    pub groups: Vec<(usize, usize)>,
}

/// The sizes by which a step's operations are recorded and replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// New tokens.
    pub tokens: usize,
    /// Sequences.
    pub rows: usize,
    /// Tokens whose hidden state goes on to the head.
    pub outputs: usize,
    /// How many of the outputs, the first ones, are sampled from.
    pub samples: usize,
    /// Rows that are pooled.
    pub pooled: usize,
    /// How many of the largest logits of each output are looked at; `None` where all are.
    pub largest: Option<usize>,
}

/// One step, on the host.
#[derive(Clone, Debug, Default)]
pub struct StepRows {
    /// Token ids, row after row; what stands at a [`from_step`](Self::from_step) place is not read. `[tokens]`
    pub tokens: Vec<u32>,
    /// `(index in tokens, index in the samples of the step before)`: ids that only the device knows.
    pub from_step: Vec<(usize, usize)>,
    /// `[rows]`
    pub rows: Vec<RowSpan>,
    /// Page tables: group, then row. Position `p` is in entry `p / page_size`; entries whose
    /// positions are all below every query's window are not read. `[groups][rows][pages of the row]`
    pub tables: Vec<Vec<Vec<u32>>>,
    /// Indices in `tokens` whose hidden state goes on to the head, sampled ones first. `[outputs]`
    pub outputs: Vec<usize>,
    /// `[samples]`
    pub samples: Vec<SampleRow>,
    /// `[pooled]`
    pub pooled: Vec<Pooled>,
}

impl StepRows {
    /// The sizes of the step.
    pub fn shape(&self) -> StepShape {
        StepShape {
            tokens: self.tokens.len(),
            rows: self.rows.len(),
            outputs: self.outputs.len(),
            samples: self.samples.len(),
            pooled: self.pooled.len(),
            largest: self.largest(),
        }
    }

    fn largest(&self) -> Option<usize> {
        let largest = self.samples.iter().map(|sample| sample.largest);
        match self.samples.len() == self.outputs.len() {
            true => largest.reduce(|a, b| Some(a?.max(b?)))?,
            false => None,
        }
    }

    /// Position of every new token in its sequence. `[tokens]`
    pub fn positions(&self) -> impl Iterator<Item = usize> {
        let of_row = |row: &RowSpan| row.cached..row.cached + row.len;
        self.rows.iter().flat_map(of_row)
    }

    /// Of every row what its outputs need of attention: its new tokens from the first output on, or none.
    /// `[rows]`
    pub fn attending(&self) -> impl Iterator<Item = RowSpan> {
        self.rows.iter().map(|row| {
            let end = row.start + row.len;
            let of_row = |output: &usize| (row.start..end).contains(output);
            let first = self.outputs.iter().copied().filter(of_row).min();
            let start = first.unwrap_or(end);
            RowSpan {
                start,
                len: end - start,
                cached: row.cached + start - row.start,
            }
        })
    }

    /// Panics unless the step fits `capacity`, its rows follow one another without a gap and
    /// their page tables are long enough; called by every backend's
    /// [`prepare`](crate::Backend::prepare), for an operation could not name the fault any more.
    pub fn check(&self, capacity: &StepCapacity) {
        let StepShape { tokens, rows, .. } = self.shape();
        assert!(tokens <= capacity.tokens, "step of {tokens} tokens");
        assert!(rows <= capacity.rows, "step of {rows} rows");
        let mut end = 0;
        for (index, row) in self.rows.iter().enumerate() {
            assert!(
                row.start == end && row.len > 0,
                "step: place of row {index}"
            );
            end += row.len;
        }
        assert_eq!(end, tokens, "step: tokens of all rows");
        assert_eq!(self.tables.len(), capacity.groups.len(), "step: KV groups");
        for (tables, &(page_size, pages)) in self.tables.iter().zip(&capacity.groups) {
            assert_eq!(tables.len(), rows, "step: page tables of a group");
            for (table, row) in tables.iter().zip(&self.rows) {
                let needed = (row.cached + row.len).div_ceil(page_size);
                let fits = needed <= table.len() && table.len() <= pages;
                assert!(
                    fits,
                    "step: {} pages, {needed} needed, {pages} fit",
                    table.len()
                );
            }
        }
        let inside = |index: &usize| *index < tokens;
        assert!(self.outputs.iter().all(inside), "step: outputs");
        assert!(
            self.from_step.iter().all(|(index, _)| inside(index)),
            "step: fed tokens"
        );
        assert!(self.samples.len() <= self.outputs.len(), "step: samples");
        assert!(
            self.pooled.iter().all(|pooled| pooled.row < rows),
            "step: pooled"
        );
    }
}

/// Where a row's new tokens lie and what precedes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// Index of its first new token in the step.
    pub start: usize,
    /// New tokens.
    pub len: usize,
    /// Tokens in the cache before them: the position of the first new one.
    pub cached: usize,
}

/// A draw from the logits of the output with the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRow {
    /// Whose parameters and counts apply.
    pub slot: usize,
    /// Position that the drawn token will have; with the seed it decides the draw.
    pub position: usize,
    /// Whether probabilities are wanted: that of the token drawn, and of so many of the most likely
    /// ones, up to [`MAX_TOP`].
    pub top: Option<usize>,
    /// How many of the largest logits decide the answer; `None` where all do.
    pub largest: Option<usize>,
}

/// A row whose hidden states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooled {
    /// Index in the step's rows.
    pub row: usize,
    /// How.
    pub pooling: Pooling,
}

/// How hidden states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The last one.
    Last,
}

/// Parameters of the sampling chain; the neutral value of each stage skips it. Stages run in the
/// order of the fields, the temperature last. Probabilities of a stage are those among the tokens
/// that the stages before it left, at temperature 1; tokens rank by descending logit, equal ones
/// by ascending id. [`HostSampler`](crate::HostSampler) defines the draw.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// Added to the logits of the named tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides positive and multiplies negative logits of tokens in prompt or answer (Keskar et
    /// al. 2019, arXiv:1909.05858); neutral 1.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of tokens in the answer; neutral 0.
    pub presence_penalty: f32,
    /// Subtracted from a logit for each time the answer has its token; neutral 0.
    pub frequency_penalty: f32,
    /// Most likely tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Keeps the tokens whose surprise is nearest the entropy, until their probability reaches it
    /// (Meister et al. 2022, arXiv:2202.00666); neutral 1.
    pub typical_p: f32,
    /// Keeps the fewest most likely tokens whose probability reaches it (Holtzman et al. 2020,
    /// arXiv:1904.09751); neutral 1.
    pub top_p: f32,
    /// Drops tokens less likely than this times the most likely one left; neutral 0.
    pub min_p: f32,
    /// Divides the logits of what is left; 0 takes the most likely token left.
    pub temperature: f32,
    /// Seed of the draws.
    pub seed: u64,
}

impl SampleParams {
    /// Always the most likely token.
    pub fn greedy() -> Self {
        Self {
            logit_bias: Vec::new(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 0.0,
            seed: 0,
        }
    }

    /// How many of the largest logits decide which token is drawn; `None` where all do.
    pub fn largest(&self) -> Option<usize> {
        if self.has_penalties() || !self.logit_bias.is_empty() {
            return None;
        }
        match self.temperature == 0.0 && self.typical_p >= 1.0 {
            true => Some(1),
            false => Some(self.top_k).filter(|&kept| kept > 0),
        }
    }

    /// Whether the draw depends on which tokens came before.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// The answer for one sampled row.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// A token was drawn.
    Token {
        /// The token.
        token: u32,
        /// Natural log of its probability under the unmodified logits, where it is wanted.
        logprob: Option<f32>,
        /// The most likely tokens with theirs, most likely first, ties by lower id.
        top: Vec<(u32, f32)>,
    },
    /// A logit is NaN or +∞, or all are −∞: there is nothing to draw from.
    NotFinite,
}

impl Sample {
    /// Writes the answer into a row of the `samples` buffer: the token (`u32::MAX` for
    /// [`NotFinite`](Self::NotFinite)), the bits of its log-probability where it is wanted, then pairs of
    /// both for the most likely tokens.
    pub fn encode(&self, words: &mut [u32]) {
        words[..SAMPLE_WORDS].fill(u32::MAX);
        if let Sample::Token {
            token,
            logprob,
            top,
        } = self
        {
            words[0] = *token;
            words[1] = logprob.map_or(u32::MAX, f32::to_bits);
            for (pair, (token, logprob)) in words[2..].chunks_exact_mut(2).zip(top) {
                pair.copy_from_slice(&[*token, logprob.to_bits()]);
            }
        }
    }

    /// Reads back what [`encode`](Self::encode) or a device wrote for a row that wants so much.
    pub fn decode(words: &[u32], wanted: Option<usize>) -> Sample {
        if words[0] == u32::MAX {
            return Sample::NotFinite;
        }
        let pair = |pair: &[u32]| (pair[0], f32::from_bits(pair[1]));
        let (token, logprob) = pair(words);
        let named = words[2..SAMPLE_WORDS]
            .chunks_exact(2)
            .take(wanted.unwrap_or(0));
        let top = named
            .filter(|named| named[0] != u32::MAX)
            .map(pair)
            .collect();
        Sample::Token {
            token,
            logprob: wanted.map(|_| logprob),
            top,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_attend_from_their_first_output_on() {
        let span = |start, len, cached| RowSpan { start, len, cached };
        let mut step = StepRows {
            rows: vec![span(0, 5, 0), span(5, 1, 40), span(6, 4, 3)],
            ..StepRows::default()
        };
        let attending = |step: &StepRows| step.attending().collect::<Vec<_>>();
        let nobody = [span(5, 0, 5), span(6, 0, 41), span(10, 0, 7)];
        assert_eq!(attending(&step), nobody);
        step.outputs = vec![9, 4, 5];
        assert_eq!(
            attending(&step),
            [span(4, 1, 4), span(5, 1, 40), span(9, 1, 6)]
        );
        step.outputs = vec![8, 7, 8, 0];
        assert_eq!(attending(&step), [span(0, 5, 0), nobody[1], span(7, 3, 4)]);
    }
}
