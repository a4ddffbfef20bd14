//! What is said of a measurement: `llama-bench`'s table and fields, and what goes beyond them.

use std::fmt::Write;

use clap::ValueEnum;
use fornax::Ceilings;
use serde::Serialize;
use serde_json::Value;

use super::driver::{Run, Test};
use super::statistics::{Percentiles, deviation, mean};

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables for people
    Md,
    /// Comma-separated values, a line a test
    Csv,
    /// One array of objects
    Json,
    /// One object a line
    Jsonl,
}

/// A test and what was measured. Names and units of the fields are those of `llama-bench`, where
/// it has them.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    pub build_version: &'static str,
    pub backend: String,
    pub model_filename: String,
    pub model_type: String,
    pub model_size: u64,
    pub model_n_params: u64,
    pub n_batch: usize,
    pub n_ubatch: usize,
    pub n_threads: usize,
    pub type_k: String,
    pub type_v: String,
    pub kv: String,
    pub weights: String,
    pub n_prompt: usize,
    pub n_gen: usize,
    pub n_depth: usize,
    pub n_parallel: usize,
    pub test: String,
    pub avg_ns: u64,
    pub stddev_ns: u64,
    /// Tokens a second.
    pub avg_ts: f64,
    pub stddev_ts: f64,
    /// Median over the runs.
    pub first_token_ms: f64,
    pub forward_ms: Percentiles,
    pub forwards: usize,
    /// Read from memory at least.
    pub gb_s: f64,
    /// Multiply-adds of the model.
    pub gmac_s: f64,
    /// What this machine can read, where it was measured.
    pub read_ceiling_gb_s: Option<f64>,
    /// What this machine can multiply, where it was measured.
    pub mac_ceiling_gmac_s: Option<f64>,
    pub samples_ns: Vec<u64>,
    pub samples_ts: Vec<f64>,
}

/// All of a record that does not come from its runs.
pub struct Setting {
    pub backend: String,
    pub model_filename: String,
    pub model_type: String,
    pub model_size: u64,
    pub model_n_params: u64,
    pub n_batch: usize,
    pub n_ubatch: usize,
    pub n_threads: usize,
    pub kv_type: String,
    pub kv: String,
    pub weights: String,
    /// What this machine can do at most, where it was measured.
    pub ceilings: Option<Ceilings>,
}

impl Record {
    /// Sums up the runs of a test.
    pub fn new(setting: Setting, test: &Test, runs: &[Run]) -> Self {
        let seconds: Vec<f64> = runs.iter().map(|run| run.total.as_secs_f64()).collect();
        let nanoseconds: Vec<f64> = seconds.iter().map(|seconds| seconds * 1e9).collect();
        let rates: Vec<f64> = seconds
            .iter()
            .map(|seconds| test.tokens() as f64 / seconds)
            .collect();
        let milliseconds = |duration: &std::time::Duration| duration.as_secs_f64() * 1e3;
        let forwards = runs.iter().flat_map(|run| &run.forwards);
        let total: f64 = seconds.iter().sum();
        let bytes: f64 = runs.iter().map(|run| run.cost.bytes).sum();
        let macs: f64 = runs.iter().map(|run| run.cost.macs).sum();
        Self {
            build_version: env!("CARGO_PKG_VERSION"),
            backend: setting.backend,
            model_filename: setting.model_filename,
            model_type: setting.model_type,
            model_size: setting.model_size,
            model_n_params: setting.model_n_params,
            n_batch: setting.n_batch,
            n_ubatch: setting.n_ubatch,
            n_threads: setting.n_threads,
            type_k: setting.kv_type.clone(),
            type_v: setting.kv_type,
            kv: setting.kv,
            weights: setting.weights,
            n_prompt: test.prompt,
            n_gen: test.generate,
            n_depth: test.depth,
            n_parallel: test.parallel,
            test: test.to_string(),
            avg_ns: mean(&nanoseconds) as u64,
            stddev_ns: deviation(&nanoseconds) as u64,
            avg_ts: mean(&rates),
            stddev_ts: deviation(&rates),
            first_token_ms: Percentiles::of(runs.iter().map(|run| milliseconds(&run.first_token)))
                .p50,
            forward_ms: Percentiles::of(forwards.clone().map(milliseconds)),
            forwards: forwards.count(),
            gb_s: bytes / total / 1e9,
            gmac_s: macs / total / 1e9,
            read_ceiling_gb_s: setting.ceilings.map(|most| most.read / 1e9),
            mac_ceiling_gmac_s: setting.ceilings.map(|most| most.dot / 1e9),
            samples_ns: nanoseconds.iter().map(|&value| value as u64).collect(),
            samples_ts: rates,
        }
    }
}

/// A column of a table in Markdown.
struct Column {
    title: &'static str,
    /// Left-aligned with a positive width as in `llama-bench`, else right-aligned.
    left: bool,
    width: usize,
    value: fn(&Record, &Shown) -> String,
}

/// What is shown beside the fields of a record.
#[derive(Clone, Default)]
pub struct Shown {
    size: String,
    parameters: String,
}

impl Shown {
    /// Size and parameters as a table has them.
    pub fn new(size: String, parameters: String) -> Self {
        Self { size, parameters }
    }
}

const MODEL: Column = left("model", 30, |record, _| record.model_type.clone());
static TABLE: [Column; 7] = [
    MODEL,
    right("size", 10, |_, shown| shown.size.clone()),
    right("params", 10, |_, shown| shown.parameters.clone()),
    left("backend", 18, |record, _| record.backend.clone()),
    right("threads", 7, |record, _| record.n_threads.to_string()),
    right("test", 15, |record, _| record.test.clone()),
    right("t/s", 20, |record, _| {
        format!("{:.2} ± {:.2}", record.avg_ts, record.stddev_ts)
    }),
];

/// Settings that are shown before the test's name only where they are not the usual ones.
static UNUSUAL: [Column; 5] = [
    right("n_batch", 7, |record, _| record.n_batch.to_string()),
    right("n_ubatch", 8, |record, _| record.n_ubatch.to_string()),
    right("type_kv", 7, |record, _| record.type_k.clone()),
    right("kv", 5, |record, _| record.kv.clone()),
    right("weights", 7, |record, _| record.weights.clone()),
];

static BEYOND: [Column; 9] = [
    MODEL,
    right("test", 15, |record, _| record.test.clone()),
    right("first token ms", 14, |record, _| {
        format!("{:.2}", record.first_token_ms)
    }),
    right("forward ms p50", 14, |record, _| {
        format!("{:.3}", record.forward_ms.p50)
    }),
    right("p90", 9, |record, _| {
        format!("{:.3}", record.forward_ms.p90)
    }),
    right("p99", 9, |record, _| {
        format!("{:.3}", record.forward_ms.p99)
    }),
    right("GB/s", 14, |record, _| {
        of_ceiling(record.gb_s, record.read_ceiling_gb_s)
    }),
    right("GMAC/s", 15, |record, _| {
        of_ceiling(record.gmac_s, record.mac_ceiling_gmac_s)
    }),
    right("forwards", 8, |record, _| record.forwards.to_string()),
];

const fn left(title: &'static str, width: usize, value: fn(&Record, &Shown) -> String) -> Column {
    Column {
        title,
        left: true,
        width,
        value,
    }
}

const fn right(title: &'static str, width: usize, value: fn(&Record, &Shown) -> String) -> Column {
    Column {
        left: false,
        ..left(title, width, value)
    }
}

/// `48.30 (94 %)`
fn of_ceiling(value: f64, ceiling: Option<f64>) -> String {
    match ceiling {
        Some(ceiling) => format!("{value:.2} ({:.0} %)", 100.0 * value / ceiling),
        None => format!("{value:.2}"),
    }
}

/// Writes records one by one in one format; the text of a finished report is one document.
pub struct Report {
    format: Format,
    /// Columns of the first table.
    columns: Vec<&'static Column>,
    records: Vec<(Record, Shown)>,
}

impl Report {
    /// An empty report. `unusual` names the settings that get a column: `n_batch`, `n_ubatch`,
    /// `type_kv`, `kv`, `weights`.
    pub fn new(format: Format, unusual: &[&str]) -> Self {
        let (before, after) = TABLE.split_at(5);
        let shown = UNUSUAL
            .iter()
            .filter(|column| unusual.contains(&column.title));
        Self {
            format,
            columns: before.iter().chain(shown).chain(after).collect(),
            records: Vec::new(),
        }
    }

    /// What comes before the first record.
    pub fn head(&self) -> String {
        match self.format {
            Format::Md => table_head(&self.columns),
            Format::Json => "[\n".to_owned(),
            Format::Csv | Format::Jsonl => String::new(),
        }
    }

    /// What one more record adds.
    pub fn push(&mut self, record: Record, shown: Shown) -> String {
        let first = self.records.is_empty();
        let text = match self.format {
            Format::Md => table_row(&self.columns, &record, &shown),
            Format::Csv => csv(&record, first),
            Format::Json => {
                let object = serde_json::to_string_pretty(&record);
                let object = object.expect("invariant: a record is plain data");
                let object = object.replace('\n', "\n  ");
                format!("{}  {object}", if first { "" } else { ",\n" })
            }
            Format::Jsonl => {
                let object = serde_json::to_string(&record);
                object.expect("invariant: a record is plain data") + "\n"
            }
        };
        self.records.push((record, shown));
        text
    }

    /// What comes after the last record.
    pub fn tail(&self) -> String {
        match self.format {
            Format::Md if self.records.is_empty() => String::new(),
            Format::Md => self.beyond(),
            Format::Json => "\n]\n".to_owned(),
            Format::Csv | Format::Jsonl => String::new(),
        }
    }

    /// The second table: what `llama-bench` does not say.
    fn beyond(&self) -> String {
        let columns: Vec<&Column> = BEYOND.iter().collect();
        let mut text = format!("\n{}", table_head(&columns));
        for (record, shown) in &self.records {
            text += &table_row(&columns, record, shown);
        }
        let mut told = Vec::new();
        for (record, _) in &self.records {
            let (Some(read), Some(macs)) = (record.read_ceiling_gb_s, record.mac_ceiling_gmac_s)
            else {
                continue;
            };
            let line = format!(
                "{}, threads {}: reads {read:.1} GB/s, multiplies {macs:.0} GMAC/s of bytes at most",
                record.backend, record.n_threads,
            );
            if !told.contains(&line) {
                told.push(line);
            }
        }
        if !told.is_empty() {
            let _ = write!(
                text,
                "\n% of what this machine can do: {}\n",
                told.join("; ")
            );
        }
        let _ = writeln!(text, "\nbuild: fornax {}", env!("CARGO_PKG_VERSION"));
        text
    }
}

fn table_head(columns: &[&Column]) -> String {
    let mut text = String::from("|");
    for column in columns {
        text += &cell(column, column.title);
    }
    text += "\n|";
    for column in columns {
        let dashes = "-".repeat(column.width - usize::from(!column.left));
        let end = if column.left { "" } else { ":" };
        let _ = write!(text, " {dashes}{end} |");
    }
    text + "\n"
}

fn table_row(columns: &[&Column], record: &Record, shown: &Shown) -> String {
    let mut text = String::from("|");
    for column in columns {
        text += &cell(column, &(column.value)(record, shown));
    }
    text + "\n"
}

fn cell(column: &Column, value: &str) -> String {
    let width = column.width;
    match column.left {
        true => format!(" {value:<width$} |"),
        false => format!(" {value:>width$} |"),
    }
}

/// All fields but the samples, quoted, after their names on the first line.
fn csv(record: &Record, first: bool) -> String {
    let Ok(Value::Object(fields)) = serde_json::to_value(record) else {
        unreachable!("invariant: a record is an object");
    };
    let mut flat: Vec<(String, Value)> = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Array(_) => {}
            Value::Object(inner) => {
                flat.extend(
                    inner
                        .into_iter()
                        .map(|(part, value)| (format!("{name}_{part}"), value)),
                );
            }
            value => flat.push((name, value)),
        }
    }
    let quoted = |value: &Value| match value {
        Value::String(text) => format!("\"{}\"", text.replace('"', "\"\"")),
        Value::Null => "\"\"".to_owned(),
        other => format!("\"{other}\""),
    };
    let names: Vec<&str> = flat.iter().map(|(name, _)| name.as_str()).collect();
    let values: Vec<String> = flat.iter().map(|(_, value)| quoted(value)).collect();
    let line = values.join(",") + "\n";
    match first {
        true => names.join(",") + "\n" + &line,
        false => line,
    }
}

#[cfg(test)]
mod tests;
