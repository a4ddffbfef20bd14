//! `fornax bench` as a person and as a program use it, on the built-in and on tiny models.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fornax"));
    let command = command.arg("bench").args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

/// What a successful run writes to stdout.
fn text(arguments: &[&str]) -> String {
    let output = bench(arguments);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(arguments: &[&str], code: i32) -> String {
    let output = bench(arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
    told
}

#[test]
fn every_test_of_the_grid_is_measured_with_its_samples() {
    let told = text(&[
        "-p",
        "8,16",
        "-n",
        "2",
        "-pg",
        "4,2",
        "-d",
        "0-8+8",
        "-r",
        "3",
        "-t",
        "2",
        "-npl",
        "2",
        "-ub",
        "8",
        "-o",
        "json",
        "--no-ceilings",
    ]);
    let records: Vec<Value> = serde_json::from_str(&told).unwrap();
    let tests: Vec<&str> = records
        .iter()
        .map(|r| r["test"].as_str().unwrap())
        .collect();
    assert_eq!(
        tests,
        [
            "pp8 x2",
            "pp16 x2",
            "tg2 x2",
            "pp4+tg2 x2",
            "pp8 @ d8 x2",
            "pp16 @ d8 x2",
            "tg2 @ d8 x2",
            "pp4+tg2 @ d8 x2",
        ]
    );
    for record in &records {
        let number = |name: &str| record[name].as_f64().unwrap_or_else(|| panic!("{name}"));
        let tokens = 2.0 * (number("n_prompt") + number("n_gen"));
        let samples = record["samples_ts"].as_array().unwrap();
        let mean = samples.iter().map(|ts| ts.as_f64().unwrap()).sum::<f64>() / 3.0;
        assert_eq!(samples.len(), 3);
        assert!((number("avg_ts") - mean).abs() < 1e-6 * mean, "{record}");
        let sample_seconds = record["samples_ns"][0].as_f64().unwrap() / 1e9;
        let rate = samples[0].as_f64().unwrap();
        assert!((rate * sample_seconds - tokens).abs() < 0.01, "{record}");
        assert!(number("stddev_ts") >= 0.0 && number("first_token_ms") > 0.0);
        assert!(record["forward_ms"]["p50"].as_f64() <= record["forward_ms"]["p99"].as_f64());
        assert!(record["read_ceiling_gb_s"].is_null());
        assert_eq!(record["n_threads"], 2);
    }
    // 32 tokens in steps of 8, three times.
    assert_eq!(records[1]["forwards"], 12);
}

#[test]
fn a_synthetic_model_leaves_no_file_and_has_a_row_for_each_setting() {
    let told = text(&[
        "-m",
        "synthetic:tiny-llama:q4_0,synthetic:tiny-qwen3moe",
        "-p",
        "4",
        "-n",
        "0",
        "-r",
        "1",
        "--backend",
        "simd",
        "--kv",
        "none,basic",
        "--kv-type",
        "bf16",
        "--weights",
        "f32,native",
        "--no-ceilings",
    ]);
    let rows: Vec<&str> = told.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(rows.len(), 2 + 8, "{told}");
    for (row, part) in [
        (0, "type_kv"),
        (0, "weights"),
        (2, "llama"),
        (2, "Q4_0"),
        (6, "qwen3moe"),
    ] {
        assert!(rows[row].contains(part), "{}", rows[row]);
    }
    for row in &rows[2..] {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!((cells[5], cells[9]), ("1", "pp4"), "{row}");
        assert!(cells[10].contains(" ± 0.00"), "{row}");
    }
}

#[test]
fn other_forms_hold_the_same_fields() {
    let small = ["-p", "4", "-n", "1", "-r", "1", "--no-ceilings", "-o"];
    let lines = text(&[&small[..], &["jsonl"]].concat());
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["n_prompt"], &first["n_gen"]),
        (&4.into(), &0.into())
    );
    assert_eq!(lines.lines().count(), 2);
    let csv = text(&[&small[..], &["csv"]].concat());
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[0].starts_with("build_version,backend,model_filename"),
        "{csv}"
    );
    let column = lines[0]
        .split(',')
        .position(|name| name == "n_gen")
        .unwrap();
    let of_field = |line: &str| line.split("\",\"").nth(column).map(str::to_owned);
    assert_eq!(of_field(lines[2]).as_deref(), Some("1"), "{csv}");
}

#[test]
fn the_ceilings_of_the_machine_stand_beside_what_was_reached() {
    let told = text(&["-p", "4", "-n", "0", "-r", "1", "-t", "1"]);
    assert!(told.contains("% of what this machine can do"), "{told}");
    assert!(told.contains(" %) |"), "{told}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for (arguments, code, part) in [
        (&["-p", "0", "-n", "0"][..], 2, "nothing to measure"),
        (&["-r", "0"], 2, "--repetitions"),
        (&["-ub", "0"], 2, "0 tokens"),
        (&["-npl", "0"], 2, "--parallel"),
        (&["-t", "0"], 2, "--threads"),
        (&["-p", "5-1"], 2, "ends before it begins"),
        (&["-p=-1"], 2, "`-1` is negative"),
        (&["-p", "-1"], 2, "`-1` is negative"),
        (&["-pg=-1,2"], 2, "`-1` is no whole number"),
        (&["-pg", "512"], 2, "512,128"),
        (&["-m", "synthetic:gpt-9"], 2, "qwen3-0.6b"),
        (&["-m", "no-such-file.gguf"], 1, "no-such-file.gguf"),
        (&["-d", "9999999", "--no-ceilings"], 1, "trained for"),
        // More than can be added up, or multiplied.
        (
            &["-d", "18446744073709551615", "--no-ceilings"],
            1,
            "trained for",
        ),
        (
            &["-pg", "18446744073709551615,2", "--no-ceilings"],
            1,
            "trained for",
        ),
        (
            &["-npl", "9223372036854775808", "--no-ceilings"],
            1,
            "at most",
        ),
        (
            &["--backend", "scalar", "-t", "2"],
            1,
            "leave --threads away",
        ),
        (&["--profile", "-o", "csv"], 2, "md, json or jsonl"),
        // What the ladder does not heed, or would heed too late.
        (&["--ladder", "-d", "64"], 2, "--n-depth"),
        (&["--ladder", "--backend", "scalar"], 2, "--backend"),
        (&["--ladder", "-p", "16,32"], 2, "one -p"),
        (&["--ladder", "--kv-type", "f16,f32"], 2, "one --kv-type"),
        (&["--ladder", "-p", "0"], 2, "at least 8"),
        (&["--ladder", "-t", "0"], 2, "at least 1"),
        (&["--ladder", "-m", "none", "-o", "csv"], 2, "md, json"),
        (&["--ladder", "-o", "csv"], 2, "md, json or jsonl"),
        (
            &["--ladder", "--svg", "/nowhere/x.svg"],
            1,
            "/nowhere/x.svg",
        ),
        (&["--ladder", "--rung-seconds", "1e300"], 2, "clock"),
        (
            &["--ladder", "-n", "18446744073709551614"],
            1,
            "trained for",
        ),
        (&["--svg", "x.svg"], 2, "--ladder"),
        (&["--rung-seconds", "1"], 2, "--ladder"),
        (
            &["batch", "--sequences", "2", "--kv-tokens", "1"],
            1,
            "longest request",
        ),
        (&["batch", "--temperature", "-1"], 2, "temperature"),
        (&["batch", "--step-tokens", "8"], 2, "--parallel"),
        (&["serve", "--turns", "0"], 2, "--turns"),
        (&["serve", "--rate", "nan"], 2, "--rate"),
        (&["serve", "--max-total", "-1"], 2, "milliseconds"),
        (&["serve", "--url", "localhost"], 2, "http://host:port"),
    ] {
        let told = refusal(arguments, code);
        assert!(told.contains(part), "{arguments:?}: {told}");
    }
}

#[test]
fn a_profile_says_where_the_time_of_each_test_goes() {
    let small = [
        "-m",
        "synthetic:tiny-qwen3moe",
        "-p",
        "8",
        "-n",
        "2",
        "-r",
        "2",
        "--profile",
    ];
    let told = text(&[&small[..], &["-o", "json"]].concat());
    let profiles: Vec<Value> = serde_json::from_str(&told).unwrap();
    assert_eq!(profiles.len(), 2);
    for (profile, tokens) in profiles.iter().zip([8.0, 2.0]) {
        let operations = profile["operations"].as_array().unwrap();
        let of = |layer: Value, name: &str| {
            let found = |one: &&Value| one["layer"] == layer && one["operation"] == name;
            let found = operations.iter().find(found);
            found.unwrap_or_else(|| panic!("{name}: {profile}")).clone()
        };
        for layer in 0..3 {
            // Two of eight experts of 256 × 256, three matrices each.
            let macs = tokens * 2.0 * 3.0 * 256.0 * 256.0;
            assert_eq!(of(layer.into(), "experts")["macs"].as_f64(), Some(macs));
            assert!(of(layer.into(), "attention")["ms"].as_f64() > Some(0.0));
        }
        assert!(of(Value::Null, "sample")["calls"].as_f64() > Some(0.0));
    }
    let told = text(&small);
    for part in [
        "| operation ",
        "| layer ",
        "linear attn_q+attn_k+attn_v",
        "outside of layers",
    ] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn the_ladder_is_climbed_from_scalar_loops_to_pages() {
    let picture = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("ladder.svg");
    let told = text(&[
        "--ladder",
        "-m",
        "synthetic:tiny-qwen3",
        "-p",
        "8",
        "-n",
        "4",
        "--rung-seconds",
        "0.2",
        "--svg",
        picture.to_str().unwrap(),
    ]);
    let rows: Vec<&str> = told
        .lines()
        .filter(|line| line.contains('+') || line.contains("no KV"))
        .collect();
    let names = [
        "scalar, no KV",
        "+ KV",
        "+ SIMD",
        "+ threads",
        "+ native weights",
        "+ paged KV",
    ];
    for (row, name) in rows.iter().zip(names) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[1], name, "{told}");
        assert!(cells[6].contains("(of "), "{row}");
        assert_eq!(cells[8].is_empty(), name == names[0], "{row}");
    }
    assert!(rows.len() >= names.len(), "{told}");
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains(">+ paged KV<"),
        "{svg}"
    );
}

#[test]
fn a_batch_runs_every_request_to_its_end() {
    let workload = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("workload.json");
    std::fs::write(&workload, "[[9, 3], [40, 5], [7, 1], [1, 1]]").unwrap();
    let arguments = [
        "batch",
        "-m",
        "synthetic:tiny-llama",
        "--workload",
        workload.to_str().unwrap(),
        "--sequences",
        "3",
        "--parallel",
        "2",
        "--kv-tokens",
        "64",
        "--step-tokens",
        "16",
    ];
    let told: Value = serde_json::from_str(&text(&[&arguments[..], &["--json"]].concat())).unwrap();
    let count = |name: &str| told[name].as_u64();
    assert_eq!(count("requests"), Some(3));
    assert_eq!(
        (count("prompt_tokens"), count("output_tokens")),
        (Some(56), Some(9))
    );
    assert!(told["first_token_ms"]["p99"].as_f64() > Some(0.0));
    let told = text(&arguments);
    assert!(
        told.contains("output tokens") && told.contains("inter-token"),
        "{told}"
    );
    std::fs::write(&workload, "[[18446744073709551615, 2]]").unwrap();
    assert!(refusal(&arguments, 1).contains("trained for"));
    assert!(refusal(&["batch", "--sequences", "0"], 2).contains("--sequences"));
    assert!(refusal(&["batch", "--workload", "none.json"], 1).contains("name a JSON file"));
}

#[test]
fn what_was_measured_is_told_whatever_fails_behind_it() {
    let small = ["-p", "4,99999999", "-n", "0", "-r", "1", "--no-ceilings"];
    let output = bench(&[&small[..], &["-o", "json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let records: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(records.is_empty(), "{records:?}");
}

#[test]
fn short_options_take_their_value_behind_a_sign_too() {
    let told = text(&[
        "-p=0",
        "-n=0",
        "-pg=4,2",
        "-npl=2",
        "-r=1",
        "-ub=8",
        "-o",
        "jsonl",
        "--no-ceilings",
    ]);
    let record: Value = serde_json::from_str(told.trim()).unwrap();
    assert_eq!(record["test"], "pp4+tg2 x2");
}

#[test]
fn a_batch_is_profiled_and_says_what_it_was() {
    let workload = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("pairs.json");
    std::fs::write(&workload, "[[4, 2], [6, 1]]").unwrap();
    let file = ["batch", "--workload", workload.to_str().unwrap()];
    let small = [&file[..], &["-m", "synthetic:tiny-qwen3"]].concat();
    let told = text(&[&small[..], &["--profile", "--isa", "portable"]].concat());
    for part in [
        "qwen3",
        "(portable",
        "2 requests of 10 and 3 tokens",
        "| operation ",
    ] {
        assert!(told.contains(part), "{told}");
    }
    let told = text(&[&small[..], &["--profile", "--json"]].concat());
    let profile: Value = serde_json::from_str(&told).unwrap();
    assert!(
        profile["operations"].as_array().unwrap().len() > 5,
        "{told}"
    );
    // One token for each has none behind it.
    std::fs::write(&workload, "[[4, 1]]").unwrap();
    let told = text(&[&small[..], &["--json"]].concat());
    let outcome: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(outcome["inter_token_ms"], Value::Null);
}
