//! Tables, JSON and CSV of a record, letter by letter.

use std::time::Duration;

use super::*;
use crate::bench::work::Cost;

fn record(test: Test, milliseconds: &[u64]) -> Record {
    let setting = Setting {
        backend: "cpu (avx2)".to_owned(),
        model_filename: "a \"b\".gguf".to_owned(),
        model_type: "qwen3 0.6B Q8_0".to_owned(),
        model_size: 633_495_552,
        model_n_params: 596_049_920,
        n_batch: 2048,
        n_ubatch: 512,
        n_threads: 2,
        kv_type: "f16".to_owned(),
        kv: "paged".to_owned(),
        weights: "native".to_owned(),
        ceilings: Some(Ceilings {
            read: 50e9,
            dot: 1e12,
        }),
    };
    let runs: Vec<Run> = milliseconds
        .iter()
        .map(|&total| Run {
            total: Duration::from_millis(total),
            first_token: Duration::from_millis(total / 2),
            forwards: vec![Duration::from_millis(total / 2); 2],
            cost: Cost {
                bytes: 4e9,
                macs: 1e11,
            },
            spent: std::collections::BTreeMap::new(),
        })
        .collect();
    Record::new(setting, &test, &runs)
}

const TEST: Test = Test {
    prompt: 512,
    generate: 0,
    depth: 1024,
    parallel: 1,
    batch: 512,
};

fn report(format: Format, unusual: &[&str]) -> String {
    let mut report = Report::new(format, unusual);
    let mut text = report.head();
    for (prompt, generate) in [(512, 0), (0, 128)] {
        let test = Test {
            prompt,
            generate,
            ..TEST
        };
        let shown = Shown::new("604.15 MiB".to_owned(), "596.05 M".to_owned());
        text += &report.push(record(test, &[100, 120]), shown);
    }
    text + &report.tail()
}

#[test]
fn the_first_table_is_that_of_llama_bench() {
    let text = report(Format::Md, &[]);
    let table: Vec<&str> = text.lines().take(4).collect();
    assert_eq!(
        table,
        [
            "| model                          |       size |     params | backend            | threads |            test |                  t/s |",
            "| ------------------------------ | ---------: | ---------: | ------------------ | ------: | --------------: | -------------------: |",
            "| qwen3 0.6B Q8_0                | 604.15 MiB |   596.05 M | cpu (avx2)         |       2 |   pp512 @ d1024 |     4693.33 ± 603.40 |",
            "| qwen3 0.6B Q8_0                | 604.15 MiB |   596.05 M | cpu (avx2)         |       2 |   tg128 @ d1024 |     1173.33 ± 150.85 |",
        ]
    );
}

#[test]
fn the_second_table_says_how_far_the_limit_is() {
    let text = report(Format::Md, &[]);
    let beyond: Vec<&str> = text.lines().skip(5).collect();
    assert_eq!(
        beyond,
        [
            "| model                          |            test | first token ms | forward ms p50 |       p90 |       p99 |           GB/s |          GMAC/s | forwards |",
            "| ------------------------------ | --------------: | -------------: | -------------: | --------: | --------: | -------------: | --------------: | -------: |",
            "| qwen3 0.6B Q8_0                |   pp512 @ d1024 |          50.00 |         50.000 |    60.000 |    60.000 |   36.36 (73 %) |   909.09 (91 %) |        4 |",
            "| qwen3 0.6B Q8_0                |   tg128 @ d1024 |          50.00 |         50.000 |    60.000 |    60.000 |   36.36 (73 %) |   909.09 (91 %) |        4 |",
            "",
            "% of what this machine can do: cpu (avx2), threads 2: reads 50.0 GB/s, multiplies 1000 GMAC/s of bytes at most",
            "",
            concat!("build: fornax ", env!("CARGO_PKG_VERSION")),
        ]
    );
}

#[test]
fn an_unusual_setting_has_a_column_before_the_test() {
    let text = report(Format::Md, &["kv", "n_ubatch"]);
    let titles: Vec<&str> = text
        .lines()
        .next()
        .unwrap()
        .split('|')
        .map(str::trim)
        .collect();
    assert_eq!(titles[5..8], ["threads", "n_ubatch", "kv"]);
}

#[test]
fn json_is_one_array_and_csv_quotes() {
    let records: Vec<Value> = serde_json::from_str(&report(Format::Json, &[])).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0]["avg_ns"], 110_000_000);
    assert_eq!(
        records[0]["samples_ns"],
        serde_json::json!([100_000_000, 120_000_000])
    );
    assert_eq!(records[0]["forward_ms"]["p90"], 60.0);
    let csv = report(Format::Csv, &[]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[0].contains("forward_ms_p50") && !lines[0].contains("samples"));
    assert!(lines[1].contains(",\"a \"\"b\"\".gguf\","), "{csv}");
    assert_eq!(lines[0].split(',').count(), lines[1].split("\",\"").count());
}
