//! Random weights in any block format.

use fornax_gguf::{DType, TensorView};

use super::random::Random;

/// A weight as a file would hold it, and the values that its blocks stand for.
pub(super) struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    /// The blocks behind one byte more, so that they lie at an odd address.
    bytes: Vec<u8>,
    /// Row by row.
    pub values: Vec<f64>,
}

impl Tensor {
    /// Random values around 0, encoded once.
    pub fn random(random: &mut Random, dtype: DType, shape: &[usize]) -> Self {
        let values = random.normals(shape.iter().product());
        Self::of(dtype, shape, &values)
    }

    /// These values, encoded once.
    pub fn of(dtype: DType, shape: &[usize], values: &[f32]) -> Self {
        let mut bytes = vec![0];
        dtype.encode(values, &mut bytes);
        let mut decoded = vec![0.0; values.len()];
        dtype.decode(&bytes[1..], &mut decoded);
        Self {
            dtype,
            shape: shape.to_vec(),
            bytes,
            values: decoded.into_iter().map(f64::from).collect(),
        }
    }

    /// A random vector around 1, as norms have.
    pub fn norm(random: &mut Random, len: usize) -> Self {
        let values: Vec<f32> = (0..len).map(|_| 1.0 + 0.3 * random.normal()).collect();
        Self::of(DType::F32, &[len], &values)
    }

    pub fn view(&self) -> TensorView<'_> {
        TensorView {
            name: "random",
            dtype: self.dtype,
            shape: &self.shape,
            data: &self.bytes[1..],
        }
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }
}
