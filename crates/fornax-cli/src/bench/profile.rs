//! Where a test's time goes: tables and JSON by operation and by layer.

use std::collections::BTreeMap;
use std::fmt::Write;

use fornax::{Operation, Spent};
use serde_json::{Value, json};

use super::driver::Run;

/// What the operations of a test's runs took.
pub struct Profiled {
    /// The test as a table calls it.
    pub test: String,
    /// Runs that were counted.
    pub runs: usize,
    /// By layer and operation.
    pub spent: BTreeMap<Operation, Spent>,
}

impl Profiled {
    /// What was spent in one run.
    pub fn of_one(test: String, spent: BTreeMap<Operation, Spent>) -> Self {
        Self {
            test,
            runs: 1,
            spent,
        }
    }

    /// Adds up the runs of a test.
    pub fn new(test: String, runs: Vec<Run>) -> Self {
        let count = runs.len();
        let mut spent = BTreeMap::new();
        for (operation, one) in runs.into_iter().flat_map(|run| run.spent) {
            add(spent.entry(operation).or_default(), &one);
        }
        Self {
            test,
            runs: count,
            spent,
        }
    }

    /// Two tables for a person: operations, what takes most first, and layers in order.
    pub fn text(&self) -> String {
        let total = self.sum(|_| String::new());
        let total = total.first().map_or(Spent::default(), |(_, spent)| *spent);
        let seconds = total.time.as_secs_f64();
        let mut text = format!(
            "\n{}: {:.2} ms in operations, {:.1} MB and {:.3} GMAC, of {}\n\n",
            self.test,
            seconds * 1e3 / self.runs as f64,
            total.bytes as f64 / self.runs as f64 / 1e6,
            total.macs as f64 / self.runs as f64 / 1e9,
            match self.runs {
                1 => "one run".to_owned(),
                runs => format!("each of {runs} runs"),
            },
        );
        let by_operation = self.sum(name);
        let mut by_layer = self.sum(|operation| match operation.layer {
            // Of equal width, so that they sort by number.
            Some(layer) => format!("layer {layer:>3}"),
            None => "outside of layers".to_owned(),
        });
        by_layer.sort_by(|a, b| a.0.cmp(&b.0));
        self.table(&mut text, "operation", by_operation, seconds);
        text.push('\n');
        self.table(&mut text, "layer", by_layer, seconds);
        text
    }

    /// For a program: each operation in each layer, times and costs of one run.
    pub fn json(&self) -> Value {
        let runs = self.runs as f64;
        let operations = self.spent.iter().map(|(operation, spent)| {
            json!({
                "layer": operation.layer,
                "operation": operation.name,
                "weight": operation.weight.as_deref(),
                "calls": spent.calls as f64 / runs,
                "ms": spent.time.as_secs_f64() * 1e3 / runs,
                "bytes": spent.bytes as f64 / runs,
                "macs": spent.macs as f64 / runs,
            })
        });
        json!({
            "test": self.test,
            "runs": self.runs,
            "operations": operations.collect::<Vec<_>>(),
        })
    }

    /// Sums of what has the same name, the greatest time first.
    fn sum(&self, name: impl Fn(&Operation) -> String) -> Vec<(String, Spent)> {
        let mut sums: BTreeMap<String, Spent> = BTreeMap::new();
        for (operation, spent) in &self.spent {
            add(sums.entry(name(operation)).or_default(), spent);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, spent)| std::cmp::Reverse(spent.time));
        sums
    }

    fn table(&self, text: &mut String, title: &str, rows: Vec<(String, Spent)>, total: f64) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {title:<34} | calls | {:>10} | {:>6} | {:>9} | {:>8} | {:>7} | {:>8} |",
            "ms", "share", "MB", "GMAC", "GB/s", "GMAC/s"
        );
        let _ = writeln!(
            text,
            "| {:-<34} | ----: | ---------: | -----: | --------: | -------: | ------: | -------: |",
            ""
        );
        let runs = self.runs as f64;
        for (name, spent) in rows {
            let seconds = spent.time.as_secs_f64();
            let (bytes, macs) = (spent.bytes as f64, spent.macs as f64);
            let _ = writeln!(
                text,
                "| {name:<34} | {:>5.0} | {:>10.3} | {:>4.1} % | {:>9.2} | {:>8.3} | {:>7.2} | {:>8.2} |",
                spent.calls as f64 / runs,
                seconds * 1e3 / runs,
                100.0 * seconds / total,
                bytes / runs / 1e6,
                macs / runs / 1e9,
                bytes / seconds / 1e9,
                macs / seconds / 1e9,
            );
        }
    }
}

fn add(sum: &mut Spent, one: &Spent) {
    sum.calls += one.calls;
    sum.time += one.time;
    sum.bytes += one.bytes;
    sum.macs += one.macs;
}

fn name(operation: &Operation) -> String {
    match &operation.weight {
        Some(weight) => format!("{} {weight}", operation.name),
        None => operation.name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn operations_are_summed_over_layers_and_layers_over_operations() {
        let entry = |layer, name, weight: Option<&str>, ms| {
            let weight = weight.map(Into::into);
            let spent = Spent {
                calls: 2,
                time: Duration::from_millis(ms),
                bytes: 4_000_000,
                macs: 0,
            };
            (
                Operation {
                    layer,
                    name,
                    weight,
                },
                spent,
            )
        };
        let profiled = Profiled {
            test: "tg1".to_owned(),
            runs: 2,
            spent: BTreeMap::from([
                entry(Some(0), "linear", Some("attn_q"), 2),
                entry(Some(1), "linear", Some("attn_q"), 4),
                entry(Some(1), "add", None, 1),
                entry(None, "sample", None, 1),
            ]),
        };
        let text = profiled.text();
        let cells = |line: usize| -> Vec<&str> {
            let line = text.lines().nth(line).unwrap();
            line.split('|').map(str::trim).collect()
        };
        assert!(
            text.contains("tg1: 4.00 ms in operations, 8.0 MB"),
            "{text}"
        );
        assert_eq!(
            cells(5)[1..6],
            ["linear attn_q", "2", "3.000", "75.0 %", "4.00"]
        );
        assert_eq!(cells(12)[1..5], ["layer   1", "2", "2.500", "62.5 %"]);
        assert_eq!(cells(13)[1], "outside of layers");
        assert_eq!(profiled.json()["operations"][1]["ms"], 1.0);
    }
}
