//! Tensors of a folder under their GGUF names, changed where converters change them.
//!
//! Owns the order of tensors, permuted heads, stacked experts and split projections. Must not know
//! files or what a tensor computes.

use std::collections::BTreeMap;

use super::config::{Architecture, Model};
use super::names::{Place, place};
use super::packed::{Packed, Piece};
use super::safetensors::{Element, Stored, StoredTensor};
use crate::{
    DType, Error,
    error::Quoted,
    parse::{self, MAX_DIMENSIONS, TensorInfo},
    scheme::is_single,
    storage::Bytes,
};

/// All tensors by GGUF name, and the files and made-up data that they lie in.
pub(super) fn assemble(
    folder: &str,
    model: &Model,
    stored: Stored,
) -> Result<(Vec<Bytes>, Vec<TensorInfo>), Error> {
    let mut assembly = Assembly {
        folder,
        model,
        files: stored.files,
        tensors: Vec::new(),
    };
    let mut stacks: BTreeMap<String, Vec<(usize, StoredTensor)>> = BTreeMap::new();
    let mut packed: BTreeMap<Packed, StoredTensor> = BTreeMap::new();
    for tensor in stored.tensors {
        match place(model, &tensor.name) {
            Some(Place::Nowhere) => {}
            Some(Place::Own(name)) => assembly.own(name, tensor)?,
            Some(Place::Expert { stack, index }) => {
                stacks.entry(stack).or_default().push((index, tensor));
            }
            Some(Place::KeysAndValues(layer)) => assembly.keys_and_values(layer, &tensor)?,
            Some(Place::Packed(place)) => {
                packed.insert(place, tensor);
            }
            None => {
                return Err(assembly.refuse(&tensor.name, "it has no place in the architecture"));
            }
        }
    }
    for (name, experts) in stacks {
        assembly.stack(name, experts)?;
    }
    for (&place, tensor) in &packed {
        let scales = Packed {
            piece: Piece::Scales,
            ..place
        };
        assembly.packed(place, tensor, packed.get(&scales))?;
    }
    if let Some(factors) = model.rope.factors(model.head_dim) {
        let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes());
        let shape = vec![factors.len()];
        assembly.made(
            "rope_freqs.weight".to_owned(),
            DType::F32,
            shape,
            bytes.collect(),
        );
    }
    assembly
        .tensors
        .sort_by_cached_key(|info| order(&info.name));
    Ok((assembly.files, assembly.tensors))
}

/// The embedding first, then layer by layer, then the rest.
fn order(name: &str) -> (usize, String) {
    let layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once('.'));
    let layer = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
    let group = match layer {
        Some(layer) => layer + 1,
        None if name == "token_embd.weight" => 0,
        None => usize::MAX,
    };
    (group, name.to_owned())
}

/// The tensors in the making.
pub(super) struct Assembly<'a> {
    folder: &'a str,
    pub model: &'a Model,
    pub files: Vec<Bytes>,
    tensors: Vec<TensorInfo>,
}

impl Assembly<'_> {
    fn own(&mut self, name: String, tensor: StoredTensor) -> Result<(), Error> {
        let (dtype, mut shape) = self.check(&tensor)?;
        if name.ends_with("ffn_gate_inp_shexp.weight") && shape.len() == 2 && shape[0] == 1 {
            shape.remove(0);
        }
        let heads = match &name {
            _ if self.model.architecture != Architecture::Llama => None,
            name if name.contains(".attn_q.") => Some(self.model.heads),
            name if name.contains(".attn_k.") => Some(self.model.kv_heads),
            _ => None,
        };
        let data = &self.files[tensor.file][tensor.range.clone()];
        if let Some(heads) = heads {
            let permuted = permuted(data, shape[0], heads);
            let permuted = permuted.ok_or_else(|| {
                self.refuse(&tensor.name, "its rows are not whole pairs of heads")
            })?;
            self.made(name, dtype, shape, permuted);
        } else if self.model.architecture == Architecture::Gemma3 && name.ends_with("norm.weight") {
            let mut values = vec![0.0; shape.iter().product()];
            dtype.decode(data, &mut values);
            // The model multiplies by one more than it stores.
            let bytes = values.iter().flat_map(|value| (value + 1.0).to_le_bytes());
            let bytes = bytes.collect();
            self.made(name, DType::F32, shape, bytes);
        } else if dtype != DType::F32 && is_single(&name, &shape) {
            let data = data.to_vec();
            self.made(name, dtype, shape, data);
        } else {
            self.tensors.push(TensorInfo {
                name,
                dtype,
                shape,
                file: tensor.file,
                range: tensor.range,
            });
        }
        Ok(())
    }

    /// What expands keys and values: those of a head are by turns in the folder and apart in GGUF,
    /// keys the other way round, since queries go through them.
    fn keys_and_values(&mut self, layer: usize, tensor: &StoredTensor) -> Result<(), Error> {
        let (dtype, shape) = self.check(tensor)?;
        let Some(latent) = &self.model.latent else {
            return Err(self.refuse(&tensor.name, "it has no place in the architecture"));
        };
        let (heads, plain, value) = (self.model.heads, latent.plain, latent.value);
        if shape != [heads * (plain + value), latent.rank] {
            let problem = format!("its shape {shape:?} is not that of {heads} heads");
            return Err(self.refuse(&tensor.name, &problem));
        }
        let (rank, element) = (latent.rank, dtype.block_bytes());
        let data = &self.files[tensor.file][tensor.range.clone()];
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for head in data.chunks_exact((plain + value) * rank * element) {
            let (key, rest) = head.split_at(plain * rank * element);
            transpose(key, element, rank, &mut keys);
            values.extend_from_slice(rest);
        }
        let name = |part: &str| format!("blk.{layer}.attn_{part}.weight");
        self.made(name("k_b"), dtype, vec![heads, rank, plain], keys);
        self.made(name("v_b"), dtype, vec![heads, value, rank], values);
        Ok(())
    }

    /// Experts one behind the other.
    fn stack(
        &mut self,
        name: String,
        mut experts: Vec<(usize, StoredTensor)>,
    ) -> Result<(), Error> {
        experts.sort_by_key(|(index, _)| *index);
        let (_, first) = experts.first().expect("invariant: a stack has an expert");
        let (dtype, shape) = self.check(first)?;
        let complete = experts.len() == self.model.experts;
        let in_order = experts
            .iter()
            .enumerate()
            .all(|(at, (index, _))| at == *index);
        if !complete || !in_order {
            let problem = format!("of its {} experts some are missing", self.model.experts);
            return Err(self.refuse(&name, &problem));
        }
        let mut data = Vec::new();
        for (_, expert) in &experts {
            if self.check(expert)? != (dtype, shape.clone()) {
                let problem = "its type or shape is not that of the other experts";
                return Err(self.refuse(&expert.name, problem));
            }
            data.extend_from_slice(&self.files[expert.file][expert.range.clone()]);
        }
        let shape = [vec![experts.len()], shape].concat();
        self.made(name, dtype, shape, data);
        Ok(())
    }

    /// The type and shape of a tensor that GGUF can hold.
    pub fn check(&self, tensor: &StoredTensor) -> Result<(DType, Vec<usize>), Error> {
        let Element::Float(dtype) = tensor.element else {
            let problem = format!("its type is {}, none of F32, F16 and BF16", tensor.element);
            return Err(self.refuse(&tensor.name, &problem));
        };
        // A stack has one more dimension.
        if tensor.shape.len() >= MAX_DIMENSIONS || tensor.shape.contains(&0) {
            let problem = format!("its shape {:?} cannot be", tensor.shape);
            return Err(self.refuse(&tensor.name, &problem));
        }
        match parse::size(dtype, &tensor.shape) {
            Ok(_) => Ok((dtype, tensor.shape.clone())),
            Err(problem) => Err(self.refuse(&tensor.name, &problem)),
        }
    }

    /// A tensor of new data, in single precision where readers of GGUF expect that.
    pub fn made(&mut self, name: String, dtype: DType, shape: Vec<usize>, data: Vec<u8>) {
        let (dtype, data) = match dtype {
            DType::F16 | DType::BF16 if is_single(&name, &shape) => {
                let mut values = vec![0.0; shape.iter().product()];
                dtype.decode(&data, &mut values);
                let bytes = values.iter().flat_map(|value| value.to_le_bytes());
                (DType::F32, bytes.collect())
            }
            _ => (dtype, data),
        };
        let range = 0..data.len();
        let file = self.files.len();
        self.files.push(Bytes::Owned(data));
        self.tensors.push(TensorInfo {
            name,
            dtype,
            shape,
            file,
            range,
        });
    }

    /// The error for a tensor.
    pub fn refuse(&self, tensor: &str, problem: &str) -> Error {
        Error::NotReadable {
            file: self.folder.to_owned(),
            problem: format!("tensor {}: {problem}", Quoted(tensor)),
            advice: "check that the folder is complete and of a model that Fornax runs".to_owned(),
        }
    }
}

/// Rows in the order in which GGUF's llama turns them: neighbours make a pair, where in the folder
/// the halves of a head do. `None` where the heads do not divide the rows.
fn permuted(data: &[u8], rows: usize, heads: usize) -> Option<Vec<u8>> {
    let head = rows.checked_div(heads)?;
    if head * heads != rows || !head.is_multiple_of(2) {
        return None;
    }
    let row_bytes = data.len() / rows;
    let mut out = Vec::with_capacity(data.len());
    for row in 0..rows {
        let (first, within) = (row / head * head, row % head);
        let from = first + within / 2 + within % 2 * (head / 2);
        out.extend_from_slice(&data[from * row_bytes..][..row_bytes]);
    }
    Some(out)
}

/// Appends a matrix of elements of so many bytes, as long as `cols` a row, the other way round.
pub(super) fn transpose(data: &[u8], element: usize, cols: usize, out: &mut Vec<u8>) {
    for column in 0..cols {
        for row in data.chunks_exact(cols * element) {
            out.extend_from_slice(&row[column * element..][..element]);
        }
    }
}
