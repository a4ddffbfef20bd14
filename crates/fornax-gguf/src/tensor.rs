//! A tensor of an opened model, and a tensor with its bytes at hand.
//!
//! Must not know what the tensor is for.

use std::borrow::Cow;

use crate::{DType, parse::Content, storage::Bytes};

/// A tensor of an opened model: what it is, and its bytes once they are asked for.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    /// Such as `blk.0.attn_q.weight`.
    pub name: &'a str,
    /// How the values are stored.
    pub dtype: DType,
    /// Row-major, outermost first: `[rows, cols]` for a matrix. One to four entries, none zero.
    pub shape: &'a [usize],
    pub(crate) content: &'a Content,
    pub(crate) files: &'a [Bytes],
}

impl<'a> Tensor<'a> {
    /// Length of a row: the last entry of the shape.
    pub fn cols(&self) -> usize {
        cols(self.shape)
    }

    /// Number of rows: the product of all entries of the shape but the last.
    pub fn rows(&self) -> usize {
        self.elements() / self.cols()
    }

    /// Number of values.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of bytes.
    pub fn len_bytes(&self) -> usize {
        self.rows() * self.dtype.row_bytes(self.cols())
    }

    /// The bytes: [`rows`](Self::rows) rows. They are the file's own, except where a folder has them
    /// in another order or type; then they are made here, and given back when dropped.
    pub fn data(&self) -> Cow<'a, [u8]> {
        match self.content {
            Content::Stored { file, range } => Cow::Borrowed(&self.files[*file][range.clone()]),
            Content::Made(make) => {
                let data = make(self.files);
                assert_eq!(
                    data.len(),
                    self.len_bytes(),
                    "invariant: what is made of a folder's tensor has the size of its shape"
                );
                Cow::Owned(data)
            }
        }
    }

    /// The tensor with these bytes of its own at hand.
    pub fn with<'d>(&self, data: &'d [u8]) -> TensorView<'d>
    where
        'a: 'd,
    {
        TensorView {
            name: self.name,
            dtype: self.dtype,
            shape: self.shape,
            data,
        }
    }

    /// The same values in another shape with as many.
    ///
    /// # Panics
    /// Where the shapes differ in their number of values or the length of their rows.
    pub fn shaped<'s>(self, shape: &'s [usize]) -> Tensor<'s>
    where
        'a: 's,
    {
        let shaped = Tensor { shape, ..self };
        assert_eq!(
            (shaped.elements(), shaped.cols()),
            (self.elements(), self.cols()),
            "another shape of the same rows"
        );
        shaped
    }

    /// All values, row by row.
    pub fn decode(&self) -> Vec<f32> {
        self.with(&self.data()).decode()
    }
}

impl std::fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Tensor {{ {} {} {:?} }}",
            self.name, self.dtype, self.shape
        )
    }
}

fn cols(shape: &[usize]) -> usize {
    *shape
        .last()
        .expect("invariant: a tensor has at least one dimension")
}

/// A tensor with its bytes at hand. Its size has been checked: `data` is exactly `shape` of `dtype`.
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
        cols(self.shape)
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
