//! Which format each tensor of a quantised model gets.
//!
//! Owns the rules that llama.cpp follows, so that a file made here has the formats that people
//! expect under its name: vectors, norms and routers stay exact, the head gets more bits, and the
//! mixes Q4_K_M and Q5_K_M give more to the values and to the MLP's way down in the layers at both
//! ends and in every third between. Must not know data.

use crate::{DType, Error, Gguf};

/// A rule for the formats of a model's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// All matrices as they are; of small tensors, only F32.
    Keep,
    /// All matrices in one format; of block formats, the head in Q6_K.
    Uniform(DType),
    /// Q4_K, with Q6_K for half of the most sensitive matrices.
    Q4KM,
    /// Q5_K, with Q6_K for half of the most sensitive matrices.
    Q5KM,
}

/// The formats that a model can be quantised to, with the numbers by which `general.file_type`
/// names them.
const UNIFORM: [(DType, u32); 11] = [
    (DType::F32, 0),
    (DType::F16, 1),
    (DType::BF16, 32),
    (DType::Q8_0, 7),
    (DType::Q4_0, 2),
    (DType::Q4_1, 3),
    (DType::Q5_0, 8),
    (DType::Q5_1, 9),
    (DType::Q4_K, 14),
    (DType::Q5_K, 16),
    (DType::Q6_K, 18),
];

impl Scheme {
    /// All schemes that change a model.
    pub fn all() -> impl Iterator<Item = Scheme> {
        let uniform = UNIFORM.iter().map(|&(dtype, _)| Scheme::Uniform(dtype));
        uniform.chain([Scheme::Q4KM, Scheme::Q5KM])
    }

    /// The scheme's usual name, such as `Q4_K_M`.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Keep => "as it is",
            Scheme::Uniform(dtype) => dtype.name(),
            Scheme::Q4KM => "Q4_K_M",
            Scheme::Q5KM => "Q5_K_M",
        }
    }

    /// The scheme of that name, in either case.
    pub fn from_name(name: &str) -> Option<Scheme> {
        Scheme::all().find(|scheme| scheme.name().eq_ignore_ascii_case(name))
    }

    /// The names of all schemes, for help and errors.
    pub fn list() -> String {
        let names: Vec<&str> = Scheme::all().map(Scheme::name).collect();
        names.join(", ")
    }

    /// The number by which `general.file_type` names the scheme; `None` where files keep theirs.
    pub(crate) fn file_type(self) -> Option<u32> {
        match self {
            Scheme::Keep => None,
            Scheme::Q4KM => Some(15),
            Scheme::Q5KM => Some(17),
            Scheme::Uniform(dtype) => {
                let row = UNIFORM.iter().find(|&&(other, _)| other == dtype);
                row.map(|&(_, number)| number)
            }
        }
    }

    /// The format of most matrices; `None` where they keep theirs.
    fn usual(self) -> Option<DType> {
        match self {
            Scheme::Keep => None,
            Scheme::Uniform(dtype) => Some(dtype),
            Scheme::Q4KM => Some(DType::Q4_K),
            Scheme::Q5KM => Some(DType::Q5_K),
        }
    }
}

/// What of a model decides about formats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub layers: usize,
    /// Whether the embedding is the head, too.
    pub tied: bool,
    pub experts: usize,
    /// Whether it has the shape that llama.cpp calls 70B, whose values are few enough to be given
    /// more bits.
    pub is_70b: bool,
}

impl Facts {
    /// As the metadata has them.
    pub fn of(model: &Gguf) -> Result<Self, Error> {
        let metadata = model.metadata();
        let architecture = metadata.str("general.architecture")?;
        let number = |key: &str| -> Result<usize, Error> {
            let number = metadata.optional_u32(&format!("{architecture}.{key}"))?;
            Ok(number.unwrap_or(0) as usize)
        };
        let layers = number("block_count")?;
        let heads = number("attention.head_count")?;
        let kv_heads = metadata.optional_u32(&format!("{architecture}.attention.head_count_kv"))?;
        let grouped = kv_heads.is_some_and(|kv_heads| kv_heads as usize != heads);
        Ok(Self {
            layers,
            tied: model.tensor("output.weight").is_none(),
            experts: number("expert_count")?,
            is_70b: is_70b(architecture, layers, grouped),
        })
    }
}

/// Whether llama.cpp takes it for a 70B model: of the architectures that run here, it does so for
/// these two, and asks for grouped heads only of the first.
fn is_70b(architecture: &str, layers: usize, grouped: bool) -> bool {
    match architecture {
        "llama" => layers == 80 && grouped,
        "qwen2" => layers == 80,
        _ => false,
    }
}

/// The format of a tensor that now has `dtype` and that `shape`, outermost first.
pub(crate) fn assign(
    scheme: Scheme,
    facts: &Facts,
    name: &str,
    dtype: DType,
    shape: &[usize],
) -> DType {
    if is_single(name, shape) {
        return if dtype.block_len() == 1 {
            DType::F32
        } else {
            dtype
        };
    }
    let Some(usual) = scheme.usual() else {
        return dtype;
    };
    if usual.block_len() == 1 {
        return usual;
    }
    let cols = *shape.last().expect("invariant: two dimensions or more");
    let is_head = name == "output.weight" || facts.tied && name == "token_embd.weight";
    let chosen = match is_head {
        true if !cols.is_multiple_of(usual.block_len()) => DType::Q8_0,
        true if usual == DType::Q8_0 => usual,
        true => DType::Q6_K,
        false => of_layer(scheme, usual, facts, name),
    };
    that_fits(chosen, cols)
}

/// Whether readers expect it in single precision: vectors, biases, norms and routers are small, and
/// every error in them is in every value behind them.
pub(crate) fn is_single(name: &str, shape: &[usize]) -> bool {
    shape.len() < 2
        || !name.ends_with("weight")
        || name.contains("_norm.weight")
        || name.contains("ffn_gate_inp.weight")
}

fn of_layer(scheme: Scheme, usual: DType, facts: &Facts, name: &str) -> DType {
    let is_mix = matches!(scheme, Scheme::Q4KM | Scheme::Q5KM);
    let eight = facts.experts == 8;
    let of_values = ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"];
    if of_values.iter().any(|part| name.contains(part)) {
        return match () {
            () if eight => DType::Q8_0,
            () if is_mix && wants_more(name, facts.layers) => DType::Q6_K,
            () if facts.is_70b && usual == DType::Q4_K => DType::Q5_K,
            () => usual,
        };
    }
    if eight && name.contains("attn_k.weight") {
        return DType::Q8_0;
    }
    if eight && scheme == Scheme::Q4KM && name.contains("attn_output.weight") {
        return DType::Q5_K;
    }
    if is_mix && name.contains("ffn_down") && wants_more(name, facts.layers) {
        return DType::Q6_K;
    }
    usual
}

/// Whether the layer of this tensor is in the first or last eighth, or a third one between.
fn wants_more(name: &str, layers: usize) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| {
        let (number, _) = rest.split_once('.')?;
        number.parse::<usize>().ok()
    });
    let eighth = layers / 8;
    layer
        .is_some_and(|layer| layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2)
}

/// The format, or a like one whose blocks the rows fill.
fn that_fits(dtype: DType, cols: usize) -> DType {
    let fits = |dtype: DType| cols.is_multiple_of(dtype.block_len());
    let smaller = match dtype {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        other => other,
    };
    match () {
        () if fits(dtype) => dtype,
        () if fits(smaller) => smaller,
        () => DType::F16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_those_of_llama_cpp() {
        // As llama-quantize assigned them in files of these shapes.
        let facts = Facts {
            layers: 28,
            tied: true,
            experts: 0,
            is_70b: false,
        };
        let of = |name: &str| assign(Scheme::Q4KM, &facts, name, DType::F16, &[1024, 1024]);
        assert_eq!(of("token_embd.weight"), DType::Q6_K);
        assert_eq!(of("blk.0.attn_q.weight"), DType::Q4_K);
        assert_eq!(of("blk.0.attn_norm.weight"), DType::F32);
        let more: Vec<usize> = (0..28)
            .filter(|layer| of(&format!("blk.{layer}.ffn_down.weight")) == DType::Q6_K)
            .collect();
        assert_eq!(more, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]);
        assert_eq!(of("blk.5.attn_v.weight"), DType::Q6_K);
        assert_eq!(of("blk.6.attn_v.weight"), DType::Q4_K);
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_a_like_format() {
        let facts = Facts {
            layers: 30,
            tied: true,
            experts: 0,
            is_70b: false,
        };
        let of = |scheme, name, cols| assign(scheme, &facts, name, DType::F32, &[8, cols]);
        assert_eq!(of(Scheme::Q4KM, "blk.9.attn_q.weight", 576), DType::Q5_0);
        assert_eq!(of(Scheme::Q5KM, "blk.9.attn_q.weight", 576), DType::Q5_1);
        assert_eq!(of(Scheme::Q4KM, "blk.0.attn_v.weight", 576), DType::Q8_0);
        assert_eq!(of(Scheme::Q4KM, "token_embd.weight", 576), DType::Q8_0);
        assert_eq!(of(Scheme::Q4KM, "blk.9.attn_q.weight", 100), DType::F16);
    }

    #[test]
    fn values_of_70b_models_get_five_bits() -> Result<(), Error> {
        // As llama-quantize assigned them in files of 80 layers.
        let of = |architecture: &str, layers: u32, kv_heads: Option<u32>| {
            let mut writer = crate::GgufWriter::new();
            writer.set("general.architecture", architecture)?;
            writer.set(&format!("{architecture}.block_count"), layers)?;
            writer.set(&format!("{architecture}.attention.head_count"), 64u32)?;
            if let Some(heads) = kv_heads {
                writer.set(&format!("{architecture}.attention.head_count_kv"), heads)?;
            }
            let model = Gguf::from_bytes("model", writer.start(Vec::new())?.finish()?)?;
            let facts = Facts::of(&model)?;
            // Neither at an end nor a third one between.
            let name = "blk.11.attn_v.weight";
            let shape = [1024, 8192];
            Ok::<_, Error>(assign(Scheme::Q4KM, &facts, name, DType::F16, &shape))
        };
        assert_eq!(of("llama", 80, Some(8))?, DType::Q5_K);
        assert_eq!(of("llama", 80, Some(64))?, DType::Q4_K);
        assert_eq!(of("llama", 80, None)?, DType::Q4_K);
        assert_eq!(of("qwen2", 80, Some(8))?, DType::Q5_K);
        assert_eq!(of("qwen2", 80, Some(64))?, DType::Q5_K);
        assert_eq!(of("qwen2", 64, Some(8))?, DType::Q4_K);
        assert_eq!(of("qwen3", 80, Some(8))?, DType::Q4_K);
        Ok(())
    }
}
