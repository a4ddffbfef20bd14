//! What clients do: some ask and listen, most do something that they should not.

use std::{
    net::SocketAddr,
    sync::atomic::Ordering,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    Tally,
    http::{Connection, NotTakenIn, Reply},
    server::{BODY_LIMIT, Limits},
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// One client, with choices of its own.
pub struct Client<'a> {
    /// SplitMix64 (Steele, Lea, Flood 2014).
    state: u64,
    address: SocketAddr,
    limits: Limits,
    tally: &'a Tally,
    /// Kept from request to request where both sides want that.
    connection: Option<(Connection, Instant)>,
}

/// A connection that was idle for longer may be closed by the server at any moment.
const FRESH: Duration = Duration::from_secs(5);
/// Who came so shortly before the server was told to stop may not have been let in.
const AT_THE_DOOR: Duration = Duration::from_secs(1);

type Behaviour<'a> = fn(&mut Client<'a>) -> Result<&'static str>;

impl<'a> Client<'a> {
    /// What a client does next, each as likely as the others.
    const BEHAVIOURS: [Behaviour<'a>; 14] = [
        Self::listens,
        Self::listens,
        Self::waits,
        Self::waits,
        Self::completes,
        Self::embeds,
        Self::leaves_a_stream,
        Self::leaves_before_the_answer,
        Self::reads_slowly,
        Self::sends_nonsense,
        Self::sends_no_http,
        Self::asks_too_much,
        Self::stops_within_its_head,
        Self::stops_within_its_body,
    ];

    /// A client that does other things than all others of this seed.
    pub fn new(
        seed: u64,
        index: usize,
        address: SocketAddr,
        limits: &Limits,
        tally: &'a Tally,
    ) -> Self {
        Self {
            state: seed << 32 | index as u64,
            address,
            limits: *limits,
            tally,
            connection: None,
        }
    }

    /// Misbehaves until it is told that all is over.
    pub fn run(&mut self) {
        while !self.tally.is_over.load(Ordering::SeqCst) {
            let behaviour = Self::BEHAVIOURS[self.below(Self::BEHAVIOURS.len())];
            let start = Instant::now();
            match behaviour(self) {
                Ok(what) => self.tally.count(what),
                Err(error) => {
                    self.connection = None;
                    // A server that ends lets nobody in; what it had taken in it must finish.
                    let stopping = self.tally.stopping.get();
                    let is_late = stopping.is_some_and(|&at| start + AT_THE_DOOR > at);
                    if !(is_late && error.is::<NotTakenIn>()) {
                        self.tally.wrong(format!("{error:#}"));
                    }
                }
            }
            sleep(Duration::from_millis(self.below(40) as u64));
        }
    }

    /// A stream, to its end.
    fn listens(&mut self) -> Result<&'static str> {
        let body = self.conversation(true);
        let mut connection = self.connection()?;
        connection.send("POST", CHAT, &body)?;
        let (mut reply, length) = connection.receive_head()?;
        if length.is_some() {
            return self.is_busy(connection, reply);
        }
        let mut events = Vec::new();
        while connection
            .receive_chunk(&mut events)
            .context("a stream broke off")?
        {}
        reply.body = String::from_utf8(events)?;
        let last = reply.body.trim_end().lines().last().unwrap_or_default();
        let is_error = last.starts_with("data: {\"error\":");
        ensure!(
            last == "data: [DONE]" || is_error,
            "a stream ended with `{last}`"
        );
        self.connection = Some((connection, Instant::now()));
        Ok("streams")
    }

    /// An answer as a whole.
    fn waits(&mut self) -> Result<&'static str> {
        let body = self.conversation(false);
        let reply = self.ask(CHAT, &body)?;
        let reply = match reply {
            Ok(reply) => reply,
            Err(busy) => return Ok(busy),
        };
        let told: Value = serde_json::from_str(&reply.body)?;
        let text = told["choices"][0]["message"]["content"].as_str();
        ensure!(text.is_some(), "an answer without a text: {told}");
        Ok("answers")
    }

    fn completes(&mut self) -> Result<&'static str> {
        let story = "Once upon a time there was a fox. ".repeat(1 + self.below(10));
        let body = json!({
            "prompt": [story, "An owl"], "max_tokens": 1 + self.below(20), "n": 1 + self.below(2),
            "echo": self.below(2) == 0, "logprobs": self.below(3),
        });
        let reply = self.ask(COMPLETIONS, &body.to_string())?;
        Ok(reply.map_or_else(|busy| busy, |_| "completions"))
    }

    fn embeds(&mut self) -> Result<&'static str> {
        let texts = vec!["a fox and an owl"; 1 + self.below(8)];
        let reply = self.ask("/v1/embeddings", &json!({"input": texts}).to_string())?;
        Ok(reply.map_or_else(|busy| busy, |_| "embeddings"))
    }

    fn leaves_a_stream(&mut self) -> Result<&'static str> {
        let body = self.conversation(true);
        let mut connection = self.connection()?;
        connection.send("POST", CHAT, &body)?;
        let (_, length) = connection.receive_head()?;
        if length.is_none() {
            let mut events = Vec::new();
            for _ in 0..self.below(5) {
                if !connection.receive_chunk(&mut events)? {
                    break;
                }
            }
        }
        Ok("streams left")
    }

    fn leaves_before_the_answer(&mut self) -> Result<&'static str> {
        let body = self.conversation(false);
        let mut connection = self.connection()?;
        connection.send("POST", CHAT, &body)?;
        sleep(Duration::from_millis(self.below(100) as u64));
        Ok("answers left")
    }

    /// Takes a byte now and then, and in the end leaves.
    fn reads_slowly(&mut self) -> Result<&'static str> {
        let body = self.conversation(true);
        let mut connection = self.connection()?;
        connection.send("POST", CHAT, &body)?;
        for _ in 0..self.below(30) {
            sleep(Duration::from_millis(100));
            if !connection.receive_byte()? {
                break;
            }
        }
        Ok("slow readers")
    }

    fn sends_nonsense(&mut self) -> Result<&'static str> {
        let mut body = self.conversation(false).into_bytes();
        for _ in 0..=self.below(3) {
            let at = self.below(body.len());
            body[at] = b" {}[]\",:-0aZ\\"[self.below(13)];
        }
        let body = String::from_utf8(body).context("invariant: all of it is ASCII")?;
        let mut connection = self.connection()?;
        connection.send("POST", CHAT, &body)?;
        let reply = connection.receive()?;
        // Some nonsense makes sense.
        ensure!(
            [200, 400, 404, 429].contains(&reply.status),
            "nonsense was answered by {reply:?}"
        );
        self.keep(connection, &reply);
        Ok("mutated bodies")
    }

    fn sends_no_http(&mut self) -> Result<&'static str> {
        let mut connection = Connection::open(self.address)?;
        let bytes: Vec<u8> = (0..200).map(|_| self.below(256) as u8).collect();
        connection.send_bytes(&[&bytes[..], b"\r\n\r\n"].concat())?;
        self.is_closed(connection, self.limits.head)?;
        Ok("no HTTP")
    }

    fn asks_too_much(&mut self) -> Result<&'static str> {
        let (content, status) = match self.below(2) {
            0 => ("fox ".repeat(3000), 400),
            _ => ("x".repeat(BODY_LIMIT), 413),
        };
        let body = json!({"messages": [{"role": "user", "content": content}]}).to_string();
        let mut connection = self.connection()?;
        if let Err(error) = connection.send("POST", CHAT, &body) {
            // It may close before it has all of what is too much.
            ensure!(status == 413, error);
            return Ok("oversized prompts");
        }
        match connection.receive() {
            Ok(reply) => ensure!(
                [status, 429].contains(&reply.status),
                "too much was answered by {reply:?}"
            ),
            Err(error) => ensure!(status == 413, error),
        }
        Ok("oversized prompts")
    }

    /// Half-open: the server must not wait for ever.
    fn stops_within_its_head(&mut self) -> Result<&'static str> {
        let mut connection = Connection::open(self.address)?;
        connection.send_bytes(b"POST /v1/chat/completions HTTP/1.1\r\nHost: s")?;
        self.is_closed(connection, self.limits.head)?;
        Ok("half-open")
    }

    fn stops_within_its_body(&mut self) -> Result<&'static str> {
        let mut connection = Connection::open(self.address)?;
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: s\r\nContent-Length: 99\r\n\r\n{";
        connection.send_bytes(head.as_bytes())?;
        let reply = connection.receive()?;
        ensure!(reply.status == 408, "half a body was answered by {reply:?}");
        Ok("half a body")
    }

    /// A story with the beginning that many share, of some length.
    fn conversation(&mut self, stream: bool) -> String {
        let system = "You are a helpful assistant who tells stories. ".repeat(self.below(8));
        // Mostly short; now and then one that outgrows its pages.
        let most = [30, 30, 30, 400][self.below(4)];
        let animal = ["fox", "owl", "bear", "mouse"][self.below(4)];
        let body = json!({
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": format!("Tell me a story about a {animal}")},
            ],
            "max_tokens": 1 + self.below(most),
            "temperature": self.below(2),
            "priority": self.below(5),
            "stream": stream,
        });
        body.to_string()
    }

    /// Asks and waits; `Err` inside is what to count where the server is too busy.
    fn ask(&mut self, path: &str, body: &str) -> Result<Result<Reply, &'static str>> {
        let mut connection = self.connection()?;
        connection.send("POST", path, body)?;
        let reply = connection.receive()?;
        self.keep(connection, &reply);
        match reply.status {
            200 => Ok(Ok(reply)),
            429 if reply.retry_after => Ok(Err("told to come back")),
            _ => bail!("{path} answered {reply:?}"),
        }
    }

    /// An answer in one piece to who asked for a stream.
    fn is_busy(&mut self, connection: Connection, reply: Reply) -> Result<&'static str> {
        // Its body was not read.
        drop(connection);
        ensure!(
            reply.status == 429 && reply.retry_after,
            "a stream was refused by {reply:?}"
        );
        Ok("told to come back")
    }

    fn is_closed(&self, mut connection: Connection, limit: Duration) -> Result<()> {
        let start = Instant::now();
        // Closed with or without a word.
        while connection.receive_byte().unwrap_or(false) {}
        let limit = limit * 10;
        ensure!(
            start.elapsed() < limit,
            "a connection was kept for more than {limit:?}"
        );
        Ok(())
    }

    fn connection(&mut self) -> Result<Connection> {
        match self.connection.take() {
            Some((connection, used)) if used.elapsed() < FRESH && self.below(4) > 0 => {
                Ok(connection)
            }
            _ => Connection::open(self.address),
        }
    }

    fn keep(&mut self, connection: Connection, reply: &Reply) {
        self.connection = reply.keeps.then(|| (connection, Instant::now()));
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}
