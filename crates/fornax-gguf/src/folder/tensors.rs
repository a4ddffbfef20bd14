//! Tensors of a folder under their GGUF names, changed where converters change them.
//!
//! Owns the order of tensors, permuted heads, stacked experts, split projections and which matrix is
//! the head. How bytes change is `made`. Must not know files or what a tensor computes.

use std::collections::{BTreeMap, HashSet};

use super::config::{Architecture, Model};
use super::made::{self, Source};
use super::names::{Place, place};
use super::origins::Origins;
use super::packed::{Packed, Piece};
use super::safetensors::{Element, Stored, StoredTensor};
use crate::{
    DType, Error,
    error::Quoted,
    parse::{self, Content, MAX_DIMENSIONS, Make, TensorInfo},
    scheme::is_single,
    storage::Bytes,
};

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
const ROUTER: &str = ".ffn_gate_inp.weight";

/// All tensors by GGUF name, the files that they are made of, and what the folder calls them.
pub(super) fn assemble(
    folder: &str,
    model: &Model,
    stored: Stored,
) -> Result<(Vec<Bytes>, Vec<TensorInfo>, Origins), Error> {
    let mut assembly = Assembly {
        folder,
        model,
        files: &stored.files,
        names: &stored.names,
        tensors: Vec::new(),
        origins: Origins::new(model.architecture),
    };
    let mut stacks: BTreeMap<String, Vec<(usize, &StoredTensor)>> = BTreeMap::new();
    let mut packed: BTreeMap<Packed, &StoredTensor> = BTreeMap::new();
    for tensor in &stored.tensors {
        let place = place(model, &tensor.name);
        match place.map_err(|problem| assembly.refuse(tensor, &problem))? {
            Place::Nowhere => {}
            Place::Head => {
                if let Some(name) = assembly.head(&stored.tensors, tensor) {
                    assembly.own(name.to_owned(), tensor)?;
                }
            }
            Place::Own(name) => assembly.own(name, tensor)?,
            Place::Expert { stack, index } => {
                stacks.entry(stack).or_default().push((index, tensor));
            }
            Place::KeysAndValues(layer) => assembly.keys_and_values(layer, tensor)?,
            Place::Packed(place) => {
                packed.insert(place, tensor);
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
        assembly.packed(place, tensor, packed.get(&scales).copied())?;
    }
    assembly.factors();
    assembly.require()?;
    let Assembly {
        mut tensors,
        origins,
        ..
    } = assembly;
    tensors.sort_by_cached_key(|info| order(&info.name));
    if let Some(twice) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(Error::NotReadable {
            file: folder.to_owned(),
            problem: format!(
                "two of its tensors are what the model has one of ({} of GGUF)",
                Quoted(&twice[0].name)
            ),
            advice: "download the model again, or remove what does not belong to it".to_owned(),
        });
    }
    Ok((stored.files, tensors, origins))
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
    pub files: &'a [Bytes],
    /// The files' names.
    names: &'a [String],
    tensors: Vec<TensorInfo>,
    origins: Origins,
}

impl Assembly<'_> {
    fn own(&mut self, name: String, tensor: &StoredTensor) -> Result<(), Error> {
        let (dtype, mut shape) = self.check(tensor)?;
        if name.ends_with("ffn_gate_inp_shexp.weight") && shape.len() == 2 && shape[0] == 1 {
            shape.remove(0);
        }
        self.note(&name, tensor);
        let heads = match &name {
            _ if !self.model.architecture.is_permuted() => None,
            name if name.contains(".attn_q.") => {
                Some(("num_attention_heads", self.model.heads.queries))
            }
            name if name.contains(".attn_k.") => {
                Some(("num_key_value_heads", self.model.heads.keys))
            }
            _ => None,
        };
        if let Some((key, heads)) = heads {
            let (rows, head) = (shape[0], self.model.heads.dim);
            if heads.checked_mul(head) != Some(rows) || !head.is_multiple_of(2) {
                let problem = format!(
                    "its shape {:?} is not that of {heads} ({key}) heads of {head} (head_dim) rows, \
                     an even number",
                    tensor.shape
                );
                return Err(self.refuse(tensor, &problem));
            }
            let permuted = made::permuted(tensor.source(), rows, head);
            self.made(name, dtype, shape, permuted);
        } else if self.model.architecture == Architecture::Gemma3 && name.ends_with("norm.weight") {
            // The model multiplies by one more than it stores.
            let values = shape.iter().product();
            let more = made::singles(made::copied(tensor.source()), dtype, values, 1.0);
            self.made(name, DType::F32, shape, more);
        } else if dtype != DType::F32 && is_single(&name, &shape) {
            self.made(name, dtype, shape, made::copied(tensor.source()));
        } else {
            let Source { file, range } = tensor.source();
            let content = Content::Stored { file, range };
            self.add(name, dtype, shape, content);
        }
        Ok(())
    }

    /// What the head becomes: nothing where it is the embedding once more. A model that says that
    /// both are one is believed unless the folder has two that differ, as `transformers` does it;
    /// and where it has the head alone, that is the embedding.
    fn head(&self, all: &[StoredTensor], head: &StoredTensor) -> Option<&'static str> {
        let embedding = all.iter().find(|tensor| tensor.name == EMBEDDING);
        match embedding {
            None if self.model.tied => Some("token_embd.weight"),
            Some(embedding) if self.model.tied => {
                let same = embedding.element == head.element
                    && embedding.shape == head.shape
                    && embedding.source().of(self.files) == head.source().of(self.files);
                (!same).then_some("output.weight")
            }
            _ => Some("output.weight"),
        }
    }

    /// What expands keys and values: those of a head are by turns in the folder and apart in GGUF,
    /// keys the other way round, since queries go through them.
    fn keys_and_values(&mut self, layer: usize, tensor: &StoredTensor) -> Result<(), Error> {
        let (dtype, shape) = self.check(tensor)?;
        let Some(latent) = &self.model.latent else {
            return Err(self.refuse(tensor, "it has no place in the architecture"));
        };
        let (heads, plain, value) = (self.model.heads.queries, latent.plain, latent.value);
        let rows = plain
            .checked_add(value)
            .and_then(|rows| rows.checked_mul(heads));
        if rows != Some(shape[0]) || shape.len() != 2 || shape[1] != latent.rank {
            let problem = format!(
                "its shape {shape:?} is not [{heads} (num_attention_heads) × ({plain} \
                 (qk_nope_head_dim) + {value} (v_head_dim)), {} (kv_lora_rank)]",
                latent.rank
            );
            return Err(self.refuse(tensor, &problem));
        }
        let (rank, element) = (latent.rank, dtype.block_bytes());
        let row = rank * element;
        let (head, keys) = ((plain + value) * row, plain * row);
        for (part, shape, bytes, transposed) in [
            ("k_b", [heads, rank, plain], 0..keys, Some((rank, element))),
            ("v_b", [heads, value, rank], keys..head, None),
        ] {
            // A head may have no part of one kind; then nothing of that name is there.
            if !shape.contains(&0) {
                let name = format!("blk.{layer}.attn_{part}.weight");
                self.note(&name, tensor);
                let parts = made::parts(tensor.source(), head, bytes, transposed);
                self.made(name, dtype, shape.to_vec(), parts);
            }
        }
        Ok(())
    }

    /// Experts one behind the other.
    fn stack(
        &mut self,
        name: String,
        mut experts: Vec<(usize, &StoredTensor)>,
    ) -> Result<(), Error> {
        experts.sort_by_key(|(index, _)| *index);
        let (_, first) = experts.first().expect("invariant: a stack has an expert");
        let (dtype, shape) = self.check(first)?;
        let mut indices = experts.iter().map(|(index, _)| *index).chain([usize::MAX]);
        let missing = (0..self.model.experts).find(|at| indices.next() != Some(*at));
        if let Some(missing) = missing {
            let problem = format!(
                "of its {} experts (the configuration's number) expert {missing} is missing",
                self.model.experts
            );
            return Err(self.refuse(first, &problem));
        }
        for (_, expert) in &experts {
            if self.check(expert)? != (dtype, shape.clone()) {
                let problem = "its type or shape is not that of the other experts";
                return Err(self.refuse(expert, problem));
            }
        }
        self.note(&name, first);
        let sources = experts.iter().map(|(_, expert)| expert.source()).collect();
        let shape = [vec![experts.len()], shape].concat();
        parse::size(dtype, &shape).map_err(|problem| self.refuse(first, &problem))?;
        self.made(name, dtype, shape, made::stacked(sources));
        Ok(())
    }

    /// The factors on frequencies, which GGUF has as a tensor.
    fn factors(&mut self) {
        let factors = self.model.rope.factors(self.model.heads.dim);
        // A head of one number turns nothing, which the configuration will be refused for.
        if let Some(factors) = factors.filter(|factors| !factors.is_empty()) {
            let shape = vec![factors.len()];
            let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes());
            let bytes: Vec<u8> = bytes.collect();
            let name = "rope_freqs.weight".to_owned();
            self.made(name, DType::F32, shape, Box::new(move |_| bytes.clone()));
        }
    }

    /// What GGUF would take for another, valid model where it is missing.
    fn require(&self) -> Result<(), Error> {
        let names = self.tensors.iter().map(|info| info.name.as_str());
        let names: HashSet<&str> = names.collect();
        let has = |name: &str| names.contains(name);
        if !self.model.tied && !has("output.weight") {
            let problem = "it is missing, and tie_word_embeddings is not true, by which the \
                           embedding would be the head";
            return Err(self.missing(HEAD, problem));
        }
        if self.model.heads.biased {
            for layer in 0..self.model.layers {
                for (part, theirs) in [("q", "q"), ("k", "k"), ("v", "v"), ("output", "o")] {
                    if !has(&format!("blk.{layer}.attn_{part}.bias")) {
                        let name = format!("model.layers.{layer}.self_attn.{theirs}_proj.bias");
                        let problem = "it is missing, and attention_bias is true";
                        return Err(self.missing(&name, problem));
                    }
                }
            }
        }
        if self.model.architecture == Architecture::DeepSeek3 {
            // By those that are there: the configuration may count more than anyone can.
            for router in names.iter().copied().filter(|name| name.ends_with(ROUTER)) {
                let bias = router.replace(ROUTER, ".exp_probs_b.bias");
                if !has(&bias) {
                    let name = self.origins.tensor(&bias);
                    return Err(self.missing(&name, "it is missing beside its router"));
                }
            }
        }
        Ok(())
    }

    /// The type and shape of a tensor that GGUF can hold.
    pub fn check(&self, tensor: &StoredTensor) -> Result<(DType, Vec<usize>), Error> {
        let Element::Float(dtype) = tensor.element else {
            let problem = format!("its type is {}, none of F32, F16 and BF16", tensor.element);
            return Err(self.refuse(tensor, &problem));
        };
        // A stack has one more dimension.
        if tensor.shape.len() >= MAX_DIMENSIONS || tensor.shape.contains(&0) {
            let problem = format!("its shape {:?} cannot be", tensor.shape);
            return Err(self.refuse(tensor, &problem));
        }
        match parse::size(dtype, &tensor.shape) {
            Ok(_) => Ok((dtype, tensor.shape.clone())),
            Err(problem) => Err(self.refuse(tensor, &problem)),
        }
    }

    /// A tensor that is made, in single precision where readers of GGUF expect that.
    pub fn made(&mut self, name: String, dtype: DType, shape: Vec<usize>, make: Make) {
        match dtype {
            DType::F16 | DType::BF16 if is_single(&name, &shape) => {
                let values = shape.iter().product();
                let single = made::singles(make, dtype, values, 0.0);
                self.add(name, DType::F32, shape, Content::Made(single));
            }
            _ => self.add(name, dtype, shape, Content::Made(make)),
        }
    }

    fn add(&mut self, name: String, dtype: DType, shape: Vec<usize>, content: Content) {
        self.tensors.push(TensorInfo {
            name,
            dtype,
            shape,
            content,
        });
    }

    /// Notes where a tensor comes from.
    pub fn note(&mut self, name: &str, tensor: &StoredTensor) {
        let file = &self.names[tensor.file];
        self.origins.add(name, &tensor.name, file);
    }

    /// The error for a tensor.
    pub fn refuse(&self, tensor: &StoredTensor, problem: &str) -> Error {
        super::refuse(
            self.folder,
            &self.names[tensor.file],
            format!("tensor {}: {problem}", Quoted(&tensor.name)),
            "correct config.json, or download the weights that belong to it",
        )
    }

    /// The error for a tensor that is not there.
    fn missing(&self, tensor: &str, problem: &str) -> Error {
        Error::NotReadable {
            file: self.folder.to_owned(),
            problem: format!("tensor {}: {problem}", Quoted(tensor)),
            advice: "correct config.json, or download the weights that belong to it".to_owned(),
        }
    }
}
