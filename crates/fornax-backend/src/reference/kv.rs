//! One layer's KV pages.
//!
//! Owns where a token lies and how an element is rounded. Must not know sequences: a page table
//! comes with each call.

use fornax_gguf::{BlockFormat, quant};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::memory::filled;
use crate::{BackendError, KvShape, KvType};

/// The K and V pages of one layer.
#[derive(Clone, Debug)]
pub struct Kv {
    shape: KvShape,
    /// `[pages, page_size, kv_heads, k_dim]`
    k: Elements,
    /// `[pages, page_size, kv_heads, v_dim]`
    v: Elements,
}

/// Elements as they are kept.
#[derive(Clone, Debug)]
enum Elements {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
    /// Blocks as files have them; every head is whole ones.
    Q8_0(Vec<u8>),
}

const BLOCK: usize = quant::Q8_0::ELEMENTS;
const BLOCK_BYTES: usize = quant::Q8_0::BYTES;

impl Kv {
    pub(super) fn new(shape: &KvShape) -> Result<Self, BackendError> {
        let tokens = shape.pages.saturating_mul(shape.page_size);
        let heads = tokens.saturating_mul(shape.kv_heads);
        let elements = |dim: usize| Elements::new(shape.element, heads.saturating_mul(dim));
        Ok(Self {
            shape: *shape,
            k: elements(shape.k_dim)?,
            v: elements(shape.v_dim)?,
        })
    }

    /// What it was made for.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Where a position of a sequence lies, in tokens from the pool's start.
    pub(super) fn place(&self, table: &[u32], position: usize) -> usize {
        let page = table[position / self.shape.page_size] as usize;
        assert!(
            page < self.shape.pages,
            "page {page} of {}",
            self.shape.pages
        );
        page * self.shape.page_size + position % self.shape.page_size
    }

    /// Writes a token's K `[kv_heads, k_dim]` and V `[kv_heads, v_dim]`.
    pub(super) fn store(&mut self, place: usize, k: &[f32], v: &[f32]) {
        assert_eq!(
            k.len(),
            self.shape.kv_heads * self.shape.k_dim,
            "width of K"
        );
        assert_eq!(
            v.len(),
            self.shape.kv_heads * self.shape.v_dim,
            "width of V"
        );
        self.k.write(place * k.len(), k);
        self.v.write(place * v.len(), v);
    }

    /// Reads one head's K of a token. `[k_dim]`
    pub(super) fn read_k(&self, place: usize, head: usize, out: &mut [f32]) {
        let start = (place * self.shape.kv_heads + head) * self.shape.k_dim;
        self.k.read(start, out);
    }

    /// Reads one head's V of a token. `[v_dim]`
    pub(super) fn read_v(&self, place: usize, head: usize, out: &mut [f32]) {
        let start = (place * self.shape.kv_heads + head) * self.shape.v_dim;
        self.v.read(start, out);
    }

    /// Copies the first `tokens` tokens of a page to another.
    pub(super) fn copy(&mut self, source: usize, destination: usize, tokens: usize) {
        let KvShape {
            page_size,
            kv_heads,
            ..
        } = self.shape;
        assert!(
            tokens <= page_size,
            "{tokens} tokens of a page of {page_size}"
        );
        let dims = [self.shape.k_dim, self.shape.v_dim];
        for (elements, dim) in [&mut self.k, &mut self.v].into_iter().zip(dims) {
            let token = kv_heads * dim;
            let page = page_size * token;
            elements.copy(source * page, destination * page, tokens * token);
        }
    }
}

impl Elements {
    fn new(kind: KvType, len: usize) -> Result<Self, BackendError> {
        Ok(match kind {
            KvType::F32 => Elements::F32(filled(f32::NAN, len)?),
            KvType::F16 => Elements::F16(filled(f16::NAN, len)?),
            KvType::Bf16 => Elements::Bf16(filled(bf16::NAN, len)?),
            // As a scale these bits are NaN.
            KvType::Q8_0 => {
                Elements::Q8_0(filled(0xFF, (len / BLOCK).saturating_mul(BLOCK_BYTES))?)
            }
        })
    }

    fn write(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        match self {
            Elements::F32(elements) => elements[range].copy_from_slice(values),
            Elements::F16(elements) => elements[range].convert_from_f32_slice(values),
            Elements::Bf16(elements) => elements[range].convert_from_f32_slice(values),
            Elements::Q8_0(bytes) => {
                let blocks = bytes[start / BLOCK * BLOCK_BYTES..].chunks_exact_mut(BLOCK_BYTES);
                for (block, values) in blocks.zip(values.chunks_exact(BLOCK)) {
                    quant::Q8_0::encode(values, block);
                }
            }
        }
    }

    fn read(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match self {
            Elements::F32(elements) => out.copy_from_slice(&elements[range]),
            Elements::F16(elements) => elements[range].convert_to_f32_slice(out),
            Elements::Bf16(elements) => elements[range].convert_to_f32_slice(out),
            Elements::Q8_0(bytes) => {
                let blocks = bytes[start / BLOCK * BLOCK_BYTES..].chunks_exact(BLOCK_BYTES);
                for (block, values) in blocks.zip(out.chunks_exact_mut(BLOCK)) {
                    quant::Q8_0::decode(block, values);
                }
            }
        }
    }

    fn copy(&mut self, source: usize, destination: usize, len: usize) {
        let range = source..source + len;
        match self {
            Elements::F32(elements) => elements.copy_within(range, destination),
            Elements::F16(elements) => elements.copy_within(range, destination),
            Elements::Bf16(elements) => elements.copy_within(range, destination),
            Elements::Q8_0(bytes) => {
                let at = |element: usize| element / BLOCK * BLOCK_BYTES;
                bytes.copy_within(at(source)..at(source + len), at(destination));
            }
        }
    }
}
