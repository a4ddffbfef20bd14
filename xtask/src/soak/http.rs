//! As much HTTP as a client needs that wants to misbehave.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

/// A stream that says nothing for so long is stuck: the server pings far more often.
const STUCK: Duration = Duration::from_secs(90);

/// Why there is no answer: the server is not there, or closed the door.
#[derive(Debug)]
pub struct NotTakenIn;

impl fmt::Display for NotTakenIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server answered nothing")
    }
}

/// One connection, for one request after another.
pub struct Connection {
    stream: BufReader<TcpStream>,
}

/// What a request was answered.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// Whether another request can follow.
    pub keeps: bool,
    pub retry_after: bool,
    pub body: String,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).context(NotTakenIn)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(STUCK))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send(&mut self, method: &str, path: &str, body: &str) -> Result<()> {
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        self.send_bytes(&[head.as_bytes(), body.as_bytes()].concat())
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(bytes).context(NotTakenIn)
    }

    /// Reads a whole answer.
    ///
    /// # Errors
    /// It breaks off, or nothing comes for too long.
    pub fn receive(&mut self) -> Result<Reply> {
        let (mut reply, length) = self.receive_head()?;
        let mut body = Vec::new();
        match length {
            Some(length) => {
                body.resize(length, 0);
                self.stream.read_exact(&mut body)?;
            }
            None => while self.receive_chunk(&mut body)? {},
        }
        reply.body = String::from_utf8(body)?;
        Ok(reply)
    }

    /// Reads the head of an answer, and how long the body is; `None` for one that comes in chunks.
    ///
    /// # Errors
    /// It breaks off, or nothing comes for too long.
    pub fn receive_head(&mut self) -> Result<(Reply, Option<usize>)> {
        let status = self.line().context(NotTakenIn)?;
        let code = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut reply = Reply {
            status: code.with_context(|| format!("`{status}` is no status"))?,
            keeps: true,
            retry_after: false,
            body: String::new(),
        };
        let mut length = Some(0);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(": ") {
                None => return Ok((reply, length)),
                Some(("content-length", told)) => length = Some(told.parse()?),
                Some(("transfer-encoding", "chunked")) => length = None,
                Some(("connection", "close")) => reply.keeps = false,
                Some(("retry-after", _)) => reply.retry_after = true,
                Some(_) => {}
            }
        }
    }

    /// Reads the next chunk of a body; false for the last one.
    ///
    /// # Errors
    /// It breaks off, or nothing comes for too long.
    pub fn receive_chunk(&mut self, body: &mut Vec<u8>) -> Result<bool> {
        let length = usize::from_str_radix(&self.line()?, 16)?;
        let start = body.len();
        body.resize(start + length, 0);
        self.stream.read_exact(&mut body[start..])?;
        ensure!(self.line()?.is_empty(), "a chunk without an end");
        Ok(length > 0)
    }

    /// Reads one byte; false at the end.
    ///
    /// # Errors
    /// Nothing comes for too long.
    pub fn receive_byte(&mut self) -> io::Result<bool> {
        Ok(self.stream.read(&mut [0])? > 0)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line)?;
        ensure!(read > 0, "the server closed the connection");
        Ok(line.trim_end().to_owned())
    }
}
