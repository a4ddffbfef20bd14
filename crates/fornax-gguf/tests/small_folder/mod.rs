//! The smallest model folder: a llama of one layer with eight tokens.
#![allow(dead_code)]

use serde_json::{Map, Value, json};

/// Its tensors and their shapes.
pub const TENSORS: [(&str, &[usize]); 12] = [
    ("lm_head.weight", &[8, 8]),
    ("model.embed_tokens.weight", &[8, 8]),
    ("model.layers.0.input_layernorm.weight", &[8]),
    ("model.layers.0.mlp.down_proj.weight", &[8, 4]),
    ("model.layers.0.mlp.gate_proj.weight", &[4, 8]),
    ("model.layers.0.mlp.up_proj.weight", &[4, 8]),
    ("model.layers.0.post_attention_layernorm.weight", &[8]),
    ("model.layers.0.self_attn.k_proj.weight", &[4, 8]),
    ("model.layers.0.self_attn.o_proj.weight", &[8, 8]),
    ("model.layers.0.self_attn.q_proj.weight", &[8, 8]),
    ("model.layers.0.self_attn.v_proj.weight", &[4, 8]),
    ("model.norm.weight", &[8]),
];

/// The values of a tensor: its own sequence of small numbers.
pub fn values(name: &str, len: usize) -> Vec<f32> {
    let seed = name.bytes().map(u32::from).sum::<u32>();
    (0..len as u32)
        .map(|i| ((seed + 7 * i) % 31) as f32 / 8.0)
        .collect()
}

/// All files.
pub fn files() -> Vec<(String, Vec<u8>)> {
    let file = |name: &str, value: Value| (name.to_owned(), value.to_string().into_bytes());
    vec![
        file("config.json", config()),
        file("tokenizer.json", tokenizer()),
        file(
            "tokenizer_config.json",
            json!({ "bos_token": "<s>", "eos_token": { "content": "</s>" } }),
        ),
        file("generation_config.json", json!({ "eos_token_id": [1, 7] })),
        ("chat_template.jinja".to_owned(), b"{{ messages }}".to_vec()),
        ("model.safetensors".to_owned(), safetensors(&TENSORS)),
    ]
}

/// The folder with one file changed.
pub fn with(name: &str, content: impl Into<Vec<u8>>) -> Vec<(String, Vec<u8>)> {
    replaced(files(), name, content)
}

/// These files with one changed.
pub fn replaced(
    mut files: Vec<(String, Vec<u8>)>,
    name: &str,
    content: impl Into<Vec<u8>>,
) -> Vec<(String, Vec<u8>)> {
    let file = files.iter_mut().find(|(other, _)| other == name);
    file.expect("a file of the folder").1 = content.into();
    files
}

/// The folder with some settings of its configuration changed.
pub fn configured(settings: &[(&str, Value)]) -> Vec<(String, Vec<u8>)> {
    let mut config = config();
    for (key, value) in settings {
        config[*key] = value.clone();
    }
    with("config.json", config.to_string())
}

/// The letters that stand for the bytes 0 to 255 in byte-level vocabularies.
pub fn letters() -> Vec<String> {
    let is_printable = |byte: &u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 0x100..;
    let letter = |byte: u32| match is_printable(&byte) {
        true => byte,
        false => others.next().expect("there are more"),
    };
    let letters = (0..256).map(letter).map(char::from_u32);
    letters
        .map(|letter| letter.expect("a character").to_string())
        .collect()
}

/// The folder with a token for each byte, so that any text can be said.
pub fn runnable() -> Vec<(String, Vec<u8>)> {
    let (mut config, mut tokenizer) = (config(), tokenizer());
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
    let vocabulary = vocabulary.expect("a vocabulary");
    let mut rows = 8;
    for letter in letters() {
        if !vocabulary.contains_key(&letter) {
            vocabulary.insert(letter, json!(rows));
            rows += 1;
        }
    }
    config["vocab_size"] = json!(rows);
    let table = [rows, 8];
    let tensors = TENSORS.map(|(name, shape)| match name {
        "lm_head.weight" | "model.embed_tokens.weight" => (name, &table[..]),
        _ => (name, shape),
    });
    let files = replaced(files(), "config.json", config.to_string());
    let files = replaced(files, "tokenizer.json", tokenizer.to_string());
    replaced(files, "model.safetensors", safetensors(&tensors))
}

/// The same with its tensors in two files and an index.
pub fn sharded() -> Vec<(String, Vec<u8>)> {
    let mut files = files();
    files.pop();
    let names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let (first, second) = TENSORS.split_at(5);
    let mut map = Map::new();
    for (name, tensors) in names.iter().zip([first, second]) {
        tensors.iter().for_each(|(tensor, _)| {
            map.insert((*tensor).to_owned(), json!(name));
        });
        files.push(((*name).to_owned(), safetensors(tensors)));
    }
    let index = json!({ "metadata": {}, "weight_map": map }).to_string();
    files.push((
        "model.safetensors.index.json".to_owned(),
        index.into_bytes(),
    ));
    files
}

pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 4,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "vocab_size": 8, "hidden_act": "silu",
        "rope_theta": 10000.0, "tie_word_embeddings": false
    })
}

pub fn tokenizer() -> Value {
    json!({
        "model": {
            "type": "BPE",
            "vocab": { "a": 2, "b": 3, "ab": 4, "aab": 5 },
            "merges": [["a", "b"], "a ab"]
        },
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "use_regex": true },
        "added_tokens": [
            { "id": 0, "content": "<s>", "special": true },
            { "id": 1, "content": "</s>", "special": true },
            { "id": 6, "content": "<think>", "special": false }
        ],
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>" } }, { "Sequence": { "id": "A" } }],
            "special_tokens": { "<s>": { "ids": [0] } }
        }
    })
}

/// A safetensors file of F32 tensors.
pub fn safetensors(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let stored = tensors.iter().map(|&(name, shape)| {
        let values = values(name, shape.iter().product());
        let bytes = values.iter().flat_map(|value| value.to_le_bytes());
        (name, "F32", shape.to_vec(), bytes.collect())
    });
    stored_safetensors(stored)
}

/// A safetensors file: names, types, shapes and bytes.
pub fn stored_safetensors<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a str, Vec<usize>, Vec<u8>)>,
) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] });
        header.insert(name.to_owned(), entry);
    }
    let header = Value::Object(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &data].concat()
}
