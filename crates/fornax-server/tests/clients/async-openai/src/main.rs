//! `fornax serve` as the Rust client `async-openai` sees it.
//!
//! Owns nothing of the server: it is started as any user starts it, with the built-in model, by
//! the path of its program. What differs from expectation is a panic.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::OpenAIError;
use async_openai::types::chat::CreateChatCompletionRequest;
use async_openai::types::completions::CreateCompletionRequest;
use async_openai::types::embeddings::CreateEmbeddingRequest;
use futures::StreamExt;
use futures::future::join_all;
use serde_json::{Value, json};

const MODEL: &str = "fornax-mini";
const KEY: &str = "a-key-of-this-test";

#[tokio::main]
async fn main() {
    let program = std::env::args().nth(1).expect("the path of `fornax`");
    let (mut server, url) = start(&program);
    let client = client(&url, KEY);
    chat(&client).await;
    stream(&client).await;
    choices_and_logprobs(&client).await;
    completions(&client).await;
    embeddings(&client).await;
    models(&client).await;
    errors(&client, &url).await;
    many(&client).await;
    let id = server.id().to_string();
    Command::new("kill").args(["-TERM", &id]).status().expect("kill");
    let status = server.wait().expect("the server's end");
    assert!(status.success(), "the server ended with {status}");
    println!("async-openai: all checks passed");
}

/// A server on a port that the system chose, and its address.
fn start(program: &str) -> (Child, String) {
    let mut server = Command::new(program)
        .args(["serve", "--port", "0", "--parallel", "8", "--log", "off", "--api-key", KEY])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the server's program");
    let stdout = server.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let line = lines.find(|line| line.starts_with("listening on "));
    let line = line.expect("the server ended before it listened");
    (server, line.trim_start_matches("listening on ").to_owned())
}

fn client(url: &str, key: &str) -> Client<OpenAIConfig> {
    let config = OpenAIConfig::new()
        .with_api_base(format!("{url}/v1"))
        .with_api_key(key);
    Client::with_config(config)
}

/// A question in the client's own type, which writes it as the client does.
fn question(text: &str, extra: Value) -> CreateChatCompletionRequest {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0.0,
        "max_completion_tokens": 200,
    });
    let fields = body.as_object_mut().expect("an object");
    fields.extend(extra.as_object().expect("an object").clone());
    serde_json::from_value(body).expect("a request of the client")
}

async fn answer(client: &Client<OpenAIConfig>, request: CreateChatCompletionRequest) -> String {
    let answer = client.chat().create(request).await.expect("an answer");
    answer.choices[0].message.content.clone().expect("a text")
}

async fn chat(client: &Client<OpenAIConfig>) {
    let request = question("What is 12 + 30?", json!({}));
    let answer = client.chat().create(request).await.expect("an answer");
    let text = answer.choices[0].message.content.clone().expect("a text");
    assert!(text.contains("42"), "{text}");
    assert_eq!(answer.model, MODEL);
    let usage = answer.usage.expect("the usage");
    assert_eq!(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
    assert!(usage.prompt_tokens_details.expect("details").cached_tokens.is_some());
}

async fn stream(client: &Client<OpenAIConfig>) {
    let story = "Tell me a story about a fox";
    let bounds = json!({"max_completion_tokens": 30});
    let whole = answer(client, question(story, bounds)).await;
    let extra = json!({"max_completion_tokens": 30, "stream_options": {"include_usage": true}, "stream": true});
    let stream = client.chat().create_stream(question(story, extra)).await;
    let chunks: Vec<_> = stream.expect("a stream").collect().await;
    let chunks: Vec<_> = chunks.into_iter().map(|chunk| chunk.expect("a chunk")).collect();
    let texts = chunks.iter().flat_map(|chunk| &chunk.choices);
    let text: String = texts.filter_map(|choice| choice.delta.content.clone()).collect();
    assert_eq!(text, whole);
    let usage = chunks.last().and_then(|chunk| chunk.usage.clone()).expect("the usage");
    assert_eq!(usage.completion_tokens, 30);
}

async fn choices_and_logprobs(client: &Client<OpenAIConfig>) {
    let extra = json!({
        "n": 3, "seed": 1, "temperature": 1.0, "max_completion_tokens": 20,
        "logprobs": true, "top_logprobs": 2,
    });
    let request = question("Tell me a story", extra);
    let told = client.chat().create(request).await.expect("answers");
    assert_eq!(told.choices.len(), 3);
    for choice in &told.choices {
        let logprobs = choice.logprobs.as_ref().expect("log-probabilities");
        let tokens = logprobs.content.as_ref().expect("tokens");
        assert!(tokens.iter().all(|token| token.top_logprobs.len() == 2));
        let bytes = tokens.iter().flat_map(|token| token.bytes.clone().expect("bytes"));
        let text = String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned();
        assert_eq!(Some(text), choice.message.content);
    }
}

async fn completions(client: &Client<OpenAIConfig>) {
    let body = json!({
        "model": MODEL, "prompt": ["Once upon a time", "There was"], "temperature": 0.0,
        "max_tokens": 8, "echo": true, "logprobs": 2,
    });
    let request: CreateCompletionRequest = serde_json::from_value(body).expect("a request");
    let told = client.completions().create(request).await.expect("texts");
    assert_eq!(told.choices.len(), 2);
    assert!(told.choices[1].text.starts_with("There was"));
    let logprobs = told.choices[0].logprobs.as_ref().expect("log-probabilities");
    assert_eq!(logprobs.tokens.len(), logprobs.token_logprobs.len());
}

async fn embeddings(client: &Client<OpenAIConfig>) {
    let request = |extra: Value| -> CreateEmbeddingRequest {
        let mut body = json!({"model": MODEL, "input": ["a fox", "an owl"]});
        let fields = body.as_object_mut().expect("an object");
        fields.extend(extra.as_object().expect("an object").clone());
        serde_json::from_value(body).expect("a request")
    };
    let floats = client.embeddings().create(request(json!({}))).await;
    let floats = floats.expect("vectors");
    let encoded = request(json!({"encoding_format": "base64"}));
    let encoded = client.embeddings().create_base64(encoded).await.expect("vectors");
    for (floats, encoded) in floats.data.iter().zip(encoded.data) {
        let length: f32 = floats.embedding.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
        let encoded: Vec<f32> = encoded.embedding.into();
        assert_eq!(floats.embedding, encoded);
    }
}

async fn models(client: &Client<OpenAIConfig>) {
    let models = client.models().list().await.expect("models");
    let names: Vec<_> = models.data.iter().map(|model| model.id.as_str()).collect();
    assert_eq!(names, [MODEL]);
    let model = client.models().retrieve(MODEL).await.expect("the model");
    assert_eq!(model.owned_by, "fornax");
}

async fn errors(openai: &Client<OpenAIConfig>, url: &str) {
    let refused = async |client: &Client<OpenAIConfig>, request| {
        match client.chat().create(request).await {
            Err(OpenAIError::ApiError(error)) => (error.status_code.as_u16(), error.api_error),
            other => panic!("{other:?} is no refusal"),
        }
    };
    let (status, error) = refused(openai, question("Hi", json!({"model": "gpt-9"}))).await;
    assert_eq!((status, error.code.as_deref()), (404, Some("model_not_found")));
    let (status, error) = refused(openai, question("Hi", json!({"temperature": -1.0}))).await;
    assert_eq!((status, error.param.as_deref()), (400, Some("temperature")));
    let (status, error) = refused(openai, question("Hi", json!({"store": true}))).await;
    assert_eq!((status, error.param.as_deref()), (400, Some("store")));
    let (status, error) = refused(openai, question(&"fox ".repeat(3000), json!({}))).await;
    assert_eq!(
        (status, error.code.as_deref()),
        (400, Some("context_length_exceeded"))
    );
    let stranger = client(url, "wrong");
    let (status, error) = refused(&stranger, question("Hi", json!({}))).await;
    assert_eq!((status, error.code.as_deref()), (401, Some("invalid_api_key")));
}

/// 64 at once are told what each is told alone.
async fn many(client: &Client<OpenAIConfig>) {
    let request = |index: usize| {
        let story = format!("Tell me a story about {} foxes", index % 16);
        let extra = json!({"max_completion_tokens": 12, "seed": index, "temperature": (index % 2) as f32});
        question(&story, extra)
    };
    let together = join_all((0..64).map(|index| answer(client, request(index)))).await;
    for (index, together) in together.iter().enumerate() {
        assert_eq!(together, &answer(client, request(index)).await, "client {index}");
    }
}
