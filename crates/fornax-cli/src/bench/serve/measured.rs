//! What the answers' times say: percentiles, rates, goodput.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Answer;
use super::load::Answers;
use crate::bench::statistics::Percentiles;

/// What an answer must keep to count as good, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// To the first token.
    pub first_token: Option<f64>,
    /// Between tokens, on average over the answer.
    pub inter_token: Option<f64>,
    /// To the end.
    pub total: Option<f64>,
}

impl Limits {
    fn are_kept(&self, answer: &Answer) -> bool {
        let within = |limit: Option<f64>, value: f64| limit.is_none_or(|limit| value <= limit);
        let gaps: Duration = answer.gaps.iter().sum();
        let tokens = answer.output_tokens.unwrap_or(answer.gaps.len() as u64 + 1);
        let each = ms(&gaps) / (tokens.saturating_sub(1).max(1)) as f64;
        // Without a piece of an answer nobody knows when it came: not good.
        let first = answer.first.as_ref().map_or(f64::INFINITY, ms);
        within(self.first_token, first)
            && within(self.inter_token, each)
            && within(self.total, ms(&answer.total))
    }

    fn any(&self) -> bool {
        *self != Self::default()
    }
}

fn ms(duration: &Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Sums up a load, for a program; a table is made of the same.
pub fn machine_form(measured: &Answers, limits: &Limits) -> Value {
    let answers = &measured.answers;
    let seconds = measured.total.as_secs_f64();
    // What a server says may be anything.
    let sum = |of: fn(&Answer) -> Option<u64>| {
        answers
            .iter()
            .filter_map(of)
            .fold(0_u64, u64::saturating_add)
    };
    let output = sum(output_tokens);
    let good = answers
        .iter()
        .filter(|answer| limits.are_kept(answer))
        .count();
    let mut failures: BTreeMap<&str, usize> = BTreeMap::new();
    for failure in &measured.failures {
        *failures.entry(failure).or_default() += 1;
    }
    json!({
        "requests": answers.len() + measured.failures.len(),
        "completed": answers.len(),
        "failed": measured.failures.len(),
        "failures": failures,
        "seconds": seconds,
        "prompt_tokens": sum(|answer| answer.prompt_tokens),
        "cached_tokens": sum(|answer| answer.cached_tokens),
        "output_tokens": output,
        "requests_per_second": answers.len() as f64 / seconds,
        "output_ts": output as f64 / seconds,
        "without_text": answers.iter().filter(|answer| answer.first.is_none()).count(),
        "first_token_ms": Percentiles::of(answers.iter().filter_map(|answer| answer.first.as_ref()).map(ms)),
        "inter_token_ms": Percentiles::of(answers.iter().flat_map(|answer| &answer.gaps).map(ms)),
        "total_ms": Percentiles::of(answers.iter().map(|answer| ms(&answer.total))),
        "good": limits.any().then_some(good),
        "goodput_requests_per_second": limits.any().then(|| good as f64 / seconds),
    })
}

/// Tokens of an answer; of a server that does not count them, its chunks.
fn output_tokens(answer: &Answer) -> Option<u64> {
    let chunks = match answer.first {
        None => 0,
        Some(_) => answer.gaps.len() as u64 + 1,
    };
    Some(answer.output_tokens.unwrap_or(chunks))
}

/// For a person.
pub fn text(told: &Value) -> String {
    let number = |name: &str| told[name].as_f64().unwrap_or(0.0);
    let row = |title: &str, name: &str| {
        let of = |part: &str| told[name][part].as_f64().unwrap_or(0.0);
        let (p50, p90, p99) = (of("p50"), of("p90"), of("p99"));
        format!("{title:<16} {p50:>10.2} {p90:>10.2} {p99:>10.2}\n")
    };
    let mut text = format!(
        "requests         {} completed, {} failed, in {:.2} s ({:.2} a second)\n\
         prompt tokens    {} ({} of them cached)\n\
         output tokens    {} ({:.2} a second)\n",
        told["completed"],
        told["failed"],
        number("seconds"),
        number("requests_per_second"),
        told["prompt_tokens"],
        told["cached_tokens"],
        told["output_tokens"],
        number("output_ts"),
    );
    if let Some(good) = told["good"].as_u64() {
        let rate = number("goodput_requests_per_second");
        text += &format!("within limits    {good} ({rate:.2} a second)\n");
    }
    text += &format!("\n{:<16} {:>10} {:>10} {:>10}\n", "ms", "p50", "p90", "p99");
    text += &row("first token", "first_token_ms");
    text += &row("between chunks", "inter_token_ms");
    text += &row("end to end", "total_ms");
    if told["without_text"] != 0 {
        text += &format!(
            "\n{} answers had no text and no time to a first token\n",
            told["without_text"]
        );
    }
    for (failure, count) in told["failures"].as_object().into_iter().flatten() {
        text += &format!("\n{count} × {failure}");
    }
    if told["failed"] != 0 {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(first: u64, gaps: &[u64], tokens: Option<u64>) -> Answer {
        let milliseconds = Duration::from_millis;
        Answer {
            text: "text".to_owned(),
            first: Some(milliseconds(first)),
            gaps: gaps.iter().copied().map(milliseconds).collect(),
            total: milliseconds(first + gaps.iter().sum::<u64>()),
            prompt_tokens: Some(10),
            output_tokens: tokens,
            cached_tokens: None,
        }
    }

    fn measured() -> Answers {
        Answers {
            answers: vec![
                answer(100, &[10, 20], Some(3)),
                answer(300, &[30, 30], None),
                answer(50, &[400], Some(5)),
            ],
            failures: vec!["busy".to_owned(), "busy".to_owned()],
            total: Duration::from_secs(2),
        }
    }

    #[test]
    fn goodput_counts_what_keeps_every_limit() {
        let good = |first_token, inter_token, total| {
            let limits = Limits {
                first_token,
                inter_token,
                total,
            };
            machine_form(&measured(), &limits)["good"].as_u64()
        };
        assert_eq!(good(None, None, None), None);
        assert_eq!(good(Some(100.0), None, None), Some(2));
        // 400 ms over the four tokens behind the first.
        assert_eq!(good(None, Some(100.0), None), Some(3));
        assert_eq!(good(Some(200.0), Some(99.0), None), Some(1));
        assert_eq!(good(None, None, Some(130.0)), Some(1));
    }

    #[test]
    fn the_table_has_rates_percentiles_and_failures() {
        let limits = Limits {
            first_token: Some(100.0),
            ..Limits::default()
        };
        let told = machine_form(&measured(), &limits);
        assert_eq!(
            text(&told),
            "requests         3 completed, 2 failed, in 2.00 s (1.50 a second)\n\
             prompt tokens    30 (0 of them cached)\n\
             output tokens    11 (5.50 a second)\n\
             within limits    2 (1.00 a second)\n\
             \n\
             ms                      p50        p90        p99\n\
             first token          100.00     300.00     300.00\n\
             between chunks        30.00     400.00     400.00\n\
             end to end           360.00     450.00     450.00\n\
             \n\
             2 × busy\n"
        );
    }
}
