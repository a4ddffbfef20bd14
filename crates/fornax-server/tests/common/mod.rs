//! A server of this process on a port of its own, and a client that hides nothing of HTTP.
#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::thread::JoinHandle;

use fornax::{LoadOptions, Model, Source};
use fornax_server::{Address, Config, Ended, Listen, LogForm, Server};
use serde_json::{Value, json};
use tokio::sync::oneshot;

pub const BUILT_IN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../fornax-cli/model/fornax-mini.gguf"
);
pub const NAME: &str = "fornax-mini";

/// A server that stops when it is told to, or with the process.
pub struct Running {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    pub thread: JoinHandle<Ended>,
}

impl Running {
    pub fn stop(mut self) -> Ended {
        self.stop.take().unwrap().send(()).unwrap();
        self.thread.join().unwrap()
    }
}

pub fn load(source: impl Into<Source>, sequences: usize) -> Model {
    let options = LoadOptions {
        sequences,
        ..LoadOptions::default()
    };
    Model::load(source, &options).unwrap()
}

/// Starts a server for a model on a port that the system chooses.
pub fn start(model: Model, change: impl FnOnce(&mut Config)) -> Running {
    let listen = Listen::Tcp {
        host: "127.0.0.1".to_owned(),
        port: 0,
    };
    start_on(model, listen, change)
}

/// Starts a server for a model. A socket has no address to tell.
pub fn start_on(model: Model, listen: Listen, change: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config::new(NAME);
    config.log = LogForm::Off;
    change(&mut config);
    let (told, address) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        runtime.unwrap().block_on(async {
            let server = Server::bind(model, config, &listen).await.unwrap();
            told.send(match server.address() {
                Address::Tcp(address) => *address,
                Address::Unix(_) => ([0, 0, 0, 0], 0).into(),
            })
            .unwrap();
            let until = async {
                let _ = stopped.await;
            };
            server.run(until).await
        })
    });
    Running {
        address: address.recv().unwrap(),
        stop: Some(stop),
        thread,
    }
}

/// One server for all tests of a file that need nothing special.
pub fn shared() -> SocketAddr {
    static SHARED: OnceLock<Running> = OnceLock::new();
    SHARED
        .get_or_init(|| start(load(BUILT_IN, 4), |_| {}))
        .address
}

/// What a server answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Lines, names in lower case.
    pub headers: Vec<String>,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.headers.iter().filter_map(|line| line.split_once(": "));
        lines
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// The events of a stream; the last one must be `[DONE]`, which is left out.
    pub fn events(&self) -> Vec<Value> {
        let mut events = data(&self.body);
        assert_eq!(events.pop(), Some(json!("[DONE]")), "{self:?}");
        events
    }

    /// The error's message, field and code.
    pub fn error(&self) -> (String, Value, Value) {
        let error = &self.json()["error"];
        let message = error["message"].as_str().unwrap().to_owned();
        (message, error["param"].clone(), error["code"].clone())
    }
}

/// The data of the events in a stream; `[DONE]` as a string.
pub fn data(body: &str) -> Vec<Value> {
    let lines = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let value = |line| serde_json::from_str(line).unwrap_or_else(|_| json!(line));
    lines.map(value).collect()
}

/// Sends a request and leaves the connection open.
pub fn send(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// Reads until the server closes.
pub fn receive(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let status = line().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty()));
    let headers: Vec<String> = headers.collect();
    let mut body = Vec::new();
    reader.read_to_end(&mut body).unwrap();
    if headers
        .iter()
        .any(|line| line == "transfer-encoding: chunked")
    {
        body = unchunked(&body);
    }
    Reply {
        status,
        headers,
        body: String::from_utf8(body).unwrap(),
    }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&body[..end]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        let start = end + 2;
        whole.extend_from_slice(&body[start..start + size]);
        body = &body[start + size + 2..];
    }
    whole
}

pub fn get(address: SocketAddr, path: &str) -> Reply {
    receive(send(address, "GET", path, "", ""))
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    receive(send(address, "POST", path, "", &body.to_string()))
}

/// The value of a counter or gauge.
pub fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = get(address, "/metrics").body;
    let line = text.lines().find(|line| line.starts_with(name));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A greedy chat without a thought.
pub fn chat(content: &str, extra: Value) -> Value {
    let mut body = json!({
        "model": NAME,
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        "max_tokens": 12,
        "chat_template_kwargs": {"enable_thinking": false},
    });
    let extra = extra.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(extra);
    body
}
