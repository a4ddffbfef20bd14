//! Writing GGUF version 3 as a stream: metadata and declarations first, then tensor data in the
//! declared order.
//!
//! Holds no tensor data. Must not know where the bytes go.

use std::{collections::HashMap, io::Write};

use crate::{
    DType, Error, Metadata, Value,
    error::Quoted,
    pairs::MAX_KEY_BYTES,
    parse::{self, ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAX_ALIGNMENT, MAX_DIMENSIONS},
    value::Array,
};

/// The head of a file in the making: metadata and the tensors that will follow.
pub struct GgufWriter {
    metadata: Metadata,
    tensors: Vec<Declared>,
    /// Tensor name to index in `tensors`.
    index: HashMap<String, usize>,
}

/// A tensor whose data is to come.
struct Declared {
    name: String,
    dtype: DType,
    /// Outermost first.
    shape: Vec<usize>,
    /// Size in bytes, without padding.
    size: usize,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// A file without metadata or tensors.
    pub fn new() -> Self {
        Self {
            metadata: Metadata::new("the file to be written"),
            tensors: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Adds a metadata value. `general.alignment` also sets the alignment of tensor data.
    ///
    /// # Errors
    /// Where the key is empty, too long or there already, or the alignment is no power of two from
    /// 8 to 2^20.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<(), Error> {
        let mut value = value.into();
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(unwritable(format!(
                "metadata key {} has {} bytes, not 1 to {MAX_KEY_BYTES}",
                Quoted(key),
                key.len()
            )));
        }
        if key == ALIGNMENT_KEY {
            // Of the type that the format has for it.
            let bytes = value.integer().and_then(|bytes| u32::try_from(bytes).ok());
            let bytes = bytes.filter(|bytes| parse::is_alignment(*bytes as usize));
            value = Value::U32(bytes.ok_or_else(|| {
                unwritable(format!(
                    "{ALIGNMENT_KEY} must be a power of two from 8 to {MAX_ALIGNMENT}"
                ))
            })?);
        }
        if self.metadata.insert(key, value) {
            Ok(())
        } else {
            Err(unwritable(format!(
                "metadata key {} is set twice",
                Quoted(key)
            )))
        }
    }

    /// Announces the next tensor; `shape` is outermost first.
    ///
    /// # Errors
    /// Where the name is empty or taken, or the shape has no, a zero or more than four dimensions,
    /// or a row is not whole blocks of the type.
    pub fn declare(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), Error> {
        let refuse =
            |problem: String| Err(unwritable(format!("tensor {}: {problem}", Quoted(name))));
        if name.is_empty() {
            return refuse("the name is empty".to_owned());
        }
        if shape.is_empty() || shape.len() > MAX_DIMENSIONS || shape.contains(&0) {
            return refuse(format!(
                "the shape {shape:?} is not 1 to {MAX_DIMENSIONS} dimensions above zero"
            ));
        }
        let size = match parse::size(dtype, shape) {
            Ok(size) => size,
            Err(problem) => return refuse(problem),
        };
        if self
            .index
            .insert(name.to_owned(), self.tensors.len())
            .is_some()
        {
            return refuse("it is declared twice".to_owned());
        }
        self.tensors.push(Declared {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            size,
        });
        Ok(())
    }

    /// Writes the head to `out`, which should be buffered, and waits for the tensors' data.
    ///
    /// # Errors
    /// Where writing fails, or the offsets exceed 64 bits.
    pub fn start<W: Write>(self, out: W) -> Result<TensorWriter<W>, Error> {
        let alignment = match self.metadata.optional_u32(ALIGNMENT_KEY)? {
            Some(bytes) => bytes as usize,
            None => DEFAULT_ALIGNMENT,
        };
        let head = self.head(alignment)?;
        let mut tensors = TensorWriter {
            out,
            tensors: self.tensors,
            next: 0,
            written: 0,
            alignment,
        };
        tensors.out.write_all(&head)?;
        tensors.pad(head.len())?;
        Ok(tensors)
    }

    fn head(&self, alignment: usize) -> Result<Vec<u8>, Error> {
        let mut head = b"GGUF".to_vec();
        head.extend(3u32.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.metadata.iter().len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_string(&mut head, key);
            head.extend(value.type_number().to_le_bytes());
            put_value(&mut head, value);
        }
        let mut offset = 0usize;
        for tensor in &self.tensors {
            put_string(&mut head, &tensor.name);
            head.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor
                .shape
                .iter()
                .rev()
                .for_each(|&length| head.extend((length as u64).to_le_bytes()));
            head.extend(tensor.dtype.ggml_number().to_le_bytes());
            head.extend((offset as u64).to_le_bytes());
            offset = offset
                .checked_add(tensor.size)
                .and_then(|end| end.checked_next_multiple_of(alignment))
                .ok_or_else(|| {
                    unwritable(format!(
                        "tensor {}: the file is too large",
                        Quoted(&tensor.name)
                    ))
                })?;
        }
        Ok(head)
    }
}

/// Takes the tensors' data in the declared order, whole or in pieces.
pub struct TensorWriter<W: Write> {
    out: W,
    tensors: Vec<Declared>,
    /// The tensor that is being written, an index in `tensors`.
    next: usize,
    /// Bytes of it that are written.
    written: usize,
    alignment: usize,
}

impl<W: Write> TensorWriter<W> {
    /// Writes the whole data of tensor `name`, which must be the next.
    ///
    /// # Errors
    /// Where another tensor is due, the size differs from the declared one, or writing fails.
    pub fn tensor(&mut self, name: &str, data: &[u8]) -> Result<(), Error> {
        match self.tensors.get(self.next) {
            Some(due) if due.name == name && self.written == 0 && data.len() == due.size => {
                self.append(data)
            }
            Some(due) => Err(unwritable(format!(
                "{} bytes for tensor {}, but due are the bytes {} to {} of tensor {}",
                data.len(),
                Quoted(name),
                self.written,
                due.size,
                Quoted(&due.name)
            ))),
            None => Err(unwritable(format!(
                "tensor {} was not declared",
                Quoted(name)
            ))),
        }
    }

    /// Writes the next piece of the tensor that is due; the piece that completes it moves on to the
    /// next tensor.
    ///
    /// # Errors
    /// Where all tensors are complete, the piece reaches past the tensor's end, or writing fails.
    pub fn append(&mut self, piece: &[u8]) -> Result<(), Error> {
        let Some(due) = self.tensors.get(self.next) else {
            return Err(unwritable("all declared tensors are complete".to_owned()));
        };
        let size = due.size;
        if piece.len() > size - self.written {
            let left = size - self.written;
            return Err(unwritable(format!(
                "tensor {} lacks {left} bytes, not {}",
                Quoted(&due.name),
                piece.len()
            )));
        }
        self.out.write_all(piece)?;
        self.written += piece.len();
        if self.written == size {
            self.pad(size)?;
            self.next += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Ends the file and hands back what it was written to.
    ///
    /// # Errors
    /// Where a tensor is incomplete, or writing fails.
    pub fn finish(mut self) -> Result<W, Error> {
        if let Some(due) = self.tensors.get(self.next) {
            let name = Quoted(&due.name);
            return Err(unwritable(format!(
                "tensor {name} has {} of {} bytes",
                self.written, due.size
            )));
        }
        self.out.flush()?;
        Ok(self.out)
    }

    /// Zeros from `position` to the next multiple of the alignment.
    fn pad(&mut self, position: usize) -> Result<(), Error> {
        let padding = vec![0; position.next_multiple_of(self.alignment) - position];
        Ok(self.out.write_all(&padding)?)
    }
}

fn unwritable(problem: String) -> Error {
    Error::Unwritable(problem)
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(value) => out.extend(value.to_le_bytes()),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::String(text) => put_string(out, text),
        Value::Array(array) => put_array(out, array),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_number().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(items) => out.extend(items),
        Array::I8(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::U16(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::I16(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::U32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::I32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::F32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::U64(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::I64(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::F64(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::Bool(items) => items.iter().for_each(|&item| out.push(u8::from(item))),
        Array::String(items) => items.iter().for_each(|item| put_string(out, item)),
        Array::Array(items) => items.iter().for_each(|item| put_array(out, item)),
    }
}
