//! A text cut into chunks of one length, of which the second half is scored.

use std::ops::Range;

use anyhow::{Result, bail};

/// The shortest chunk of which something can be scored.
pub const FEWEST_TOKENS: usize = 4;

/// A text's tokens in chunks of `ctx`; what does not fill one is left out.
#[derive(Debug)]
pub struct Chunks {
    /// Tokens of a chunk.
    pub ctx: usize,
    /// `[count * ctx]`
    tokens: Vec<u32>,
    /// What stands first in every chunk as it is computed, in place of the token there.
    bos: Option<u32>,
}

impl Chunks {
    /// Cuts `tokens`, which begin with a BOS where the model asks for one, into chunks of at least
    /// [`FEWEST_TOKENS`].
    ///
    /// # Errors
    /// A text of less than two chunks.
    pub fn new(mut tokens: Vec<u32>, ctx: usize, bos: Option<u32>) -> Result<Chunks> {
        if tokens.len() / 2 < ctx {
            bail!(
                "the text has {} tokens, but chunks of {ctx} need at least {}; give more text or a smaller --ctx",
                tokens.len(),
                ctx.saturating_mul(2)
            );
        }
        tokens.truncate(tokens.len() / ctx * ctx);
        Ok(Chunks { ctx, tokens, bos })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.tokens.len() / self.ctx
    }

    /// All their tokens as they are in the text. `[count * ctx]`
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens of a chunk as they are computed.
    pub fn computed(&self, index: usize) -> Vec<u32> {
        let mut chunk = self.tokens[index * self.ctx..(index + 1) * self.ctx].to_vec();
        if let Some(bos) = self.bos {
            chunk[0] = bos;
        }
        chunk
    }

    /// Positions of a chunk whose logits are scored: its second half but for the last token, which
    /// nothing follows.
    pub fn scored(&self) -> Range<usize> {
        self.ctx / 2..self.ctx - 1
    }

    /// The tokens that a chunk's scored logits ought to predict.
    pub fn expected(&self, index: usize) -> &[u32] {
        let Range { start, end } = self.scored();
        &self.tokens[index * self.ctx..][start + 1..end + 1]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn the_second_half_of_each_whole_chunk_is_scored() {
        let chunks = Chunks::new((100..125).collect(), 8, Some(1)).unwrap();
        assert_eq!((chunks.count(), chunks.scored()), (3, 4..7));
        assert_eq!(chunks.computed(1), [1, 109, 110, 111, 112, 113, 114, 115]);
        assert_eq!(chunks.expected(1), [113, 114, 115]);
        assert_eq!(chunks.tokens(), (100..124).collect::<Vec<u32>>());
        let plain = Chunks::new((0..16).collect(), 8, None).unwrap();
        assert_eq!(plain.computed(1)[0], 8);
    }

    #[test]
    fn too_little_text_says_how_much_is_needed() {
        let error = Chunks::new(vec![0; 15], 8, None).unwrap_err().to_string();
        assert!(
            error.contains("15 tokens") && error.contains("at least 16"),
            "{error}"
        );
        assert!(Chunks::new(vec![0; 15], usize::MAX, None).is_err());
    }
}
