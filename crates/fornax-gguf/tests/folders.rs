//! Folders of safetensors read as the GGUF files that converters make of them.

mod small_folder;

use fornax_gguf::{DType, Error, Gguf};
use serde_json::{Value, json};
use small_folder::{config, files, sharded, tokenizer, values};

type Files = Vec<(String, Vec<u8>)>;

fn open(files: Files) -> Result<Gguf, Error> {
    Gguf::from_folder("folder", files)
}

/// The small folder with one file changed.
fn with(name: &str, value: &Value) -> Files {
    small_folder::with(name, value.to_string())
}

fn refused(files: Files, parts: &[&str]) {
    let message = open(files).expect_err("the folder is broken").to_string();
    for part in parts {
        assert!(message.contains(part), "{message:?} does not name {part:?}");
    }
}

#[test]
fn metadata_is_what_a_converter_writes() -> Result<(), Error> {
    let model = open(files())?;
    let metadata = model.metadata();
    assert_eq!(metadata.str("general.architecture")?, "llama");
    assert_eq!(metadata.u32("llama.block_count")?, 1);
    assert_eq!(metadata.u32("llama.attention.head_count_kv")?, 1);
    assert_eq!(metadata.u32("llama.attention.key_length")?, 4);
    assert_eq!(metadata.f32("llama.rope.freq_base")?, 10_000.0);
    assert_eq!(
        metadata.f32("llama.attention.layer_norm_rms_epsilon")?,
        1e-5
    );
    assert_eq!(metadata.str("tokenizer.ggml.model")?, "gpt2");
    assert_eq!(metadata.str("tokenizer.ggml.pre")?, "gpt-2");
    let tokens = ["<s>", "</s>", "a", "b", "ab", "aab", "<think>", "[PAD7]"];
    assert_eq!(metadata.strings("tokenizer.ggml.tokens")?, tokens);
    let types = metadata.i32s("tokenizer.ggml.token_type")?;
    assert_eq!(types, [3, 3, 1, 1, 1, 1, 4, 5]);
    assert_eq!(metadata.strings("tokenizer.ggml.merges")?, ["a b", "a ab"]);
    assert_eq!(metadata.u32("tokenizer.ggml.bos_token_id")?, 0);
    assert_eq!(metadata.u32("tokenizer.ggml.eos_token_id")?, 1);
    assert_eq!(metadata.u32("tokenizer.ggml.eot_token_id")?, 7);
    assert!(metadata.bool("tokenizer.ggml.add_bos_token")?);
    assert!(!metadata.bool("tokenizer.ggml.add_eos_token")?);
    assert_eq!(metadata.str("tokenizer.chat_template")?, "{{ messages }}");
    Ok(())
}

#[test]
fn tensors_are_those_of_the_folder_and_heads_are_permuted() -> Result<(), Error> {
    for files in [files(), sharded()] {
        let model = open(files)?;
        let names: Vec<&str> = model.tensors().map(|tensor| tensor.name).collect();
        assert_eq!((names[0], names.len()), ("token_embd.weight", 12));
        let decoded = |name: &str| model.tensor(name).expect("a tensor").decode();
        let gate = values("model.layers.0.mlp.gate_proj.weight", 32);
        assert_eq!(decoded("blk.0.ffn_gate.weight"), gate);
        // Two heads of four rows: the halves of each are interleaved.
        let stored = values("model.layers.0.self_attn.q_proj.weight", 64);
        let rows: Vec<&[f32]> = stored.chunks(8).collect();
        let expected: Vec<f32> = [0, 2, 1, 3, 4, 6, 5, 7].map(|row| rows[row]).concat();
        assert_eq!(decoded("blk.0.attn_q.weight"), expected);
        let norm = model.tensor("output_norm.weight").expect("a tensor");
        assert_eq!((norm.dtype, norm.shape), (DType::F32, &[8][..]));
    }
    Ok(())
}

#[test]
fn pieces_get_scores_that_make_the_same_merges() -> Result<(), Error> {
    let mut tokenizer = tokenizer();
    tokenizer["model"]["byte_fallback"] = json!(true);
    tokenizer["pre_tokenizer"] = Value::Null;
    tokenizer["normalizer"] = json!({ "type": "Sequence", "normalizers": [
        { "type": "Prepend", "prepend": "▁" },
        { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }
    ] });
    tokenizer["model"]["vocab"]["<0x0A>"] = json!(7);
    let model = open(with("tokenizer.json", &tokenizer))?;
    let metadata = model.metadata();
    assert_eq!(metadata.str("tokenizer.ggml.model")?, "llama");
    assert!(metadata.bool("tokenizer.ggml.add_space_prefix")?);
    let scores = metadata.f32s("tokenizer.ggml.scores")?;
    assert_eq!((scores[4], scores[5]), (0.0, -1.0));
    assert_eq!(metadata.i32s("tokenizer.ggml.token_type")?[7], 6);
    Ok(())
}

#[test]
fn scaled_positions_have_their_keys_or_factors() -> Result<(), Error> {
    let mut config = config();
    config["rope_scaling"] = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64
    });
    let model = open(with("config.json", &config))?;
    let factors = model
        .tensor("rope_freqs.weight")
        .expect("the factors")
        .decode();
    // 64 positions turn the first pair 10 times, the second a tenth of a time.
    assert_eq!(factors, [1.0, 8.0]);
    config["rope_scaling"] = json!({ "type": "linear", "factor": 4.0 });
    let model = open(with("config.json", &config))?;
    assert_eq!(model.metadata().str("llama.rope.scaling.type")?, "linear");
    assert_eq!(model.metadata().f32("llama.rope.scaling.factor")?, 4.0);
    config["rope_scaling"] = json!({ "rope_type": "longrope" });
    refused(with("config.json", &config), &["config.json", "longrope"]);
    Ok(())
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let mut other = config();
    other["architectures"] = json!(["BertModel"]);
    refused(
        with("config.json", &other),
        &["folder/config.json", "BertModel", "Qwen3ForCausalLM"],
    );
    let mut other = config();
    other["hidden_act"] = json!("relu");
    refused(with("config.json", &other), &["hidden_act", "silu"]);
    let mut other = tokenizer();
    other["pre_tokenizer"] = json!({ "type": "Split", "pattern": { "Regex": "x+" } });
    refused(with("tokenizer.json", &other), &["tokenizer.json", "x+"]);
    let mut other = tokenizer();
    other["model"]["type"] = json!("Unigram");
    refused(with("tokenizer.json", &other), &["Unigram"]);
    let mut other = tokenizer();
    other["model"]["vocab"]["z"] = json!(8);
    refused(with("tokenizer.json", &other), &["below the 8 rows"]);
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let mut files = files();
        files.retain(|(other, _)| other != name);
        refused(files, &[name, "missing"]);
    }
    let mut files = sharded();
    files.retain(|(name, _)| name != "model-00002-of-00002.safetensors");
    refused(files, &["model-00002-of-00002.safetensors", "missing"]);
}

#[test]
fn safetensors_that_contradict_themselves_are_refused() {
    let header = |header: &str| {
        let mut files = files();
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length[..], header.as_bytes(), &[0; 64]].concat();
        files.last_mut().expect("the weights are last").1 = file;
        files
    };
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let f32s = entry("F32", "[8]", "[0,32]");
    let norm = "model.norm.weight";
    let one = |entry: &str| header(&format!(r#"{{"{norm}":{entry}}}"#));
    refused(
        one(&entry("F32", "[8]", "[0,31]")),
        &[norm, "31 bytes are not its shape"],
    );
    refused(
        one(&entry("F32", "[8]", "[48,80]")),
        &[norm, "ends after the file"],
    );
    refused(
        one(&entry("F32", "[8]", "[32,0]")),
        &[norm, "offsets cannot be"],
    );
    refused(
        one(&entry("I64", "[8]", "[0,64]")),
        &[norm, "none of F32, F16 and BF16"],
    );
    let huge = "[4294967296,4294967296,4294967296]";
    refused(
        one(&entry("F32", huge, "[0,0]")),
        &[norm, "are not its shape"],
    );
    let twice = format!(r#"{{"{norm}":{f32s},"{norm}":{f32s}}}"#);
    refused(header(&twice), &[norm, "twice"]);
    let overlapping = format!(r#"{{"{norm}":{f32s},"lm_head.weight":{f32s}}}"#);
    refused(header(&overlapping), &["overlaps"]);
    let apart = entry("F32", "[7]", "[36,64]");
    let hole = format!(r#"{{"{norm}":{f32s},"lm_head.weight":{apart}}}"#);
    refused(
        header(&hole),
        &["lm_head.weight", "before its data are 4 bytes"],
    );
    let late = entry("F32", "[8]", "[32,64]");
    refused(one(&late), &[norm, "before its data are 32 bytes"]);
    refused(
        one(&f32s),
        &["model.safetensors", "behind the last tensor are 32 bytes"],
    );
    refused(
        header(&format!(
            r#"{{"model.foo":{}}}"#,
            entry("F32", "[16]", "[0,64]")
        )),
        &["model.foo", "no place"],
    );
    refused(header("nonsense"), &["model.safetensors", "header"]);
    let mut files = files();
    files.last_mut().expect("the weights are last").1 = u64::MAX.to_le_bytes().to_vec();
    refused(files, &["model.safetensors", "longer than the file"]);
}

#[test]
fn one_file_counts_before_an_index() -> Result<(), Error> {
    let mut both = sharded();
    both.extend(
        files()
            .into_iter()
            .filter(|(name, _)| name == "model.safetensors"),
    );
    both.retain(|(name, _)| !name.starts_with("model-00002"));
    let model = open(both)?;
    assert!(
        model.tensor("output_norm.weight").is_some(),
        "of the one file"
    );
    Ok(())
}

#[test]
fn templates_come_by_name() -> Result<(), Error> {
    let texts = |templates: Value| {
        let settings = json!({ "bos_token": "<s>", "chat_template": templates });
        let mut files = with("tokenizer_config.json", &settings);
        files.retain(|(name, _)| name != "chat_template.jinja");
        let model = open(files)?;
        let text = |key: &str| {
            model
                .metadata()
                .optional_str(key)
                .map(|text| text.map(str::to_owned))
        };
        Ok::<_, Error>((
            text("tokenizer.chat_template")?,
            text("tokenizer.chat_template.tool_use")?,
        ))
    };
    let both = (Some("a".to_owned()), Some("b".to_owned()));
    let list =
        json!([{ "name": "default", "template": "a" }, { "name": "tool_use", "template": "b" }]);
    assert_eq!(texts(list)?, both);
    assert_eq!(texts(json!({ "default": "a", "tool_use": "b" }))?, both);
    assert_eq!(texts(json!("a"))?, (both.0, None));
    Ok(())
}
