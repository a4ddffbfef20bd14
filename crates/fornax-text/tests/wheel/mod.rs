//! The `tokenizers` of Hugging Face in a Python process. What PyPI has of them is compiled from the
//! same Rust as their crate, which would take minutes here.

use std::{
    io::{BufReader, Read, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

use serde_json::Value as Json;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wheel/tokens.py");
const WHY: &str = "the script of Python answers, or has said why not";

/// A tokenizer of theirs, and the process that it lives in.
pub struct Peer {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// The tokenizer that a `tokenizer.json` defines.
    pub fn new(definition: &Json) -> Self {
        let mut process = Command::new("python3")
            .arg(SCRIPT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python 3");
        let answers = process.stdout.take().expect("invariant: it is piped");
        let mut peer = Self {
            process,
            answers: BufReader::new(answers),
        };
        peer.tell(definition.to_string());
        peer
    }

    /// The ids of each text's tokens.
    pub fn encode(&mut self, texts: &[String]) -> Vec<Vec<u32>> {
        self.tell(serde_json::to_string(texts).expect("texts are JSON"));
        texts.iter().map(|_| self.answer()).collect()
    }

    /// A line is all of it: in JSON, the line feeds of texts are escaped.
    fn tell(&mut self, mut json: String) {
        json.push('\n');
        let input = self.process.stdin.as_mut();
        let input = input.expect("invariant: it is piped");
        input.write_all(json.as_bytes()).expect(WHY);
    }

    /// The ids of one text's tokens, behind their number.
    fn answer(&mut self) -> Vec<u32> {
        let mut count = [0; 4];
        self.answers.read_exact(&mut count).expect(WHY);
        let mut ids = vec![0; 4 * u32::from_ne_bytes(count) as usize];
        self.answers.read_exact(&mut ids).expect(WHY);
        let (ids, _) = ids.as_chunks();
        ids.iter().copied().map(u32::from_ne_bytes).collect()
    }
}

impl Drop for Peer {
    /// The process ends with its input, which is closed before it is waited for.
    fn drop(&mut self) {
        let _ended = self.process.wait();
    }
}
