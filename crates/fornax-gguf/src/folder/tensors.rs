//! Tensors of a folder under their GGUF names, changed where converters change them.
//!
//! Owns the names of both sides. Must not know files or what a tensor computes.

use std::collections::BTreeMap;

use super::config::{Architecture, Model};
use super::safetensors::{Stored, StoredTensor};
use crate::{
    DType, Error,
    error::Quoted,
    parse::{self, MAX_DIMENSIONS, TensorInfo},
    storage::Bytes,
};

/// What becomes of a stored tensor.
enum Place {
    /// It is not needed.
    Nowhere,
    /// A tensor of its own.
    Own(String),
    /// One of a stack.
    Expert { stack: String, index: usize },
}

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
    for tensor in stored.tensors {
        match place(model, &tensor.name) {
            Some(Place::Nowhere) => {}
            Some(Place::Own(name)) => assembly.own(name, tensor)?,
            Some(Place::Expert { stack, index }) => {
                stacks.entry(stack).or_default().push((index, tensor));
            }
            None => {
                return Err(assembly.refuse(&tensor.name, "it has no place in the architecture"));
            }
        }
    }
    for (name, experts) in stacks {
        assembly.stack(name, experts)?;
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

/// Where a tensor of that name belongs; `None` where it is unknown.
fn place(model: &Model, name: &str) -> Option<Place> {
    let own = |name: &str| Some(Place::Own(name.to_owned()));
    match name {
        "model.embed_tokens.weight" => return own("token_embd.weight"),
        "model.norm.weight" => return own("output_norm.weight"),
        "lm_head.weight" if model.tied => return Some(Place::Nowhere),
        "lm_head.weight" => return own("output.weight"),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let layer: usize = layer.parse().ok().filter(|&layer| layer < model.layers)?;
    if part.ends_with("rotary_emb.inv_freq") {
        return Some(Place::Nowhere);
    }
    if let Some(expert) = part.strip_prefix("mlp.experts.") {
        let (index, matrix) = expert.split_once('.')?;
        let index = index.parse().ok().filter(|&index| index < model.experts)?;
        let (_, name) = EXPERTS.iter().find(|(theirs, _)| *theirs == matrix)?;
        let stack = format!("blk.{layer}.{name}.weight");
        return Some(Place::Expert { stack, index });
    }
    let (module, kind) = part.rsplit_once('.')?;
    if !matches!(kind, "weight" | "bias") {
        return None;
    }
    let is_gemma = model.architecture == Architecture::Gemma3;
    let name = match module {
        "post_attention_layernorm" if is_gemma => "post_attention_norm",
        _ => MODULES.iter().find(|(theirs, _)| *theirs == module)?.1,
    };
    Some(Place::Own(format!("blk.{layer}.{name}.{kind}")))
}

/// The parts of a layer.
const MODULES: [(&str, &str); 20] = [
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.router", "ffn_gate_inp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("self_attn.sinks", "attn_sinks"),
];

/// The matrices of an expert.
const EXPERTS: [(&str, &str); 3] = [
    ("gate_proj.weight", "ffn_gate_exps"),
    ("up_proj.weight", "ffn_up_exps"),
    ("down_proj.weight", "ffn_down_exps"),
];

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

struct Assembly<'a> {
    folder: &'a str,
    model: &'a Model,
    files: Vec<Bytes>,
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
    fn check(&self, tensor: &StoredTensor) -> Result<(DType, Vec<usize>), Error> {
        let Some(dtype) = tensor.dtype else {
            return Err(self.refuse(&tensor.name, "its type is none of F32, F16 and BF16"));
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

    /// A tensor of new data.
    fn made(&mut self, name: String, dtype: DType, shape: Vec<usize>, data: Vec<u8>) {
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

    fn refuse(&self, tensor: &str, problem: &str) -> Error {
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
