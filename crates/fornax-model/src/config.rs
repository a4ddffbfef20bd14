//! A model's dimensions, read from metadata and checked against each other, and what follows
//! from them for memory. Nothing here defaults to some model's dimensions.

use fornax_backend::{KvType, RopeStyle};
use fornax_gguf::Gguf;

use crate::keys::Keys;
use crate::{Architecture, LoadError};

/// Everything about a decoder that is a number.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which row of the table.
    pub architecture: Architecture,
    /// Decoder blocks.
    pub layers: usize,
    /// Elements of the residual stream.
    pub width: usize,
    /// Tokens the model was trained to attend over.
    pub context: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query or key head.
    pub k_dim: usize,
    /// Elements of a value head.
    pub v_dim: usize,
    /// Epsilon of every RMS norm.
    pub eps: f32,
    /// Whether each query and key head is normalised before it turns.
    pub qk_norm: bool,
    /// Rotary position embedding.
    pub rope: Rope,
    /// What follows attention in a block.
    pub feed_forward: FeedForward,
}

/// Rotary position embedding of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Which elements of a head pair up.
    pub style: RopeStyle,
    /// Base of the geometric series of frequencies.
    pub base: f32,
    /// Leading elements of a head that turn; even.
    pub rotary: usize,
}

/// The second half of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForward {
    /// One gated MLP.
    Dense {
        /// Its hidden width.
        hidden: usize,
    },
    /// A choice of small ones.
    Experts {
        /// How many there are.
        experts: usize,
        /// How many run for a token.
        used: usize,
        /// Hidden width of one.
        hidden: usize,
    },
}

/// What a model takes of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All tensors as the file has them.
    pub weights: u64,
    /// K and V of one token over all layers.
    pub kv_per_token: u64,
}

impl Config {
    /// Reads the configuration of a file whose architecture is known.
    ///
    /// # Errors
    /// An unknown architecture; metadata that is missing, of another type or contradictory.
    pub fn from_gguf(file: &Gguf) -> Result<Config, LoadError> {
        Architecture::of(file)?.config(file)
    }

    /// What this model takes with a KV cache of this element type.
    pub fn memory(&self, file: &Gguf, kv: KvType) -> Memory {
        let weights = file.tensors().map(|tensor| tensor.data.len() as u64).sum();
        Memory {
            weights,
            kv_per_token: (self.layers * self.kv_bytes(kv)) as u64,
        }
    }

    /// Bytes of K and V of one token in one layer.
    pub(crate) fn kv_bytes(&self, kv: KvType) -> usize {
        kv.bytes(self.kv_heads * (self.k_dim + self.v_dim))
    }

    /// The part that every decoder with grouped-query attention has in common.
    pub(crate) fn grouped_query(
        keys: &Keys<'_>,
        architecture: Architecture,
        style: RopeStyle,
        qk_norm: bool,
        feed_forward: FeedForward,
    ) -> Result<Config, LoadError> {
        let width = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let kv_heads = keys.size_or("attention.head_count_kv", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            let problem = format!("it must divide the {heads} query heads");
            return Err(keys.refuse(&keys.full("attention.head_count_kv"), kv_heads, &problem));
        }
        let k_dim = match keys.size_or("attention.key_length", width / heads)? {
            0 => {
                return Err(keys.refuse(
                    &keys.full("attention.head_count"),
                    heads,
                    "more heads than elements",
                ));
            }
            k_dim => k_dim,
        };
        let v_dim = keys.size_or("attention.value_length", k_dim)?;
        let rotary = keys.size_or("rope.dimension_count", k_dim)?;
        if rotary > k_dim || !rotary.is_multiple_of(2) {
            let problem = format!("it must be even and at most the key length {k_dim}");
            return Err(keys.refuse(&keys.full("rope.dimension_count"), rotary, &problem));
        }
        keys.only_text("rope.scaling.type", "none")?;
        keys.absent(
            "attention.sliding_window",
            "sliding windows are not supported",
        )?;
        Ok(Config {
            architecture,
            layers: keys.size("block_count")?,
            width,
            context: keys.size("context_length")?,
            vocabulary: vocabulary(keys)?,
            heads,
            kv_heads,
            k_dim,
            v_dim,
            eps: keys.factor("attention.layer_norm_rms_epsilon")?,
            qk_norm,
            rope: Rope {
                style,
                base: keys.factor("rope.freq_base")?,
                rotary,
            },
            feed_forward,
        })
    }
}

/// Rows of the embedding table, which `vocab_size` must not contradict.
fn vocabulary(keys: &Keys<'_>) -> Result<usize, LoadError> {
    const TABLE: &str = "token_embd.weight";
    let stated = keys
        .file
        .metadata()
        .optional_u32(&keys.full("vocab_size"))?;
    let file = keys.file.source().to_owned();
    let width = keys.size("embedding_length")?;
    let Some(table) = keys.file.tensor(TABLE) else {
        let tokens = keys
            .file
            .metadata()
            .optional_strings("tokenizer.ggml.tokens")?;
        return Err(LoadError::MissingTensor {
            file,
            name: TABLE.to_owned(),
            architecture: keys.architecture.to_owned(),
            shape: vec![tokens.map_or(0, <[String]>::len), width],
        });
    };
    let rows = match (table.shape, stated) {
        (&[rows, _], None) => return Ok(rows),
        (&[rows, _], Some(stated)) if rows == stated as usize => return Ok(rows),
        (_, Some(stated)) => stated as usize,
        (shape, None) => shape[0],
    };
    Err(LoadError::TensorShape {
        file,
        name: TABLE.to_owned(),
        found: table.shape.to_vec(),
        expected: vec![rows, width],
    })
}
