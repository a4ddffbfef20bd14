//! What is counted, under the names that routers and dashboards of vLLM read, in the Prometheus
//! text format.
//!
//! Owns the names. Each answer's own clock is in `meter`, numbers in ranges are in `histogram`.

mod histogram;
mod meter;

use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use fornax::{Forward, Load, Model, StepStats};
use histogram::Histogram;
pub use meter::{Meter, Outcome};

/// Everything that is counted.
pub struct Metrics {
    model_name: String,
    /// KV pages, and tokens of each.
    pages: (usize, usize),
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    prefix_queries: AtomicU64,
    prefix_hits: AtomicU64,
    preemptions: AtomicU64,
    evicted_pages: AtomicU64,
    steps: AtomicU64,
    /// By [`Outcome`].
    outcomes: [AtomicU64; Outcome::ALL.len()],
    queue: Histogram,
    first_token: Histogram,
    inter_token: Histogram,
    whole: Histogram,
    /// By [`phase`].
    step: [Histogram; PHASES.len()],
    step_rows: Histogram,
    step_tokens: Histogram,
}

/// What a step was for.
const PHASES: [&str; 3] = ["prefill", "decode", "mixed"];

/// Index in [`PHASES`]: prompts only, answers only, or both.
fn phase(step: &StepStats) -> usize {
    match (step.going_on, step.rows) {
        (0, _) => 0,
        (going_on, rows) if going_on == rows => 1,
        _ => 2,
    }
}

impl Metrics {
    /// Nothing counted yet.
    pub fn new(model_name: &str, model: &Model) -> Self {
        Self {
            model_name: label(model_name),
            pages: model.kv_pages(),
            prompt_tokens: AtomicU64::new(0),
            generation_tokens: AtomicU64::new(0),
            prefix_queries: AtomicU64::new(0),
            prefix_hits: AtomicU64::new(0),
            preemptions: AtomicU64::new(0),
            evicted_pages: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            outcomes: Default::default(),
            queue: Histogram::seconds(),
            first_token: Histogram::seconds(),
            inter_token: Histogram::seconds(),
            whole: Histogram::seconds(),
            step: PHASES.map(|_| Histogram::seconds()),
            step_rows: Histogram::counts(),
            step_tokens: Histogram::counts(),
        }
    }

    /// Counts steps of the engine.
    pub fn observe(&self, forwards: &[Forward]) {
        for Forward { step, duration } in forwards {
            self.step[phase(step)].observe(*duration);
            self.step_rows.observe_count(step.rows);
            self.step_tokens.observe_count(step.tokens);
            add(&self.steps, 1);
            add(&self.prefix_queries, step.prefix_queries);
            add(&self.prefix_hits, step.prefix_hits);
            add(&self.preemptions, step.preempted);
            add(&self.evicted_pages, step.evicted_pages);
        }
    }

    /// The text that Prometheus reads.
    pub fn text(&self, load: Load) -> String {
        let mut text = String::new();
        self.gauges(&mut text, load);
        self.counters(&mut text);
        self.outcomes(&mut text);
        self.histograms(&mut text);
        text
    }

    fn gauges(&self, text: &mut String, load: Load) {
        let (pages, page_size) = self.pages;
        let used = load.live_pages as f64 / pages as f64;
        self.gauge(
            text,
            "vllm:num_requests_running",
            "Requests that take part in steps.",
            load.running,
        );
        self.gauge(
            text,
            "vllm:num_requests_waiting",
            "Requests that wait for their turn.",
            load.waiting,
        );
        self.gauge(
            text,
            "vllm:kv_cache_usage_perc",
            "KV pages that requests hold; 1 is all of them.",
            used,
        );
        self.gauge(
            text,
            "fornax:kv_cached_pages",
            "KV pages kept for prompts to come, to be had at any time.",
            load.cached_pages,
        );
        if let Some(bytes) = resident_bytes() {
            let name = "process_resident_memory_bytes";
            describe(text, name, "gauge", "Memory of the process.");
            let _ = writeln!(text, "{name} {bytes}");
        }
        let name = "vllm:cache_config_info";
        describe(text, name, "gauge", "Sizes of the KV cache.");
        let _ = writeln!(
            text,
            "{name}{{{},block_size=\"{page_size}\",num_gpu_blocks=\"{pages}\"}} 1",
            self.labels()
        );
    }

    fn counters(&self, text: &mut String) {
        for (name, help, counter) in [
            (
                "vllm:prompt_tokens_total",
                "Tokens of prompts.",
                &self.prompt_tokens,
            ),
            (
                "vllm:generation_tokens_total",
                "Tokens of answers.",
                &self.generation_tokens,
            ),
            (
                "vllm:prefix_cache_queries_total",
                "Tokens of prompts that were looked up.",
                &self.prefix_queries,
            ),
            (
                "vllm:prefix_cache_hits_total",
                "Those of them that were known.",
                &self.prefix_hits,
            ),
            (
                "vllm:num_preemptions_total",
                "Requests that gave up their pages.",
                &self.preemptions,
            ),
            (
                "fornax:evicted_pages_total",
                "KV pages that the prefix cache gave up.",
                &self.evicted_pages,
            ),
            ("fornax:steps_total", "Steps of the engine.", &self.steps),
        ] {
            describe(text, name, "counter", help);
            let _ = writeln!(text, "{name}{{{}}} {}", self.labels(), read(counter));
        }
    }

    fn outcomes(&self, text: &mut String) {
        for (success, name, help) in [
            (true, "vllm:request_success_total", "Answers by their end."),
            (
                false,
                "fornax:request_failure_total",
                "Answers that broke off.",
            ),
        ] {
            describe(text, name, "counter", help);
            let reasons = Outcome::ALL.iter().zip(&self.outcomes);
            for (outcome, count) in reasons.filter(|(outcome, _)| outcome.is_success() == success) {
                let (labels, reason, count) = (self.labels(), outcome.word(), read(count));
                let _ = writeln!(
                    text,
                    "{name}{{{labels},finished_reason=\"{reason}\"}} {count}"
                );
            }
        }
    }

    fn histograms(&self, text: &mut String) {
        for (name, help, histogram) in [
            (
                "vllm:request_queue_time_seconds",
                "From an answer's submission to its first step.",
                &self.queue,
            ),
            (
                "vllm:time_to_first_token_seconds",
                "From an answer's submission to its first token.",
                &self.first_token,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "From a token to the next of its answer.",
                &self.inter_token,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "From an answer's submission to its end.",
                &self.whole,
            ),
            ("fornax:step_rows", "Sequences in a step.", &self.step_rows),
            (
                "fornax:step_tokens",
                "New tokens in a step.",
                &self.step_tokens,
            ),
        ] {
            describe(text, name, "histogram", help);
            histogram.write(text, name, &self.labels());
        }
        let name = "fornax:step_seconds";
        describe(text, name, "histogram", "A step, by what it was for.");
        for (phase, histogram) in PHASES.iter().zip(&self.step) {
            histogram.write(text, name, &format!("{},phase=\"{phase}\"", self.labels()));
        }
    }

    fn gauge(&self, text: &mut String, name: &str, help: &str, value: impl Display) {
        describe(text, name, "gauge", help);
        let _ = writeln!(text, "{name}{{{}}} {value}", self.labels());
    }

    fn labels(&self) -> String {
        format!("model_name=\"{}\"", self.model_name)
    }
}

/// Writing to a string cannot fail.
fn describe(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Memory of this process, where the system is Linux: proc(5).
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = status.lines();
    let resident = lines.find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
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
