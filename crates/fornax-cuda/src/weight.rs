//! Weights on the device: a matrix in its file's formats, a stack of experts, or a vector.
//!
//! Owns the way from the file to the device. Must not know operations.

use std::sync::Arc;

use fornax_backend::BackendError;
use fornax_gguf::{DType, TensorView};

use crate::device::Device;
use crate::head::Head;
use crate::matrix;
use crate::memory::Memory;
use crate::sketch::Sketch;
use crate::upload::Upload;

/// A weight on the device.
pub struct Weight {
    memory: Memory,
    shape: Shape,
    /// The matrix in bf16, where it is not bf16 already. `[rows, padded]`
    dense: Option<Memory>,
    /// The matrix as tiles, beside that or in its place.
    tiles: Option<Memory>,
    sketch: Option<Sketch>,
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
    /// The matrix as tiles of bytes beside that, for products of some tokens. `[rows / 64, cols / 64, TILE_BYTES]`
    pub tiles: Option<u64>,
    /// The matrix as the kernel for the head has it, where it is the head.
    pub head: Option<Head>,
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
    /// Whether large products may run in bf16: on one matrix, some of which was rounded before.
    pub fn is_decodable(&self) -> bool {
        let rounded = |part: &Part| part.format != DType::F32;
        self.experts == 1 && self.parts.iter().any(rounded)
    }

    /// Numbers of a row with the zeros behind it.
    pub fn padded(&self) -> usize {
        matrix::padded(self.cols)
    }
}

impl Weight {
    /// Brings the parts to the device, joined along their output dimension.
    pub(crate) fn upload(
        device: &Arc<Device>,
        upload: &mut Upload,
        parts: &[TensorView<'_>],
    ) -> Result<Self, BackendError> {
        let first = parts.first().expect("invariant: a weight has a part");
        if first.shape.len() == 1 {
            let values: Vec<f32> = parts.iter().flat_map(TensorView::decode).collect();
            let memory = Memory::new(device, 4 * values.len(), "weights")?;
            upload.rows(&memory, 0, &values, 4, |value, to| {
                to.copy_from_slice(&value.to_ne_bytes());
            })?;
            let shape = Shape::Vector { len: values.len() };
            return Ok(Self {
                memory,
                shape,
                dense: None,
                tiles: None,
                sketch: None,
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
            tiles: None,
            head: None,
        };
        let mut offset = 0;
        for group in &groups {
            let format = group[0].dtype;
            let pitch = matrix::row_bytes(format, cols);
            upload.rows(&memory, offset, &rows(group, experts), pitch, |row, to| {
                matrix::pack_row(format, cols, row, to);
            })?;
            let part = Part {
                format,
                rows: rows_of(group),
                pitch,
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
            tiles: None,
            sketch: None,
        })
    }

    /// Keeps the matrix in bf16 beside its own format.
    pub(crate) fn keep_dense(&mut self, dense: Memory) {
        if let Shape::Matrix(layout) = &mut self.shape {
            layout.dense = Some(dense.pointer());
        }
        self.dense = Some(dense);
    }

    /// Keeps the matrix as tiles beside its own format.
    pub(crate) fn keep_tiles(&mut self, tiles: Memory) {
        if let Shape::Matrix(layout) = &mut self.shape {
            layout.tiles = Some(tiles.pointer());
        }
        self.tiles = Some(tiles);
    }

    /// Keeps the matrix as the kernel for the head has it; tiles take the place of a copy in bf16.
    pub(crate) fn keep_head(&mut self, head: Head, tiles: Option<Memory>) {
        if let Shape::Matrix(layout) = &mut self.shape {
            layout.head = Some(head);
            if tiles.is_some() {
                layout.dense = None;
                self.dense = None;
                self.tiles = tiles;
            }
        }
    }

    /// Keeps the matrix in four bits beside its own format.
    pub(crate) fn keep_sketch(&mut self, sketch: Sketch) {
        self.sketch = Some(sketch);
    }

    /// The matrix in four bits, where that is kept.
    pub(crate) fn sketch(&self) -> Option<&Sketch> {
        self.sketch.as_ref()
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

/// The rows of a group as the file has them, expert by expert.
fn rows<'a>(group: &[TensorView<'a>], experts: usize) -> Vec<&'a [u8]> {
    let of_expert = |expert: usize| {
        group.iter().flat_map(move |part| {
            let rows = part.rows() / experts;
            (expert * rows..(expert + 1) * rows).map(|row| part.row(row))
        })
    };
    (0..experts).flat_map(of_expert).collect()
}
