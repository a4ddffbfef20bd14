//! Log-probabilities of every scored position, in the file format of llama.cpp's
//! `--kl-divergence-base`, which either program can read to compare itself with the other.
//!
//! `_logits_`, then as `u32` little-endian the tokens of a chunk, the vocabulary, the chunks, and
//! all tokens of the text; then a row for each scored position: a step and a start as `f32`, and
//! for each token how many steps its log-probability is above that start, as `u16`. What is more
//! than 16 nats below the best is taken for that. A row is filled up to an even number of tokens.

use std::io::{self, Write};

use super::chunks::Chunks;

/// Nats below the best logit that are told apart.
const RANGE: f32 = 16.0;
/// Steps that they are cut into.
const STEPS: f32 = 65_535.0;

/// Writes what stands before the rows.
pub fn write_header(out: &mut impl Write, chunks: &Chunks, vocabulary: usize) -> io::Result<()> {
    out.write_all(b"_logits_")?;
    for size in [chunks.ctx, vocabulary, chunks.count()] {
        out.write_all(&(size as u32).to_le_bytes())?;
    }
    for token in chunks.tokens() {
        out.write_all(&token.to_le_bytes())?;
    }
    Ok(())
}

/// Writes the row of one position. `logits` is `[vocabulary]`.
pub fn write_row(out: &mut impl Write, logits: &[f32]) -> io::Result<()> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let lowest = logits.iter().copied().fold(f32::INFINITY, f32::min);
    let lowest = lowest.max(highest - RANGE);
    let sum: f64 = logits
        .iter()
        .map(|logit| f64::from(logit - highest).exp())
        .sum();
    let step = (highest - lowest) / STEPS;
    let start = lowest - highest - sum.ln() as f32;
    out.write_all(&step.to_le_bytes())?;
    out.write_all(&start.to_le_bytes())?;
    let steps = |logit: f32| match step > 0.0 && logit > lowest {
        true => ((logit - lowest) / step).round() as u16,
        false => 0,
    };
    for logit in logits {
        out.write_all(&steps(*logit).to_le_bytes())?;
    }
    if !logits.len().is_multiple_of(2) {
        out.write_all(&[0; 2])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    /// Log-probabilities of a row as a reader works them out.
    fn read(row: &[u8], vocabulary: usize) -> Vec<f32> {
        let float = |at: usize| f32::from_le_bytes(row[at..at + 4].try_into().unwrap());
        let (step, start) = (float(0), float(4));
        let steps = row[8..].chunks_exact(2).take(vocabulary);
        let value = |pair: &[u8]| f32::from(u16::from_le_bytes(pair.try_into().unwrap()));
        steps.map(|pair| start + step * value(pair)).collect()
    }

    #[test]
    fn a_row_holds_log_probabilities_to_a_step() {
        let logits = [1.0, -2.5, 4.0, 3.75, 0.0_f32];
        let mut row = Vec::new();
        write_row(&mut row, &logits).unwrap();
        assert_eq!(row.len(), 2 * (4 + 6));
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        for (found, logit) in read(&row, 5).iter().zip(logits) {
            assert!((found - (logit - sum.ln())).abs() < 1e-4, "{found}");
        }
    }

    #[test]
    fn what_is_far_below_the_best_is_cut_off() {
        let mut row = Vec::new();
        write_row(&mut row, &[0.0, -100.0]).unwrap();
        let read = read(&row, 2);
        assert!(
            (read[0] - 0.0).abs() < 1e-3 && (read[1] + RANGE).abs() < 1e-3,
            "{read:?}"
        );
        let mut flat = Vec::new();
        write_row(&mut flat, &[2.0, 2.0]).unwrap();
        assert_eq!(super::tests::read(&flat, 2), [-(2.0_f32.ln()); 2]);
    }

    #[test]
    fn the_header_has_sizes_and_tokens() {
        let chunks = Chunks::new((0..8).collect(), 4, None).unwrap();
        let mut header = Vec::new();
        write_header(&mut header, &chunks, 300).unwrap();
        assert_eq!(&header[..8], b"_logits_");
        let words = header[8..].chunks_exact(4);
        let words: Vec<u32> = words
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [4, 300, 2, 0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
