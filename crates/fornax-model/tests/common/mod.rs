//! Tiny golden models, ready to run; used by several test programs.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;

use fornax_backend::{Backend, KvType, Reference};
use fornax_engine::{
    Engine, EngineOptions, EventKind, KvPolicy, Request, RequestId, SamplingParams, Task, Token,
};
use fornax_gguf::{DType, Gguf, GgufWriter, Tensor, Value};
use fornax_model::{LoadError, ModelRunner, RunnerOptions, WeightStorage};

/// The golden models, one an architecture or variant.
pub const MODELS: [&str; 13] = [
    "tiny-llama",
    "tiny-llama3",
    "tiny-qwen3",
    "tiny-qwen3moe",
    "tiny-llama-linear",
    "tiny-llama-yarn",
    "tiny-mistral",
    "tiny-qwen2",
    "tiny-qwen2moe",
    "tiny-gemma3",
    "tiny-gpt-oss",
    "tiny-deepseek2",
    "tiny-deepseek3",
];

/// A tensor's name, shape, bytes and type.
pub type Written = (String, Vec<usize>, Vec<u8>, DType);

/// Room for several sequences of up to 128 tokens.
pub fn options() -> RunnerOptions {
    RunnerOptions {
        context: 128,
        max_rows: 4,
        max_tokens: 128,
        page_size: 16,
        pages: 32,
        kv_type: KvType::F32,
        weights: WeightStorage::Native,
    }
}

/// A file of the golden folder.
pub fn open(name: &str) -> Gguf {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"));
    Gguf::open(folder.join(name)).unwrap()
}

/// A golden model on the reference.
pub fn load(model: &str, options: &RunnerOptions) -> ModelRunner<Reference> {
    ModelRunner::load(&open(&format!("{model}.gguf")), Reference, options).unwrap()
}

/// What loading a changed copy of a golden model says.
pub fn load_error(
    model: &str,
    metadata: impl Fn(&str, &Value) -> Option<Value>,
    tensor: impl Fn(Tensor<'_>) -> Option<Written>,
) -> LoadError {
    let file = rewritten(&open(&format!("{model}.gguf")), metadata, tensor);
    match ModelRunner::load(&file, Reference, &options()) {
        Ok(_) => panic!("the changed {model} loads"),
        Err(error) => error,
    }
}

/// A copy of a file with values and tensors changed or left out.
pub fn rewritten(
    file: &Gguf,
    metadata: impl Fn(&str, &Value) -> Option<Value>,
    tensor: impl Fn(Tensor<'_>) -> Option<Written>,
) -> Gguf {
    let entries = file.metadata().iter();
    let kept = entries.filter_map(|(key, value)| Some((key.to_owned(), metadata(key, value)?)));
    written(kept.collect(), file.tensors().filter_map(tensor))
}

/// A copy of a file with one value set, whether it was there or not.
pub fn with_value(file: &Gguf, key: &str, value: Value) -> Gguf {
    let entries = file.metadata().iter().filter(|(name, _)| *name != key);
    let mut entries: Vec<_> = entries
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    entries.push((key.to_owned(), value));
    written(entries, file.tensors().filter_map(same))
}

fn written(entries: Vec<(String, Value)>, tensors: impl Iterator<Item = Written>) -> Gguf {
    let mut writer = GgufWriter::new();
    for (key, value) in entries {
        writer.set(&key, value).unwrap();
    }
    let tensors: Vec<_> = tensors.collect();
    for (name, shape, _, dtype) in &tensors {
        writer.declare(name, *dtype, shape).unwrap();
    }
    let mut bytes = Vec::new();
    let mut out = writer.start(&mut bytes).unwrap();
    for (name, _, data, _) in &tensors {
        out.tensor(name, data).unwrap();
    }
    out.finish().unwrap();
    Gguf::from_bytes("changed.gguf", bytes).unwrap()
}

/// A tensor as it is.
pub fn same(view: Tensor<'_>) -> Option<Written> {
    Some((
        view.name.to_owned(),
        view.shape.to_vec(),
        view.data().into_owned(),
        view.dtype,
    ))
}

/// Runs requests together to their ends and gives each one's tokens.
pub fn texts(
    model: &str,
    options: &RunnerOptions,
    policy: KvPolicy,
    requests: Vec<Request>,
) -> Vec<Vec<Token>> {
    run(model, options, policy, requests)
        .into_iter()
        .map(|events| {
            let tokens = events.into_iter().filter_map(|event| match event {
                EventKind::Token { token, .. } => Some(token),
                EventKind::Failed(failure) => panic!("{failure}"),
                _ => None,
            });
            tokens.collect()
        })
        .collect()
}

/// The logits of a score request, run with others.
pub fn logits(events: Vec<EventKind>) -> Vec<f32> {
    let values = events.into_iter().filter_map(|event| match event {
        EventKind::Logits { values, .. } => Some(values),
        EventKind::Failed(failure) => panic!("{failure}"),
        _ => None,
    });
    values.flatten().collect()
}

/// Runs requests together to their ends.
pub fn run(
    model: &str,
    options: &RunnerOptions,
    policy: KvPolicy,
    requests: Vec<Request>,
) -> Vec<Vec<EventKind>> {
    run_on(load(model, options), policy, requests)
}

/// Runs requests together to their ends on a runner.
pub fn run_on<B: Backend>(
    runner: ModelRunner<B>,
    engine_options: impl Into<EngineOptions>,
    requests: Vec<Request>,
) -> Vec<Vec<EventKind>> {
    let mut engine = Engine::new(runner, engine_options).unwrap();
    let ids: Vec<RequestId> = requests
        .into_iter()
        .map(|request| engine.submit(request).unwrap())
        .collect();
    let mut events = vec![Vec::new(); ids.len()];
    while engine.step().is_some() {
        for event in engine.events() {
            let index = ids.iter().position(|id| *id == event.request).unwrap();
            events[index].push(event.kind);
        }
        engine.check();
    }
    events
}

/// Continues a prompt by some tokens.
pub fn generate(prompt: &[Token], sampling: SamplingParams, tokens: usize) -> Request {
    let mut request = Request::generate(prompt.to_vec(), sampling);
    if let Task::Generate(generation) = &mut request.task {
        generation.max_tokens = Some(tokens);
    }
    request
}

/// A token sequence that differs by `seed`, of plain byte tokens.
pub fn tokens(seed: u32, len: usize) -> Vec<Token> {
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) & 0xff
    };
    (0..len).map(|_| next()).collect()
}
