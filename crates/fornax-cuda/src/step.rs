//! Buffers, pages, and what operations read about a step, at places that never move.
//!
//! Must not know operations.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

use fornax_backend::{
    BackendError, Element, KvShape, KvType, Pooling, StepCapacity, StepRows, StepShape,
};

use crate::device::Device;
use crate::ferry::Piece;
use crate::memory::{Memory, Pinned};

/// Activations in single precision, or indices.
pub struct Buffer {
    pub(crate) memory: Memory,
    element: Element,
    len: usize,
}

impl Buffer {
    pub(crate) fn new(
        device: &Arc<Device>,
        element: Element,
        len: usize,
    ) -> Result<Self, BackendError> {
        let memory = Memory::new(device, 4 * len, "activations")?;
        Ok(Self {
            memory,
            element,
            len,
        })
    }

    /// Where its first `len` activations are.
    pub(crate) fn floats(&self, len: usize) -> u64 {
        assert_eq!(
            self.element,
            Element::F32,
            "indices stand where activations belong"
        );
        assert!(
            len <= self.len,
            "a buffer of {} for {len} activations",
            self.len
        );
        self.memory.pointer()
    }

    /// Where its first `len` indices are.
    pub(crate) fn indices(&self, len: usize) -> u64 {
        assert_eq!(
            self.element,
            Element::U32,
            "activations stand where indices belong"
        );
        assert!(
            len <= self.len,
            "a buffer of {} for {len} indices",
            self.len
        );
        self.memory.pointer()
    }
}

/// One layer's pages: K and V, each `[pages, kv_heads, page_size, dim]`; of Q8_0 all bytes, then
/// all scales.
pub struct Kv {
    pub(crate) shape: KvShape,
    pub(crate) keys: Memory,
    pub(crate) values: Memory,
}

impl Kv {
    pub(crate) fn new(device: &Arc<Device>, shape: &KvShape) -> Result<Self, BackendError> {
        shape.check()?;
        let slots = slots(shape);
        let memory =
            |dim: usize| Memory::new(device, shape.element.bytes(slots * dim), "keys and values");
        Ok(Self {
            shape: *shape,
            keys: memory(shape.k_dim)?,
            values: memory(shape.v_dim)?,
        })
    }

    /// Heads that there is room for.
    pub(crate) fn slots(&self) -> u64 {
        slots(&self.shape) as u64
    }
}

/// Heads that a cache has room for.
fn slots(shape: &KvShape) -> usize {
    shape.pages * shape.page_size * shape.kv_heads
}

/// How kernels number the element types of a cache.
pub(crate) fn kv_number(element: KvType) -> usize {
    match element {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Bf16 => 2,
        KvType::Q8_0 => 3,
    }
}

/// New tokens of a row that one block of prefill attention takes.
pub(crate) const TILE: usize = 64;
/// What stands where there is no row, slot or tile.
const NONE: u32 = u32::MAX;

/// A step's tables on the device, and their twins in page-locked memory: one may still be on its way
/// while the next is written. In words:
/// rows `[rows, 4]`, draws `[rows, 4]`, pooled `[rows, 2]`, tiles `[tiles, 2]`,
/// tokens `[tokens, 4]`, outputs `[tokens]`, then each group's page tables end to end.
pub struct Step {
    memory: Memory,
    host: Pinned<u32>,
    /// Of the step before.
    other: Pinned<u32>,
    capacity: StepCapacity,
    /// Where each group's tables begin, in words.
    groups: Vec<usize>,
    /// Of the last step prepared, with what it was padded by.
    pub(crate) shape: StepShape,
}

impl Step {
    pub(crate) fn new(device: &Arc<Device>, capacity: &StepCapacity) -> Result<Self, BackendError> {
        let StepCapacity {
            rows,
            tokens,
            groups,
        } = capacity;
        let mut end = Self::outputs_at(capacity) + tokens;
        let mut begins = Vec::new();
        // A row's tables begin at the same place in each group, so that each has room for the longest.
        let longest = groups.iter().map(|(_, pages)| *pages).max().unwrap_or(0);
        for _ in groups {
            begins.push(end);
            end += rows * longest;
        }
        Ok(Self {
            memory: Memory::zeroed(device, 4 * end, "the tables of a step")?,
            host: Pinned::zeroed(device, end)?,
            other: Pinned::zeroed(device, end)?,
            capacity: capacity.clone(),
            groups: begins,
            shape: StepShape::default(),
        })
    }

    fn tiles(capacity: &StepCapacity) -> usize {
        capacity.rows + capacity.tokens / TILE + 1
    }

    fn tokens_at(capacity: &StepCapacity) -> usize {
        // A multiple of 4, for kernels read a token at once.
        (10 * capacity.rows + 2 * Self::tiles(capacity)).next_multiple_of(4)
    }

    fn outputs_at(capacity: &StepCapacity) -> usize {
        Self::tokens_at(capacity) + 4 * capacity.tokens
    }

    fn at(&self, word: usize) -> u64 {
        self.memory.pointer() + 4 * word as u64
    }

    pub(crate) fn rows(&self) -> u64 {
        self.at(0)
    }

    pub(crate) fn draws(&self) -> u64 {
        self.at(4 * self.capacity.rows)
    }

    pub(crate) fn pooled(&self) -> u64 {
        self.at(8 * self.capacity.rows)
    }

    pub(crate) fn tile_table(&self) -> u64 {
        self.at(10 * self.capacity.rows)
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.at(Self::tokens_at(&self.capacity))
    }

    pub(crate) fn outputs(&self) -> u64 {
        self.at(Self::outputs_at(&self.capacity))
    }

    pub(crate) fn tables(&self, group: usize) -> u64 {
        self.at(self.groups[group])
    }

    /// Tokens of a page.
    pub(crate) fn page_size(&self, group: usize) -> usize {
        self.capacity.groups[group].0
    }

    /// The most tiles that a step of this shape has.
    pub(crate) fn most_tiles(shape: &StepShape) -> usize {
        shape.rows + shape.tokens / TILE
    }

    /// The shape that a step is run with: one sampled token for each row is rounded up, so that few
    /// graphs serve all numbers of rows; other steps run as they are.
    pub(crate) fn bucket(&self, shape: &StepShape) -> StepShape {
        let rows = shape.rows;
        let each = [shape.tokens, shape.outputs, shape.samples];
        // All logits are computed but for the largest of one row: no other graph for what is the same.
        let largest = shape
            .largest
            .filter(|&largest| largest == 1 && shape.outputs == 1);
        let shape = StepShape { largest, ..*shape };
        if each != [rows; 3] || shape.pooled > 0 || rows <= 8 {
            return shape;
        }
        let step = if rows <= 64 { 8 } else { 16 };
        let most = self.capacity.rows.min(self.capacity.tokens);
        let rows = rows.next_multiple_of(step).min(most);
        StepShape {
            tokens: rows,
            rows,
            outputs: rows,
            samples: rows,
            ..shape
        }
    }

    /// Writes a step's tables and says what has to be carried to the device, which must be done with those of the step
    /// before the last one.
    pub(crate) fn write(&mut self, rows: &StepRows) -> Vec<Piece> {
        rows.check(&self.capacity);
        std::mem::swap(&mut self.host, &mut self.other);
        let shape = rows.shape();
        self.shape = self.bucket(&shape);
        self.write_rows(rows);
        self.write_tokens(rows, &shape);
        let ends = self.write_tables(rows);
        let tokens = Self::tokens_at(&self.capacity);
        let outputs = Self::outputs_at(&self.capacity);
        let mut written = vec![
            0..tokens + 4 * self.shape.tokens,
            outputs..outputs + self.shape.outputs,
        ];
        written.extend(self.groups.iter().zip(ends).map(|(begin, end)| *begin..end));
        let host = self.host.pointer();
        let piece = |words: Range<usize>| Piece {
            to: self.at(words.start),
            from: host + 4 * words.start as u64,
            words: words.len(),
        };
        written.into_iter().map(piece).collect()
    }

    fn write_rows(&mut self, rows: &StepRows) {
        let capacity = self.capacity.rows;
        let tiles_end = 10 * capacity + 2 * Self::tiles(&self.capacity);
        self.host[4 * capacity..tiles_end].fill(NONE);
        for (index, draw) in rows.samples.iter().enumerate() {
            let position = draw.position as u64;
            let words = [
                draw.slot as u32,
                position as u32,
                (position >> 32) as u32,
                draw.top.map_or(u32::MAX, |top| top as u32),
            ];
            let at = 4 * (capacity + index);
            self.host[at..at + 4].copy_from_slice(&words);
        }
        for (index, pooled) in rows.pooled.iter().enumerate() {
            let kind = match pooled.pooling {
                Pooling::Mean => 0,
                Pooling::Last => 1,
            };
            let at = 8 * capacity + 2 * index;
            self.host[at..at + 2].copy_from_slice(&[pooled.row as u32, kind]);
        }
        let tiles = 10 * capacity;
        let mut end = tiles;
        for (index, row) in rows.rows.iter().enumerate() {
            for first in (0..row.len).step_by(TILE) {
                self.host[end..end + 2].copy_from_slice(&[index as u32, first as u32]);
                end += 2;
            }
        }
        // Single tokens are not attended to in tiles.
        if rows.rows.iter().any(|row| row.len > 1) {
            // Who sees most begins first: none of those is left alone at the end.
            let (tiles, _) = self.host[tiles..end].as_chunks_mut::<2>();
            tiles.sort_unstable_by_key(|&[row, first]| {
                let seen = rows.rows[row as usize].cached + first as usize;
                (Reverse(seen), row)
            });
        }
    }

    fn write_tokens(&mut self, rows: &StepRows, shape: &StepShape) {
        let at = Self::tokens_at(&self.capacity);
        for (index, row) in rows.rows.iter().enumerate() {
            for offset in 0..row.len {
                let token = row.start + offset;
                let words = [
                    rows.tokens[token],
                    (row.cached + offset) as u32,
                    index as u32,
                    0,
                ];
                self.host[at + 4 * token..at + 4 * token + 4].copy_from_slice(&words);
            }
        }
        for &(token, sample) in &rows.from_step {
            self.host[at + 4 * token] = 0;
            self.host[at + 4 * token + 3] = sample as u32 + 1;
        }
        for token in shape.tokens..self.shape.tokens {
            self.host[at + 4 * token..at + 4 * token + 4].copy_from_slice(&[0, 0, NONE, 0]);
        }
        let at = Self::outputs_at(&self.capacity);
        for (index, output) in rows.outputs.iter().enumerate() {
            self.host[at + index] = *output as u32;
        }
        self.host[at + shape.outputs..at + self.shape.outputs].fill(0);
    }

    /// Every row's place in the tables is the same in each group, so that one word says it. Returns
    /// where each group's tables end.
    fn write_tables(&mut self, rows: &StepRows) -> Vec<usize> {
        let longest = |row: usize| {
            let lens = rows.tables.iter().map(|tables| tables[row].len());
            lens.max().unwrap_or(0)
        };
        let mut offset = 0;
        for (index, row) in rows.rows.iter().enumerate() {
            let words = [
                row.start as u32,
                row.len as u32,
                row.cached as u32,
                offset as u32,
            ];
            self.host[4 * index..4 * index + 4].copy_from_slice(&words);
            for (group, tables) in rows.tables.iter().enumerate() {
                let at = self.groups[group] + offset;
                self.host[at..at + tables[index].len()].copy_from_slice(&tables[index]);
            }
            offset += longest(index);
        }
        self.groups.iter().map(|begin| begin + offset).collect()
    }
}
