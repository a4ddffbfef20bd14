//! Buffers and weights of the reference: plain vectors, and the bytes of the file.
//!
//! Must not know what an operation does with them.

use fornax_gguf::{DType, TensorView};

use crate::{BackendError, Element};

/// Activations or indices.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// Activations and logits.
    F32(Vec<f32>),
    /// Indices.
    U32(Vec<u32>),
}

/// So many of a value, where there is memory for them.
pub(super) fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>, BackendError> {
    let mut values = Vec::new();
    values.try_reserve_exact(len).map_err(|_| {
        let bytes = len.saturating_mul(size_of::<T>());
        BackendError(format!(
            "{bytes} bytes of memory could not be had; choose a shorter context, fewer sequences or less for the KV cache"
        ))
    })?;
    values.resize(len, value);
    Ok(values)
}

impl Buffer {
    /// Starts with values that no operation could have written, so that reading them shows.
    pub(super) fn new(element: Element, len: usize) -> Result<Self, BackendError> {
        Ok(match element {
            Element::F32 => Buffer::F32(filled(f32::NAN, len)?),
            Element::U32 => Buffer::U32(filled(u32::MAX, len)?),
        })
    }

    pub(super) fn f32(&self) -> &[f32] {
        match self {
            Buffer::F32(values) => values,
            Buffer::U32(_) => panic!("a buffer of indices where activations belong"),
        }
    }

    pub(super) fn f32_mut(&mut self) -> &mut [f32] {
        match self {
            Buffer::F32(values) => values,
            Buffer::U32(_) => panic!("a buffer of indices where activations belong"),
        }
    }

    pub(super) fn u32(&self) -> &[u32] {
        match self {
            Buffer::U32(values) => values,
            Buffer::F32(_) => panic!("a buffer of activations where indices belong"),
        }
    }

    pub(super) fn u32_mut(&mut self) -> &mut [u32] {
        match self {
            Buffer::U32(values) => values,
            Buffer::F32(_) => panic!("a buffer of activations where indices belong"),
        }
    }
}

/// A vector, a matrix or a stack of matrices, in the block formats of its file.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Joined along their rows, in each matrix of the stack.
    parts: Vec<Part>,
    /// Length of a row.
    cols: usize,
    /// Rows of one matrix, over all parts; 1 for a vector.
    rows: usize,
}

/// One uploaded tensor.
#[derive(Clone, Debug)]
struct Part {
    dtype: DType,
    /// Length of a row; parts of a vector may differ in it.
    cols: usize,
    /// Rows of one matrix.
    rows: usize,
    /// `[matrices, rows]` rows of whole blocks.
    bytes: Vec<u8>,
}

impl Part {
    fn new(tensor: &TensorView<'_>) -> Self {
        let rows = match tensor.shape {
            [_] => 1,
            [.., rows, _] => *rows,
            [] => unreachable!("invariant: a tensor has a dimension"),
        };
        Self {
            dtype: tensor.dtype,
            cols: tensor.cols(),
            rows,
            bytes: tensor.data.to_vec(),
        }
    }

    fn decode_row(&self, index: usize, out: &mut [f32]) {
        let bytes = self.dtype.row_bytes(self.cols);
        let row = &self.bytes[index * bytes..(index + 1) * bytes];
        self.dtype.decode(row, out);
    }
}

impl Weight {
    pub(super) fn new(tensors: &[TensorView<'_>]) -> Self {
        let first = tensors.first().expect("invariant: a weight has a part");
        let outer = |tensor: &TensorView<'_>| match tensor.shape.len() {
            1 => (1, None),
            dimensions => (dimensions, Some((tensor.cols(), stack(tensor)))),
        };
        for tensor in tensors {
            let fits = outer(tensor) == outer(first);
            assert!(fits, "upload: {} does not fit {}", tensor.name, first.name);
        }
        let parts: Vec<Part> = tensors.iter().map(Part::new).collect();
        let (rows, cols) = match first.shape.len() {
            1 => (1, parts.iter().map(|part| part.cols).sum()),
            _ => (parts.iter().map(|part| part.rows).sum(), first.cols()),
        };
        Self { parts, cols, rows }
    }

    /// Length of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Rows of one matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Unpacks a row of one matrix of the stack.
    pub(super) fn decode_row(&self, matrix: usize, mut row: usize, out: &mut [f32]) {
        for part in &self.parts {
            if row < part.rows {
                return part.decode_row(matrix * part.rows + row, out);
            }
            row -= part.rows;
        }
        panic!(
            "row {row} behind the last of a weight of {} rows",
            self.rows
        );
    }

    /// Unpacks a vector.
    pub(super) fn vector(&self) -> Vec<f32> {
        assert_eq!(self.rows, 1, "a matrix where a vector belongs");
        let mut out = vec![0.0; self.cols];
        let mut rest = out.as_mut_slice();
        for part in &self.parts {
            let (values, behind) = rest.split_at_mut(part.cols);
            part.decode_row(0, values);
            rest = behind;
        }
        out
    }
}

/// Matrices of a stack; 1 for a matrix by itself.
fn stack(tensor: &TensorView<'_>) -> usize {
    tensor.shape[..tensor.shape.len() - 2].iter().product()
}
