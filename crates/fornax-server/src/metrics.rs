//! What is counted, under the names that routers and dashboards of vLLM read, in the Prometheus
//! text format.
//!
//! Owns the names. Each answer's own clock is in `meter`, numbers in ranges are in `histogram`.

mod histogram;
mod meter;

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use fornax::{Forward, Model};
use histogram::Histogram;
pub use meter::{Meter, Outcome};

/// Everything that is counted.
pub struct Metrics {
    model_name: String,
    /// Answers that the engine runs at once.
    sequences: usize,
    /// KV pages, and tokens of each.
    pages: (usize, usize),
    /// Answers that have begun and not ended.
    live: AtomicU64,
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    prefix_queries: AtomicU64,
    prefix_hits: AtomicU64,
    preemptions: AtomicU64,
    steps: AtomicU64,
    step_rows: AtomicU64,
    step_tokens: AtomicU64,
    /// By [`Outcome`].
    outcomes: [AtomicU64; Outcome::ALL.len()],
    first_token: Histogram,
    inter_token: Histogram,
    whole: Histogram,
    step: Histogram,
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new(model_name: &str, model: &Model) -> Self {
        Self {
            model_name: label(model_name),
            sequences: model.sequences(),
            pages: model.kv_pages(),
            live: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            generation_tokens: AtomicU64::new(0),
            prefix_queries: AtomicU64::new(0),
            prefix_hits: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            step_rows: AtomicU64::new(0),
            step_tokens: AtomicU64::new(0),
            outcomes: Default::default(),
            first_token: Histogram::seconds(),
            inter_token: Histogram::seconds(),
            whole: Histogram::seconds(),
            step: Histogram::seconds(),
        }
    }

    /// Counts steps of the engine.
    pub fn observe(&self, forwards: &[Forward]) {
        for forward in forwards {
            self.step.observe(forward.duration);
            add(&self.steps, 1);
            add(&self.step_rows, forward.step.rows);
            add(&self.step_tokens, forward.step.tokens);
            add(&self.preemptions, forward.step.preempted);
        }
    }

    /// Answers that have begun and not ended.
    pub fn live(&self) -> usize {
        read(&self.live) as usize
    }

    /// The text that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let live = self.live();
        // The engine takes answers in the order in which they came, as many as it has rows for.
        let running = live.min(self.sequences);
        self.line(
            &mut text,
            "gauge",
            "vllm:num_requests_running",
            running as u64,
        );
        self.line(
            &mut text,
            "gauge",
            "vllm:num_requests_waiting",
            (live - running) as u64,
        );
        for (name, counter) in [
            ("vllm:prompt_tokens_total", &self.prompt_tokens),
            ("vllm:generation_tokens_total", &self.generation_tokens),
            ("vllm:prefix_cache_queries_total", &self.prefix_queries),
            ("vllm:prefix_cache_hits_total", &self.prefix_hits),
            ("vllm:num_preemptions_total", &self.preemptions),
            ("fornax:steps_total", &self.steps),
            ("fornax:step_rows_total", &self.step_rows),
            ("fornax:step_tokens_total", &self.step_tokens),
        ] {
            self.line(&mut text, "counter", name, read(counter));
        }
        self.outcomes(&mut text);
        self.cache(&mut text);
        for (name, histogram) in [
            ("vllm:time_to_first_token_seconds", &self.first_token),
            ("vllm:inter_token_latency_seconds", &self.inter_token),
            ("vllm:e2e_request_latency_seconds", &self.whole),
            ("fornax:step_seconds", &self.step),
        ] {
            histogram.write(&mut text, name, &self.model_name);
        }
        text
    }

    fn line(&self, text: &mut String, kind: &str, name: &str, value: u64) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# TYPE {name} {kind}");
        let _ = writeln!(text, "{name}{{model_name=\"{}\"}} {value}", self.model_name);
    }

    fn outcomes(&self, text: &mut String) {
        for (success, name) in [
            (true, "vllm:request_success_total"),
            (false, "fornax:request_failure_total"),
        ] {
            let _ = writeln!(text, "# TYPE {name} counter");
            let reasons = Outcome::ALL.iter().zip(&self.outcomes);
            for (outcome, count) in reasons.filter(|(outcome, _)| outcome.is_success() == success) {
                let (reason, model) = (outcome.word(), &self.model_name);
                let count = read(count);
                let _ = writeln!(
                    text,
                    "{name}{{model_name=\"{model}\",finished_reason=\"{reason}\"}} {count}"
                );
            }
        }
    }

    fn cache(&self, text: &mut String) {
        let ((pages, page_size), model) = (self.pages, &self.model_name);
        let _ = writeln!(text, "# TYPE vllm:cache_config_info gauge");
        let _ = writeln!(
            text,
            "vllm:cache_config_info{{model_name=\"{model}\",block_size=\"{page_size}\",num_gpu_blocks=\"{pages}\"}} 1"
        );
    }
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A text as a label's value.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
