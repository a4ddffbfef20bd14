//! gpt-oss's experts: all of a layer in one tensor, gate and up by turns, plain or in blocks.
//!
//! Owns that layout, which is <https://github.com/openai/gpt-oss>'s. Plain matrices have the inputs
//! outermost; blocks of MXFP4 have the outputs outermost, and two neighbours to a byte where GGUF's
//! have the two halves of a block. Must not know files.

use super::safetensors::{Element, StoredTensor};
use super::tensors::{Assembly, transpose};
use crate::{DType, Error, parse};

/// A tensor with all experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Packed {
    pub layer: usize,
    pub part: Part,
    pub piece: Piece,
}

/// The way into an expert or out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    GateUp,
    Down,
}

/// What of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Piece {
    /// `[experts, inputs, outputs]`
    Weight,
    /// `[experts, outputs]`
    Bias,
    /// `[experts, outputs, inputs / 32, 16]`, two values a byte.
    Blocks,
    /// `[experts, outputs, inputs / 32]`, an exponent each.
    Scales,
}

/// Values of an MXFP4 block.
const BLOCK: usize = 32;

/// Which of them has this name in its layer.
pub(super) fn place(layer: usize, name: &str) -> Option<Packed> {
    let (part, rest) = match name.strip_prefix("gate_up_proj") {
        Some(rest) => (Part::GateUp, rest),
        None => (Part::Down, name.strip_prefix("down_proj")?),
    };
    let piece = match rest {
        "" => Piece::Weight,
        "_bias" => Piece::Bias,
        "_blocks" => Piece::Blocks,
        "_scales" => Piece::Scales,
        _ => return None,
    };
    Some(Packed { layer, part, piece })
}

impl Assembly<'_> {
    /// Makes GGUF's tensors of one of the folder; of blocks together with their scales.
    pub fn packed(
        &mut self,
        place: Packed,
        tensor: &StoredTensor,
        scales: Option<&StoredTensor>,
    ) -> Result<(), Error> {
        if tensor.shape.first() != Some(&self.model.experts) || tensor.shape.contains(&0) {
            let problem = format!(
                "its shape {:?} is not that of {} experts",
                tensor.shape, self.model.experts
            );
            return Err(self.refuse(&tensor.name, &problem));
        }
        let data = &self.files[tensor.file][tensor.range.clone()];
        match (place.piece, tensor.shape.as_slice()) {
            (Piece::Weight, &[experts, inputs, outputs]) => {
                let (dtype, _) = self.check(tensor)?;
                let mut turned = Vec::with_capacity(data.len());
                let element = dtype.block_bytes();
                for expert in data.chunks_exact(inputs * outputs * element) {
                    transpose(expert, element, outputs, &mut turned);
                }
                self.expand(tensor, place, dtype, &[experts, outputs, inputs], turned)
            }
            (Piece::Bias, &[_, _]) => {
                let (dtype, shape) = self.check(tensor)?;
                let data = data.to_vec();
                self.expand(tensor, place, dtype, &shape, data)
            }
            (Piece::Blocks, &[experts, outputs, blocks, half]) if half * 2 == BLOCK => {
                let [scales] = [scales].map(|scales| {
                    scales
                        .filter(|scales| scales.shape == tensor.shape[..3])
                        .filter(|scales| scales.element == Element::Byte)
                        .map(|scales| &self.files[scales.file][scales.range.clone()])
                });
                let (Some(scales), Element::Byte) = (scales, &tensor.element) else {
                    let problem = "its type is not U8, or it has no scales of its shape";
                    return Err(self.refuse(&tensor.name, problem));
                };
                let shape = [experts, outputs, blocks.saturating_mul(BLOCK)];
                let made = mxfp4(data, scales);
                self.expand(tensor, place, DType::MXFP4, &shape, made)
            }
            // They came with their blocks.
            (Piece::Scales, &[_, _, _]) => Ok(()),
            (_, shape) => {
                let problem = format!("its shape {shape:?} cannot be");
                Err(self.refuse(&tensor.name, &problem))
            }
        }
    }

    /// Takes apart what goes to gate and up by turns; `[experts, outputs, …]`.
    fn expand(
        &mut self,
        tensor: &StoredTensor,
        place: Packed,
        dtype: DType,
        shape: &[usize],
        data: Vec<u8>,
    ) -> Result<(), Error> {
        parse::size(dtype, shape).map_err(|problem| self.refuse(&tensor.name, &problem))?;
        let kind = match place.piece {
            Piece::Bias => "bias",
            Piece::Weight | Piece::Blocks | Piece::Scales => "weight",
        };
        let name = |part: &str| format!("blk.{}.ffn_{part}_exps.{kind}", place.layer);
        if place.part == Part::Down {
            self.made(name("down"), dtype, shape.to_vec(), data);
            return Ok(());
        }
        if !shape[1].is_multiple_of(2) {
            let problem = format!("its shape {shape:?} has no two halves");
            return Err(self.refuse(&tensor.name, &problem));
        }
        let row_bytes = data.len() / (shape[0] * shape[1]);
        for (part, first) in [("gate", 0), ("up", 1)] {
            let rows = data.chunks_exact(row_bytes).skip(first).step_by(2);
            let half = rows.collect::<Vec<_>>().concat();
            let mut shape = shape.to_vec();
            shape[1] /= 2;
            self.made(name(part), dtype, shape, half);
        }
        Ok(())
    }
}

/// GGUF's blocks: the exponent, then 16 bytes with a value of the first half of the block low and
/// one of the second half high.
fn mxfp4(blocks: &[u8], scales: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(blocks.len() + scales.len());
    for (block, scale) in blocks.chunks_exact(BLOCK / 2).zip(scales) {
        out.push(*scale);
        let value = |index: usize| block[index / 2] >> (index % 2 * 4) & 15;
        out.extend((0..BLOCK / 2).map(|index| value(index) | value(index + BLOCK / 2) << 4));
    }
    out
}
