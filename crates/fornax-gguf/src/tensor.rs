//! A tensor as it lies in a file: name, type, shape and bytes, none of them copied.
//!
//! Must not know what the tensor is for.

use crate::DType;

/// A tensor of an opened file. Its size has been checked: `data` is exactly `shape` of `dtype`.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Such as `blk.0.attn_q.weight`.
    pub name: &'a str,
    /// How the values are stored.
    pub dtype: DType,
    /// Row-major, outermost first: `[rows, cols]` for a matrix. One to four entries, none zero.
    pub shape: &'a [usize],
    /// `rows()` rows of `dtype.row_bytes(cols())` bytes, at any address (the built-in model's bytes
    /// are unaligned).
    pub data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// Length of a row: the last entry of the shape.
    pub fn cols(&self) -> usize {
        *self
            .shape
            .last()
            .expect("invariant: a tensor has at least one dimension")
    }

    /// Number of rows: the product of all entries of the shape but the last.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The bytes of row `index`, counted over all outer dimensions.
    ///
    /// # Panics
    /// Where there is no such row.
    pub fn row(&self, index: usize) -> &'a [u8] {
        let bytes = self.dtype.row_bytes(self.cols());
        &self.data[index * bytes..(index + 1) * bytes]
    }

    /// All values, row by row.
    pub fn decode(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        self.dtype.decode(self.data, &mut values);
        values
    }
}
