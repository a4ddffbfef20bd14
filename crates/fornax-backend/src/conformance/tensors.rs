//! Random weights in any block format.

use std::sync::{LazyLock, OnceLock};

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

/// Blocks of random values of one type, from which tensors are put together. To find how a block is encoded best
/// takes a hundred times as long as to multiply by it.
struct Pool {
    bytes: Vec<u8>,
    values: Vec<f64>,
}

/// So many that small tensors have no block twice. Large ones have rows that are equal, so that the logits of a head
/// have ties.
const POOL_BLOCKS: usize = 256;

/// One for each type, made when it is asked for.
static POOLS: LazyLock<Vec<(DType, OnceLock<Pool>)>> = LazyLock::new(|| {
    DType::all()
        .iter()
        .map(|dtype| (*dtype, OnceLock::new()))
        .collect()
});

impl Pool {
    fn of(dtype: DType) -> &'static Self {
        let of_type = POOLS.iter().find(|(its, _)| *its == dtype);
        let (_, pool) = of_type.expect("invariant: a pool for each type");
        pool.get_or_init(|| {
            let values = Random::named(dtype.name()).normals(POOL_BLOCKS * dtype.block_len());
            let (bytes, values) = encoded(dtype, &values, Vec::new());
            Self { bytes, values }
        })
    }
}

/// Appends the blocks of these values; and what they stand for.
fn encoded(dtype: DType, values: &[f32], mut bytes: Vec<u8>) -> (Vec<u8>, Vec<f64>) {
    let start = bytes.len();
    dtype.encode(values, &mut bytes);
    let mut decoded = vec![0.0; values.len()];
    dtype.decode(&bytes[start..], &mut decoded);
    (bytes, decoded.into_iter().map(f64::from).collect())
}

impl Tensor {
    /// Random values around 0; of a format in blocks, blocks of its [`Pool`].
    pub fn random(random: &mut Random, dtype: DType, shape: &[usize]) -> Self {
        let len: usize = shape.iter().product();
        if dtype.block_len() == 1 {
            return Self::of(dtype, shape, &random.normals(len));
        }
        assert!(len.is_multiple_of(dtype.block_len()), "whole blocks");
        let pool = Pool::of(dtype);
        let mut blocks: Vec<usize> = (0..POOL_BLOCKS).collect();
        let (mut bytes, mut values) = (vec![0], Vec::new());
        for block in 0..len / dtype.block_len() {
            // Each once before any comes again.
            if block % POOL_BLOCKS == 0 {
                random.shuffle(&mut blocks);
            }
            let block = blocks[block % POOL_BLOCKS];
            let part = |each: usize| block * each..(block + 1) * each;
            bytes.extend_from_slice(&pool.bytes[part(dtype.block_bytes())]);
            values.extend_from_slice(&pool.values[part(dtype.block_len())]);
        }
        Self {
            dtype,
            shape: shape.to_vec(),
            bytes,
            values,
        }
    }

    /// These values, encoded once.
    pub fn of(dtype: DType, shape: &[usize], values: &[f32]) -> Self {
        let (bytes, values) = encoded(dtype, values, vec![0]);
        Self {
            dtype,
            shape: shape.to_vec(),
            bytes,
            values,
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
