//! gpt-oss's experts: all of a layer in one tensor, gate and up by turns, plain or in blocks.
//!
//! Owns that layout, which is <https://github.com/openai/gpt-oss>'s. Plain matrices have the inputs
//! outermost; blocks of MXFP4 have the outputs outermost, and two neighbours to a byte where GGUF's
//! have the two halves of a block. Must not know files.

use super::made::{self, BLOCK, Turns};
use super::safetensors::{Element, StoredTensor};
use super::tensors::Assembly;
use crate::{
    DType, Error,
    parse::{self, Make},
};

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
            return Err(self.refuse(tensor, &problem));
        }
        let source = tensor.source();
        match (place.piece, tensor.shape.as_slice()) {
            (Piece::Weight, &[experts, inputs, outputs]) => {
                let (dtype, _) = self.check(tensor)?;
                let element = dtype.block_bytes();
                let shape = [experts, outputs, inputs];
                self.expand(tensor, place, dtype, &shape, |turns| {
                    made::turned(source.clone(), [inputs, outputs], element, turns)
                })
            }
            (Piece::Bias, &[_, _]) => {
                let (dtype, shape) = self.check(tensor)?;
                let element = dtype.block_bytes();
                self.expand(tensor, place, dtype, &shape, |turns| {
                    made::elements(source.clone(), element, turns)
                })
            }
            (Piece::Blocks, &[experts, outputs, blocks, half]) if half == BLOCK / 2 => {
                let scales = scales
                    .filter(|scales| scales.shape == tensor.shape[..3])
                    .filter(|scales| scales.element == Element::Byte)
                    .map(StoredTensor::source);
                let (Some(scales), Element::Byte) = (scales, &tensor.element) else {
                    let problem = "its type is not U8, or it has no scales of its shape";
                    return Err(self.refuse(tensor, problem));
                };
                let shape = [experts, outputs, blocks.saturating_mul(BLOCK)];
                self.expand(tensor, place, DType::MXFP4, &shape, |turns| {
                    made::mxfp4(source.clone(), scales.clone(), blocks, turns)
                })
            }
            // They came with their blocks.
            (Piece::Scales, &[_, _, _]) => Ok(()),
            (_, shape) => {
                let problem = format!("its shape {shape:?} cannot be");
                Err(self.refuse(tensor, &problem))
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
        make: impl Fn(Turns) -> Make,
    ) -> Result<(), Error> {
        parse::size(dtype, shape).map_err(|problem| self.refuse(tensor, &problem))?;
        let kind = match place.piece {
            Piece::Bias => "bias",
            Piece::Weight | Piece::Blocks | Piece::Scales => "weight",
        };
        let parts: &[(&str, usize)] = match place.part {
            Part::Down => &[("down", 0)],
            Part::GateUp => &[("gate", 0), ("up", 1)],
        };
        let step = parts.len();
        if !shape[1].is_multiple_of(step) {
            let problem = format!("its shape {shape:?} has no two halves");
            return Err(self.refuse(tensor, &problem));
        }
        for &(part, first) in parts {
            let name = format!("blk.{}.ffn_{part}_exps.{kind}", place.layer);
            let mut shape = shape.to_vec();
            shape[1] /= step;
            self.note(&name, tensor);
            self.made(name, dtype, shape, make(Turns { first, step }));
        }
        Ok(())
    }
}
