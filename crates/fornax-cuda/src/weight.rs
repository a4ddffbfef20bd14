//! Weights on the device: a matrix in its file's formats, a stack of experts, or a vector.
//!
//! Owns the way from the file to the device. Must not know operations.

use std::sync::Arc;

use fornax_backend::BackendError;
use fornax_gguf::{DType, TensorView};

use crate::device::Device;
use crate::matrix;
use crate::memory::{Memory, Pinned};

/// A weight on the device.
pub struct Weight {
    memory: Memory,
    shape: Shape,
    /// The matrix in bf16, where it is not bf16 already. `[rows, padded]`
    dense: Option<Memory>,
}

enum Shape {
    /// `f32 [len]`
    Vector {
        len: usize,
    },
    Matrix(Layout),
}

/// Where the rows of a matrix are.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub parts: Vec<Part>,
    /// Rows of all parts, of one expert.
    pub rows: usize,
    pub cols: usize,
    pub experts: usize,
    /// The matrix in bf16, where there is one. `[rows, padded]`
    pub dense: Option<u64>,
}

/// Rows of one format: `[experts, rows, pitch]`.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub format: DType,
    pub rows: usize,
    /// Bytes of a row.
    pub pitch: usize,
    pub pointer: u64,
}

impl Layout {
    /// Numbers of a row with the zeros behind it.
    pub fn padded(&self) -> usize {
        matrix::padded(self.cols)
    }
}

/// Bytes that go to the device at once.
const STAGE: usize = 16 << 20;

impl Weight {
    /// Brings the parts to the device, joined along their output dimension.
    pub(crate) fn upload(
        device: &Arc<Device>,
        parts: &[TensorView<'_>],
    ) -> Result<Self, BackendError> {
        let first = parts.first().expect("invariant: a weight has a part");
        if first.shape.len() == 1 {
            let values: Vec<f32> = parts.iter().flat_map(TensorView::decode).collect();
            let memory = Memory::new(device, 4 * values.len(), "weights")?;
            memory.write(0, &values)?;
            let shape = Shape::Vector { len: values.len() };
            return Ok(Self {
                memory,
                shape,
                dense: None,
            });
        }
        if let Some(part) = parts.iter().find(|part| !matrix::is_known(part.dtype)) {
            return Err(BackendError(format!(
                "cuda: {} is {}, which no kernel decodes; choose --weights f32 or --backend parallel",
                part.name, part.dtype
            )));
        }
        let cols = first.cols();
        let experts = if first.shape.len() == 3 {
            first.shape[0]
        } else {
            1
        };
        assert!(
            parts.iter().all(|part| part.cols() == cols),
            "upload: columns of joined parts"
        );
        let groups = groups(parts);
        let rows_of =
            |group: &[TensorView<'_>]| group.iter().map(|part| part.rows() / experts).sum();
        let bytes = |group: &&[TensorView<'_>]| {
            let rows: usize = rows_of(group);
            experts * rows * matrix::row_bytes(group[0].dtype, cols)
        };
        let total = groups.iter().map(bytes).sum();
        let memory = Memory::new(device, total, "weights")?;
        let mut layout = Layout {
            parts: Vec::new(),
            rows: 0,
            cols,
            experts,
            dense: None,
        };
        let mut offset = 0;
        for group in &groups {
            let format = group[0].dtype;
            write_rows(device, &memory, offset, group, experts)?;
            let part = Part {
                format,
                rows: rows_of(group),
                pitch: matrix::row_bytes(format, cols),
                pointer: memory.pointer() + offset as u64,
            };
            offset += bytes(group);
            layout.rows += part.rows;
            layout.parts.push(part);
        }
        if let [
            Part {
                format: DType::BF16,
                pointer,
                ..
            },
        ] = layout.parts[..]
            && experts == 1
        {
            layout.dense = Some(pointer);
        }
        Ok(Self {
            memory,
            shape: Shape::Matrix(layout),
            dense: None,
        })
    }

    /// Keeps the matrix in bf16 beside its own format.
    pub(crate) fn keep_dense(&mut self, dense: Memory) {
        if let Shape::Matrix(layout) = &mut self.shape {
            layout.dense = Some(dense.pointer());
        }
        self.dense = Some(dense);
    }

    /// The matrix, or none where it is a vector.
    pub(crate) fn layout(&self) -> Option<&Layout> {
        match &self.shape {
            Shape::Matrix(layout) => Some(layout),
            Shape::Vector { .. } => None,
        }
    }

    pub(crate) fn matrix(&self) -> &Layout {
        self.layout()
            .expect("invariant: a vector does not stand where a matrix belongs")
    }

    /// Where the vector is. Panics unless it is one of `len` numbers.
    pub(crate) fn vector(&self, len: usize) -> u64 {
        match &self.shape {
            Shape::Vector { len: own } if *own == len => self.memory.pointer(),
            Shape::Vector { len: own } => {
                panic!("a vector of {own} numbers stands for one of {len}")
            }
            Shape::Matrix(_) => panic!("a matrix stands where a vector belongs"),
        }
    }

    /// Numbers of a vector.
    pub(crate) fn len(&self) -> usize {
        match &self.shape {
            Shape::Vector { len } => *len,
            Shape::Matrix(_) => panic!("a matrix stands where a vector belongs"),
        }
    }
}

/// Neighbours of one format lie as one part.
fn groups<'p, 'a>(parts: &'p [TensorView<'a>]) -> Vec<&'p [TensorView<'a>]> {
    parts.chunk_by(|a, b| a.dtype == b.dtype).collect()
}

/// Writes the rows of a group, expert by expert, through two page-locked stages.
fn write_rows(
    device: &Arc<Device>,
    memory: &Memory,
    offset: usize,
    group: &[TensorView<'_>],
    experts: usize,
) -> Result<(), BackendError> {
    let (format, cols) = (group[0].dtype, group[0].cols());
    let pitch = matrix::row_bytes(format, cols);
    let sources: Vec<&[u8]> = (0..experts)
        .flat_map(|expert| {
            group.iter().flat_map(move |part| {
                let rows = part.rows() / experts;
                (expert * rows..(expert + 1) * rows).map(|row| part.row(row))
            })
        })
        .collect();
    let at_once = (STAGE / pitch).clamp(1, sources.len().max(1));
    let mut stages = [
        Pinned::<u8>::zeroed(device, at_once * pitch)?,
        Pinned::<u8>::zeroed(device, at_once * pitch)?,
    ];
    for (index, rows) in sources.chunks(at_once).enumerate() {
        // The stage's last copy has ended once the other stage's wait is over.
        let stage = &mut stages[index % 2];
        let bytes = rows.len() * pitch;
        stage[..bytes].fill(0);
        pack(format, cols, rows, &mut stage[..bytes], pitch);
        device.synchronize()?;
        memory.start_write(offset + index * at_once * pitch, &stage[..bytes])?;
    }
    device.synchronize()
}

/// Lays rows out, on several threads where there are many.
fn pack(format: DType, cols: usize, rows: &[&[u8]], to: &mut [u8], pitch: usize) {
    let threads = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8);
    let share = rows.len().div_ceil(threads).max(64);
    std::thread::scope(|scope| {
        for (rows, to) in rows.chunks(share).zip(to.chunks_mut(share * pitch)) {
            scope.spawn(move || {
                for (row, to) in rows.iter().zip(to.chunks_exact_mut(pitch)) {
                    matrix::pack_row(format, cols, row, to);
                }
            });
        }
    });
}
