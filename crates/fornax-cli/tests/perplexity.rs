//! `fornax perplexity` beside what llama.cpp says of the same models and the same text; the golden
//! folder's README says how that was made.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;

use fornax::{Architecture, Isa};
use serde_json::Value;

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fornax-model/tests/golden");
    folder.join(name).to_str().unwrap().to_owned()
}

fn perplexity(arguments: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fornax"));
    let output = command
        .args(["perplexity", "--json"])
        .args(arguments)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// Both programs round activations where weights are in blocks, each in its own way; here every
/// model has learned what comes next, so that this shows as little as with models of people.
#[test]
fn blocks_score_as_in_llama_cpp_whatever_the_instructions() {
    let kept = std::fs::read_to_string(golden("trained/perplexity.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let (ctx, text) = (kept["ctx"].to_string(), golden("trained/text.txt"));
    let models = kept["models"].as_array().unwrap();
    assert_eq!(models.len(), Architecture::ALL.len());
    for (index, model) in models.iter().enumerate() {
        let file = model["file"].as_str().unwrap();
        let path = golden(&format!("trained/{file}"));
        let expected = model["perplexity"].as_f64().unwrap();
        // Plain vectors take seconds where they are not optimised: one model shows them.
        let isas = Isa::available().filter(|isa| index == 0 || isa.to_string() != "portable");
        for isa in isas {
            let (name, arguments) = (isa.to_string(), ["--model", &path, "--file", &text]);
            let more = ["--ctx", &ctx, "--kv-type", "f32", "--isa", &name];
            let more = [&more[..], &["--backend", "simd"]].concat();
            let found = perplexity(&[&arguments[..], &more].concat()).unwrap();
            let found = found["perplexity"].as_f64().unwrap();
            let off = (found / expected - 1.0).abs();
            assert!(off < 5e-3, "{file}, {name}: {found}, llama.cpp {expected}");
        }
    }
}

#[test]
fn perplexity_equals_llama_cpp_on_every_architecture() {
    let kept = std::fs::read_to_string(golden("perplexity.json")).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let (ctx, text) = (kept["ctx"].to_string(), golden("text.txt"));
    for model in kept["models"].as_array().unwrap() {
        let (file, exact) = (model["file"].as_str().unwrap(), model["exact"] == true);
        let path = golden(file);
        let arguments = ["--model", &path, "--file", &text, "--ctx", &ctx];
        let found = perplexity(&[&arguments[..], &["--kv-type", "f32"]].concat()).unwrap();
        let found = found["perplexity"].as_f64().unwrap();
        let expected = model["perplexity"].as_f64().unwrap();
        // Weights in blocks meet rounded activations, in either program otherwise.
        let bound = if exact { 1e-3 } else { 5e-3 };
        let off = (found / expected - 1.0).abs();
        assert!(off < bound, "{file}: {found}, llama.cpp {expected}");
    }
}

#[test]
fn chunks_are_scored_alike_together_and_alone_and_their_logits_are_written() {
    let (model, text) = (golden("tiny-qwen3.gguf"), golden("text.txt"));
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("perplexity.logits");
    let arguments = ["--model", &model, "--file", &text, "--backend", "scalar"];
    let at = |ctx: &'static str| [&arguments[..], &["--ctx", ctx]].concat();
    let written = ["--logits-out", out.to_str().unwrap()];
    let found = perplexity(&[&at("64")[..], &written].concat()).unwrap();
    let (chunks, scored) = (found["chunks"].as_u64(), found["tokens_scored"].as_u64());
    assert_eq!(scored, chunks.map(|chunks| chunks * 31));
    let rows = scored.unwrap() * 2 * (4 + 320);
    let header = 8 + 4 * 3 + 4 * 64 * chunks.unwrap();
    assert_eq!(std::fs::metadata(&out).unwrap().len(), header + rows);
    // Past the context of one step, chunks run alone.
    let whole = perplexity(&at("512")).unwrap();
    assert!(whole["perplexity"].as_f64().unwrap() > 1.0);
    let error = perplexity(&[&arguments[..], &["--ctx", "510000"]].concat()).unwrap_err();
    assert!(error.contains("510000") && error.contains("512"), "{error}");
    let most = perplexity(&at("18446744073709551615")).unwrap_err();
    let told = "18446744073709551615 tokens was asked for, but the model was trained for 512";
    assert!(most.contains(told), "{most}");
}

#[test]
fn too_little_text_is_refused_with_both_numbers() {
    let text = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("short.txt");
    std::fs::write(&text, "Once upon a time.\n").unwrap();
    let error = perplexity(&["--file", text.to_str().unwrap()]).unwrap_err();
    assert!(error.contains("at least 1024"), "{error}");
}

#[test]
fn logits_never_take_the_place_of_what_is_read() {
    let name = format!("fornax-perplexity-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let (model, text) = (folder.join("m.gguf"), folder.join("t.txt"));
    std::fs::copy(golden("tiny-qwen3.gguf"), &model).unwrap();
    std::fs::copy(golden("trained/text.txt"), &text).unwrap();
    let [model, text] = [&model, &text].map(|path| path.to_str().unwrap());
    let before = [model, text].map(|path| std::fs::read(path).unwrap());
    for target in [model, text] {
        let arguments = ["--model", model, "--file", text, "--ctx", "32"];
        let refused = perplexity(&[&arguments[..], &["--logits-out", target]].concat());
        let message = refused.unwrap_err();
        assert!(message.contains("belongs to what is read"), "{message}");
    }
    assert_eq!(
        before,
        [model, text].map(|path| std::fs::read(path).unwrap())
    );
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}
