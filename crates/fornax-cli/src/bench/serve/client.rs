//! One request at a time to an OpenAI server, its answer timed chunk by chunk.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::misuse::misuse;

/// Where a server listens and how it is spoken to.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Host and port.
    authority: String,
    /// What stands before `/v1`.
    base: String,
    key: Option<String>,
}

/// A streamed answer and when it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub text: String,
    /// From the request to its first chunk of the answer; `None` if there was none.
    pub first: Option<Duration>,
    /// Between chunks of the answer.
    pub gaps: Vec<Duration>,
    /// From the request to its end.
    pub total: Duration,
    /// Tokens of the prompt and of the answer, as the server counts them.
    pub prompt_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    /// Tokens of the prompt that were not computed again.
    pub cached_tokens: Option<u64>,
}

impl Server {
    /// Reads `http://host:port`, with or without `/v1` behind it.
    pub fn new(url: &str, key: Option<String>) -> Result<Self> {
        if url.starts_with("https://") {
            misuse!("{url}: only http is spoken here; measure behind whatever ends the encryption");
        }
        let Some(rest) = url.strip_prefix("http://") else {
            misuse!("{url}: write http://host:port");
        };
        let (authority, base) = match rest.split_once('/') {
            Some((authority, base)) => (authority, format!("/{base}")),
            None => (rest, String::new()),
        };
        if authority.is_empty() {
            misuse!("{url}: there is no host; write http://host:port");
        }
        let authority = match authority.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => authority.to_owned(),
            _ => format!("{authority}:80"),
        };
        let base = base.trim_end_matches('/');
        Ok(Self {
            authority,
            base: base.strip_suffix("/v1").unwrap_or(base).to_owned(),
            key,
        })
    }

    /// What the server calls its first model.
    pub async fn model(&self) -> Result<String> {
        let response = self.send(Method::GET, "/v1/models", None).await?;
        let body = whole(response).await?;
        let models: Value = serde_json::from_slice(&body).context("/v1/models is no JSON")?;
        let name = models["data"][0]["id"].as_str();
        Ok(name
            .context("/v1/models names no model; give --model-name")?
            .to_owned())
    }

    /// Sends a request that asks for a stream, and waits for its end.
    pub async fn stream(&self, path: &str, body: &Value) -> Result<Answer> {
        let start = Instant::now();
        let mut response = self.send(Method::POST, path, Some(body)).await?;
        let mut answer = Answer::default();
        let (mut lines, mut last) = (Lines::default(), start);
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame.context("the answer broke off")?;
            let now = Instant::now();
            for line in lines.push(frame.data_ref().map_or(&[], |data| data)) {
                let Some(event) = line.strip_prefix("data:").map(str::trim) else {
                    continue;
                };
                if event == "[DONE]" {
                    continue;
                }
                let event: Value = serde_json::from_str(event)
                    .with_context(|| format!("an event is no JSON: {event}"))?;
                if answer.take(&event)? {
                    match answer.first {
                        None => answer.first = Some(now - start),
                        Some(_) => answer.gaps.push(now - last),
                    }
                    last = now;
                }
            }
        }
        answer.total = start.elapsed();
        Ok(answer)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<Incoming>> {
        let stream = TcpStream::connect(&self.authority)
            .await
            .with_context(|| format!("{}: nobody answers; is the server up?", self.authority))?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the answer; what went wrong on the way is told there.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::HOST, &self.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let response = sender
            .send_request(request.body(Full::<Bytes>::from(body))?)
            .await?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => {
                let told = whole(response).await?;
                let told = String::from_utf8_lossy(&told);
                bail!("{path} was answered with {status}: {}", told.trim());
            }
        }
    }
}

async fn whole(response: Response<Incoming>) -> Result<Bytes> {
    let body = response.into_body().collect().await;
    Ok(body.context("the answer broke off")?.to_bytes())
}

impl Answer {
    /// Takes in an event; true where it is a piece of the answer. One without text is too, for some
    /// tokens have none; but not one that only names a role or a reason to end.
    fn take(&mut self, event: &Value) -> Result<bool> {
        if let Some(error) = event.get("error") {
            bail!("the server ended the answer: {error}");
        }
        if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
            self.prompt_tokens = usage["prompt_tokens"].as_u64();
            self.output_tokens = usage["completion_tokens"].as_u64();
            self.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
        }
        let choice = &event["choices"][0];
        // A completion has its text here, a chat there; thinking models beside it.
        let texts = [
            &choice["text"],
            &choice["delta"]["content"],
            &choice["delta"]["reasoning_content"],
        ];
        let says_something_else =
            choice["delta"]["role"].is_string() || choice["finish_reason"].is_string();
        let mut is_piece = false;
        for text in texts.into_iter().filter_map(Value::as_str) {
            self.text.push_str(text);
            is_piece |= !text.is_empty() || !says_something_else;
        }
        Ok(is_piece)
    }
}

/// Puts pieces of a stream together to lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The lines that are now complete.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(bytes);
        let Some(end) = self.0.iter().rposition(|&byte| byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.0.split_off(end + 1);
        let complete = std::mem::replace(&mut self.0, rest);
        let text = String::from_utf8_lossy(&complete);
        text.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_address_is_read_with_and_without_its_version() {
        let server =
            |url: &str| Server::new(url, None).map(|server| (server.authority, server.base));
        let of = |authority: &str, base: &str| (authority.to_owned(), base.to_owned());
        assert_eq!(
            server("http://127.0.0.1:8080").unwrap(),
            of("127.0.0.1:8080", "")
        );
        assert_eq!(server("http://host/v1/").unwrap(), of("host:80", ""));
        assert_eq!(server("http://[::1]:9/a/v1").unwrap(), of("[::1]:9", "/a"));
        for (url, part) in [
            ("https://x", "only http"),
            ("x:80", "http://host"),
            ("http://", "no host"),
        ] {
            let error = server(url).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn lines_come_whole_whatever_the_pieces() {
        let mut lines = Lines::default();
        assert!(
            lines
                .push("data: \u{e9}".as_bytes().split_at(7).0)
                .is_empty()
        );
        let rest = ["\u{e9}".as_bytes().split_at(1).1, b"\r\n\ndata: b\nda"].concat();
        assert_eq!(lines.push(&rest), ["data: \u{e9}", "", "data: b"]);
        assert_eq!(lines.push(b"ta\n"), ["data"]);
    }

    #[test]
    fn events_of_chats_and_completions_are_understood() {
        let mut answer = Answer::default();
        let mut take = |event: Value| answer.take(&event);
        assert!(
            !take(json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]})).unwrap()
        );
        assert!(take(json!({"choices": [{"delta": {"content": "a"}}]})).unwrap());
        assert!(take(json!({"choices": [{"text": "b"}]})).unwrap());
        // As llama-server sends tokens without text, and then the end.
        assert!(take(json!({"choices": [{"text": "", "finish_reason": null}]})).unwrap());
        assert!(!take(json!({"choices": [{"text": "", "finish_reason": "length"}]})).unwrap());
        assert!(!take(json!({"choices": [{"delta": {}, "finish_reason": "stop"}]})).unwrap());
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}});
        assert!(!take(json!({"choices": [], "usage": usage})).unwrap());
        assert!(take(json!({"error": {"message": "no"}})).is_err());
        assert_eq!(answer.text, "ab");
        assert_eq!(
            (
                answer.prompt_tokens,
                answer.output_tokens,
                answer.cached_tokens
            ),
            (Some(7), Some(2), Some(3))
        );
    }
}
