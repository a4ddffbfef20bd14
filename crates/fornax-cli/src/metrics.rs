//! How fast an answer came: rates, and each forward by its position.

use std::fmt::Write;
use std::time::Duration;

use fornax::{Forward, StopReason, Usage};
use serde_json::{Value, json};

/// Most rows of the table of forwards.
const TABLE_ROWS: usize = 16;

/// The measurements of one answer.
pub struct Metrics {
    /// From the request to its first token.
    pub first_token: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Tokens of prompt and answer.
    pub usage: Usage,
    /// Each step of the model, oldest first.
    pub forwards: Vec<Forward>,
}

impl Metrics {
    /// Prompt tokens a second until the first token.
    fn prefill_rate(&self) -> f64 {
        rate(
            (self.usage.prompt - self.usage.cached) as f64,
            self.first_token,
        )
    }

    /// Answer tokens a second after the first.
    fn decode_rate(&self) -> f64 {
        rate(self.usage.generated.saturating_sub(1) as f64, self.decode)
    }

    /// For a program.
    pub fn json(&self) -> Value {
        let forward = |forward: &Forward| {
            json!({
                "tokens": forward.step.tokens,
                "ms": milliseconds(forward.duration),
            })
        };
        json!({
            "time_to_first_token_ms": milliseconds(self.first_token),
            "prefill_tokens_per_second": self.prefill_rate(),
            "decode_tokens_per_second": self.decode_rate(),
            "forwards": self.forwards.iter().map(forward).collect::<Vec<_>>(),
        })
    }

    /// For a person, several lines.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let Usage {
            prompt, generated, ..
        } = self.usage;
        let decode = self.decode_rate();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "first token  {:.1} ms",
            milliseconds(self.first_token)
        );
        let _ = writeln!(
            text,
            "prefill      {:.1} tokens/s ({})",
            self.prefill_rate(),
            counted(prompt)
        );
        let _ = writeln!(
            text,
            "decode       {decode:.1} tokens/s ({}, from the second on)",
            counted(generated)
        );
        self.forward_table(&mut text);
        text
    }

    /// Forwards in order, those alike in tokens joined into at most [`TABLE_ROWS`] rows, so that
    /// growth with the position shows.
    fn forward_table(&self, text: &mut String) {
        let mut sorted: Vec<f64> = self
            .forwards
            .iter()
            .map(|f| milliseconds(f.duration))
            .collect();
        sorted.sort_by(f64::total_cmp);
        let (Some(&fastest), Some(&slowest)) = (sorted.first(), sorted.last()) else {
            return;
        };
        let quantile = |part: f64| sorted[((sorted.len() - 1) as f64 * part).round() as usize];
        let _ = writeln!(
            text,
            "forwards     {}, each {fastest:.2} to {slowest:.2} ms (p50 {:.2}, p90 {:.2}, p99 {:.2})",
            sorted.len(),
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
        );
        let size = self.forwards.len().div_ceil(TABLE_ROWS).max(1);
        for (index, chunk) in self.forwards.chunks(size).enumerate() {
            let first = index * size + 1;
            let total: Duration = chunk.iter().map(|forward| forward.duration).sum();
            let tokens: usize = chunk.iter().map(|forward| forward.step.tokens).sum();
            let mean = milliseconds(total) / chunk.len() as f64;
            let last = first + chunk.len() - 1;
            let _ = writeln!(
                text,
                "  {first:>5}–{last:<5} {mean:>9.2} ms each, {tokens} tokens in all"
            );
        }
    }
}

/// Why an answer ended, in a program's word.
pub fn reason_word(reason: &StopReason) -> &'static str {
    match reason {
        StopReason::EndOfTurn | StopReason::StopString(_) => "stop",
        StopReason::MaxTokens | StopReason::ContextFull => "length",
        StopReason::Cancelled => "cancelled",
    }
}

fn rate(tokens: f64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => tokens / time.as_secs_f64(),
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
fn counted(tokens: usize) -> String {
    let s = if tokens == 1 { "" } else { "s" };
    format!("{tokens} token{s}")
}
