//! A folder whose weights are not those of its configuration is refused before anything is read or
//! written, with the file's own names and settings.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../fornax-gguf/tests/small_folder/mod.rs"]
mod small_folder;

use fornax_gguf::Gguf;
use fornax_model::Config;
use serde_json::{Value, json};
use small_folder::{TENSORS, configured, files, replaced, safetensors};

type Files = Vec<(String, Vec<u8>)>;

fn refused(files: Files, parts: &[&str]) {
    let checked = Gguf::from_folder("folder", files).map(|model| Config::checked(&model));
    let message = match checked {
        Err(error) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Ok(Ok(_)) => panic!("it is taken, and not refused by {parts:?}"),
    };
    for part in ["folder"].iter().chain(parts) {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}

#[test]
fn the_small_folder_is_whole() {
    let model = Gguf::from_folder("folder", files()).unwrap();
    assert_eq!(Config::checked(&model).unwrap().layers(), 1);
}

#[test]
fn each_missing_tensor_is_named_as_the_folder_has_it() {
    for (missing, shape) in TENSORS {
        let rest = TENSORS.iter().filter(|(name, _)| *name != missing);
        let rest: Vec<(&str, &[usize])> = rest.copied().collect();
        let files = replaced(files(), "model.safetensors", safetensors(&rest));
        let shape = format!("{shape:?}");
        match missing {
            "lm_head.weight" => refused(files, &[missing, "missing", "tie_word_embeddings"]),
            _ => refused(files, &[missing, "missing", &shape]),
        }
    }
}

#[test]
fn each_tensor_of_another_shape_is_named_with_the_settings_that_ask_for_its_own() {
    for (wrong, shape) in TENSORS {
        let mut longer = shape.to_vec();
        *longer.last_mut().unwrap() += 1;
        let tensors: Vec<(&str, &[usize])> = TENSORS
            .iter()
            .map(|&(name, shape)| (name, if name == wrong { &longer[..] } else { shape }))
            .collect();
        let files = replaced(files(), "model.safetensors", safetensors(&tensors));
        let (found, expected) = (format!("{longer:?}"), format!("{shape:?}"));
        let setting = match wrong {
            _ if wrong.ends_with("down_proj.weight") => "intermediate_size",
            _ if wrong.ends_with("o_proj.weight") => "num_attention_heads × head_dim",
            _ => "hidden_size",
        };
        let file = "folder/model.safetensors: ";
        refused(
            files,
            &[file, wrong, &found, &expected, setting, "config.json"],
        );
    }
}

#[test]
fn each_wrong_setting_is_refused() {
    const LAYER: &str = "model.layers.1.";
    const EMBEDDING: &str = "model.embed_tokens.weight";
    let head = ("head_dim", json!(4));
    let cases: [(&str, Value, &[&str]); 11] = [
        ("num_hidden_layers", json!(2), &[LAYER, "missing", "[8]"]),
        ("num_hidden_layers", json!(0), &["num_hidden_layers", "0"]),
        (
            "hidden_size",
            json!(9),
            &[EMBEDDING, "[8, 8]", "[8, 9]", "hidden_size"],
        ),
        (
            "vocab_size",
            json!(9),
            &[EMBEDDING, "[8, 8]", "[9, 8]", "vocab_size"],
        ),
        (
            "intermediate_size",
            json!(5),
            &["gate_proj", "[4, 8]", "[5, 8]", "intermediate_size"],
        ),
        ("intermediate_size", json!(0), &["intermediate_size", "0"]),
        ("head_dim", json!(2), &["self_attn", "head_dim"]),
        (
            "num_key_value_heads",
            json!(2),
            &["k_proj", "num_key_value_heads"],
        ),
        (
            "rms_norm_eps",
            json!(-1),
            &["folder/config.json", "rms_norm_eps", "-1", "above 0"],
        ),
        (
            "max_position_embeddings",
            json!(0),
            &["max_position_embeddings", "0"],
        ),
        ("rope_theta", json!(0), &["rope_theta", "0"]),
    ];
    for (key, value, parts) in cases {
        let settings = [head.clone(), (key, value)];
        refused(configured(&settings), parts);
    }
}
