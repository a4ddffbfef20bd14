//! A reading position in a file that never leaves it.
//!
//! Owns bounds and UTF-8 checks and where-it-happened in errors; must not know what the fields
//! mean.

use crate::Error;

/// Bytes of memory that a file's description may take. Those of real models take some hundredths of it.
const MOST_BYTES: usize = 1 << 30;
/// What to do about a file that contradicts itself.
const DAMAGED: &str = "the file is damaged or incomplete: download or convert it again";

/// Reads little-endian fields from the front of `bytes`; every failure names file, byte offset and
/// subject.
pub(crate) struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    position: usize,
    /// Bytes of memory that what is read may still take.
    room: usize,
    /// What is being read, for errors: `metadata key "…"`, `tensor "…"`, `the header`.
    subject: String,
}

impl<'a> Cursor<'a> {
    pub fn new(file: &'a str, bytes: &'a [u8]) -> Self {
        Self {
            file,
            bytes,
            position: 0,
            room: MOST_BYTES,
            subject: "the header".to_owned(),
        }
    }

    /// Names what is read from here on.
    pub fn about(&mut self, subject: String) {
        self.subject = subject;
    }

    pub fn position(&self) -> usize {
        self.position
    }

    pub fn subject(&self) -> &str {
        &self.subject
    }

    pub fn file(&self) -> &'a str {
        self.file
    }

    /// The fault `problem` at byte `offset`.
    pub fn fault(&self, offset: usize, problem: impl Into<String>) -> Error {
        self.fault_with_advice(offset, problem, DAMAGED)
    }

    /// The fault `problem` at byte `offset`, where something better than a new download can be
    /// advised.
    pub fn fault_with_advice(
        &self,
        offset: usize,
        problem: impl Into<String>,
        advice: &'static str,
    ) -> Error {
        Error::Malformed {
            file: self.file.to_owned(),
            offset: offset as u64,
            subject: self.subject.clone(),
            problem: problem.into(),
            advice,
        }
    }

    /// The next `length` bytes, which are `what`.
    pub fn take(&mut self, length: usize, what: &str) -> Result<&'a [u8], Error> {
        let left = self.bytes.len() - self.position;
        if length > left {
            let problem =
                format!("{what} needs {length} bytes but the file ends after {left} more");
            return Err(self.fault(self.position, problem));
        }
        let start = self.position;
        self.position += length;
        Ok(&self.bytes[start..self.position])
    }

    pub fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        let bytes = self.take(N, what)?;
        Ok(bytes
            .try_into()
            .expect("invariant: take returns the length it was asked for"))
    }

    pub fn u32(&mut self, what: &str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64, Error> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Takes note of `count` things of `bytes` bytes each, before there is memory for them: a file may
    /// be larger than memory, and where it is damaged any of it may be taken for what describes it.
    pub fn keep(&mut self, count: usize, bytes: usize) -> Result<(), Error> {
        let left = self.room.checked_sub(count.saturating_mul(bytes));
        self.room = left.ok_or_else(|| {
            let problem = "with what comes before, it takes more than 1 GiB, as no model's \
                           description does";
            self.fault(self.position, problem)
        })?;
        Ok(())
    }

    /// A count of things that take at least `smallest` bytes each, so that no count can claim more
    /// than the file holds.
    pub fn count(&mut self, what: &str, smallest: usize) -> Result<usize, Error> {
        let offset = self.position;
        let count = self.u64(what)?;
        let left = self.bytes.len() - self.position;
        match usize::try_from(count) {
            Ok(count) if count <= left / smallest => Ok(count),
            _ => Err(self.fault(
                offset,
                format!(
                    "{what} is {count} (of {smallest} bytes or more), but {left} bytes are left"
                ),
            )),
        }
    }

    /// A length-prefixed UTF-8 string, which will be kept.
    pub fn string(&mut self, what: &str) -> Result<&'a str, Error> {
        let length = self.count("the length of a string", 1)?;
        self.keep(1, length)?;
        let start = self.position;
        let bytes = self.take(length, what)?;
        std::str::from_utf8(bytes).map_err(|error| {
            self.fault(
                start + error.valid_up_to(),
                format!("{what} is not valid UTF-8"),
            )
        })
    }
}
