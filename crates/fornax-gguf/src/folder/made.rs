//! Tensors whose bytes GGUF has in another order or type than the folder.
//!
//! Owns how they are made, each when it is asked for and from the mapped files, so that no more than
//! one is in memory. Must not know names.

use std::ops::Range;

use crate::{DType, parse::Make, storage::Bytes};

/// Where a tensor of the folder lies.
#[derive(Clone)]
pub(super) struct Source {
    /// Index of its file.
    pub file: usize,
    /// Bytes of the file.
    pub range: Range<usize>,
}

impl Source {
    /// Its bytes.
    pub fn of<'a>(&self, files: &'a [Bytes]) -> &'a [u8] {
        &files[self.file][self.range.clone()]
    }
}

/// Rows in the order in which GGUF's llama turns them: neighbours make a pair, where in the folder
/// the halves of a head do. `head` is even and divides `rows`.
pub(super) fn permuted(source: Source, rows: usize, head: usize) -> Make {
    Box::new(move |files| {
        let data = source.of(files);
        let row_bytes = data.len() / rows;
        let mut out = Vec::with_capacity(data.len());
        for row in 0..rows {
            let (first, within) = (row / head * head, row % head);
            let from = first + within / 2 + within % 2 * (head / 2);
            out.extend_from_slice(&data[from * row_bytes..][..row_bytes]);
        }
        out
    })
}

/// Values in single precision, each with so much added.
pub(super) fn singles(make: Make, dtype: DType, values: usize, added: f32) -> Make {
    Box::new(move |files| {
        let mut decoded = vec![0.0; values];
        dtype.decode(&make(files), &mut decoded);
        let bytes = decoded
            .iter()
            .flat_map(|value| (value + added).to_le_bytes());
        bytes.collect()
    })
}

/// The bytes as they are.
pub(super) fn copied(source: Source) -> Make {
    Box::new(move |files| source.of(files).to_vec())
}

/// One tensor behind the other.
pub(super) fn stacked(sources: Vec<Source>) -> Make {
    Box::new(move |files| {
        let mut out = Vec::with_capacity(sources.iter().map(|source| source.range.len()).sum());
        for source in &sources {
            out.extend_from_slice(source.of(files));
        }
        out
    })
}

/// Of each block of so many bytes a part; matrices of `transposed` elements of so many bytes a row
/// the other way round.
pub(super) fn parts(
    source: Source,
    block: usize,
    part: Range<usize>,
    transposed: Option<(usize, usize)>,
) -> Make {
    Box::new(move |files| {
        let mut out = Vec::new();
        for block in source.of(files).chunks_exact(block) {
            let part = &block[part.clone()];
            match transposed {
                None => out.extend_from_slice(part),
                Some((cols, element)) => transpose(part, element, 0..cols, 1, cols, &mut out),
            }
        }
        out
    })
}

/// Which rows of a layer's experts: every `step`th, from `first`.
#[derive(Clone, Copy)]
pub(super) struct Turns {
    pub first: usize,
    pub step: usize,
}

/// Of each expert, whose matrix `[inputs, outputs]` has so many bytes an element, these outputs as
/// rows.
pub(super) fn turned(
    source: Source,
    [inputs, outputs]: [usize; 2],
    element: usize,
    turns: Turns,
) -> Make {
    Box::new(move |files| {
        let data = source.of(files);
        let mut out = Vec::with_capacity(data.len() / turns.step);
        for expert in data.chunks_exact(inputs * outputs * element) {
            let columns = turns.first..outputs;
            transpose(expert, element, columns, turns.step, outputs, &mut out);
        }
        out
    })
}

/// Of each expert, whose vector has so many bytes an element, these elements.
pub(super) fn elements(source: Source, element: usize, turns: Turns) -> Make {
    Box::new(move |files| {
        let elements = source.of(files).chunks_exact(element);
        let chosen = elements.skip(turns.first).step_by(turns.step);
        chosen.flatten().copied().collect()
    })
}

/// Values of an MXFP4 block.
pub(super) const BLOCK: usize = 32;

/// Of each expert these rows of so many blocks, as GGUF has them: the exponent, then 16 bytes with a
/// value of the first half of the block low and one of the second half high.
pub(super) fn mxfp4(blocks: Source, scales: Source, row: usize, turns: Turns) -> Make {
    Box::new(move |files| {
        let rows = blocks.of(files).chunks_exact(row * BLOCK / 2);
        let rows = rows.zip(scales.of(files).chunks_exact(row));
        let mut out = Vec::new();
        for (blocks, scales) in rows.skip(turns.first).step_by(turns.step) {
            for (block, scale) in blocks.chunks_exact(BLOCK / 2).zip(scales) {
                out.push(*scale);
                let value = |index: usize| block[index / 2] >> (index % 2 * 4) & 15;
                out.extend(
                    (0..BLOCK / 2).map(|index| value(index) | value(index + BLOCK / 2) << 4),
                );
            }
        }
        out
    })
}

/// Appends these columns of a matrix of elements of so many bytes, as long as `cols` a row, as rows.
fn transpose(
    data: &[u8],
    element: usize,
    columns: Range<usize>,
    step: usize,
    cols: usize,
    out: &mut Vec<u8>,
) {
    for column in columns.step_by(step) {
        for row in data.chunks_exact(cols * element) {
            out.extend_from_slice(&row[column * element..][..element]);
        }
    }
}
