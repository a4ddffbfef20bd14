//! A model's dimensions, read from metadata and checked against each other, and what follows
//! from them for memory. Nothing here defaults to some model's dimensions.

use fornax_backend::{
    Activation, ExpertGroups, KvType, RopeStyle, SKETCH_BLOCK, SKETCH_BYTES, Scoring,
};
use fornax_gguf::Gguf;

use crate::decoder::Decoder;
use crate::keys::Keys;
use crate::loader::{Checked, Dim, Joined, wanted};
use crate::rope::Rope;
use crate::{Architecture, LoadError, WeightStorage};

/// Everything about a decoder that is a number or a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which row of the table.
    pub architecture: Architecture,
    /// Elements of the residual stream.
    pub width: usize,
    /// Tokens the model was trained to attend over.
    pub context: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Factor on the embeddings.
    pub embedding_scale: f32,
    /// Epsilon of every RMS norm.
    pub eps: f32,
    /// Which norms stand around the halves of a block.
    pub norms: Norms,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads of the cache; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query or key head.
    pub k_dim: usize,
    /// Elements of a value head.
    pub v_dim: usize,
    /// Factor on the attention scores.
    pub attention_scale: f32,
    /// Whether each query and key head is normalised before it turns.
    pub qk_norm: bool,
    /// Whether the projections to Q, K and V have biases.
    pub qkv_bias: bool,
    /// Whether the projection behind attention has a bias.
    pub output_bias: bool,
    /// Whether every query head has one more logit in its softmax, with no value behind it.
    pub sinks: bool,
    /// Where K and V are kept compressed; their heads are then one.
    pub latent: Option<Latent>,
    /// Rotary position embeddings that blocks choose from.
    pub ropes: Vec<Rope>,
    /// Nonlinearity of every feed-forward.
    pub activation: Activation,
    /// What differs from block to block.
    pub blocks: Vec<Block>,
}

/// What may differ from block to block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// Positions that a query sees, its own among them; `None` for all.
    pub window: Option<usize>,
    /// Its rotary position embedding, in [`Config::ropes`].
    pub rope: usize,
    /// What follows attention.
    pub feed_forward: FeedForward,
}

/// The norms around the halves of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norms {
    /// What files call the norm before the feed-forward.
    pub before_feed_forward: &'static str,
    /// Whether what a half adds is normalised too.
    pub after: bool,
}

impl Norms {
    /// One before each half.
    pub const BEFORE: Norms = Norms {
        before_feed_forward: "ffn_norm",
        after: false,
    };
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): K and V of all heads come out of one
/// short vector a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Elements that queries are compressed to, where they are.
    pub q_rank: Option<usize>,
    /// Elements that keys and values are compressed to.
    pub kv_rank: usize,
    /// Elements of a query or key head that turn; they are not compressed.
    pub rotary: usize,
    /// Elements of a query or key head that do not turn.
    pub plain: usize,
    /// Elements of a value head.
    pub value: usize,
}

/// The second half of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FeedForward {
    /// One gated MLP.
    Dense {
        /// Its hidden width.
        hidden: usize,
    },
    /// A choice of small ones.
    Experts(Mixture),
}

/// A choice of small feed-forwards for each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mixture {
    /// How many there are.
    pub experts: usize,
    /// How many run for a token.
    pub used: usize,
    /// Hidden width of one.
    pub hidden: usize,
    /// How the router's logits become scores.
    pub scoring: Scoring,
    /// Whether there are biases on the scores for the choice alone.
    pub selection_bias: bool,
    /// Whether the weights of the chosen ones are divided by their sum.
    pub normalise: bool,
    /// Factor on those weights.
    pub scale: f32,
    /// Whether only some groups are open to a token.
    pub groups: Option<ExpertGroups>,
    /// Whether router and experts have biases.
    pub biases: bool,
    /// What runs for every token beside them.
    pub shared: Option<SharedExpert>,
}

/// The feed-forward that runs for every token beside the chosen ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its hidden width.
    pub hidden: usize,
    /// Whether a gate of its own weighs it.
    pub gated: bool,
}

/// What a model takes of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All tensors as the file has them.
    pub weights: u64,
    /// What a backend keeps beside them at most: a sketch of the head.
    pub sketch: u64,
    /// K and V of one token over all layers.
    pub kv_per_token: u64,
}

impl Memory {
    /// The weights, and K and V of `context` tokens.
    pub fn at(&self, context: usize) -> u64 {
        let kv = self.kv_per_token.saturating_mul(context as u64);
        self.weights.saturating_add(kv)
    }
}

impl Config {
    /// Reads the configuration of a file whose architecture is known.
    ///
    /// # Errors
    /// An unknown architecture; metadata that is missing, of another type or contradictory.
    pub fn from_gguf(file: &Gguf) -> Result<Config, LoadError> {
        Architecture::of(file)?.config(file)
    }

    /// Reads the configuration of a file and checks that it has every tensor that the architecture
    /// needs, in the shape that the configuration asks for, and no other. Reads none of them.
    ///
    /// # Errors
    /// Whatever loading the model would refuse.
    pub fn checked(file: &Gguf) -> Result<Config, LoadError> {
        let decoder = Decoder::load(file, &mut Checked::default(), WeightStorage::Native)?;
        Ok(decoder.config)
    }

    /// The matrices of a model as a backend will get them. Reads none of them.
    ///
    /// # Errors
    /// Whatever loading the model would refuse.
    pub fn matrices(file: &Gguf) -> Result<Vec<Joined>, LoadError> {
        let mut checked = Checked::default();
        Decoder::load(file, &mut checked, WeightStorage::Native)?;
        Ok(checked.matrices)
    }

    /// Whether the model was trained for so many tokens.
    ///
    /// # Errors
    /// It was not.
    pub fn check_context(&self, context: usize) -> Result<(), LoadError> {
        let trained = self.context;
        match context <= trained {
            true => Ok(()),
            false => Err(LoadError::Options(format!(
                "a context of {context} tokens was asked for, but the model was trained for {trained}; ask for at most {trained}"
            ))),
        }
    }

    /// Decoder blocks.
    pub fn layers(&self) -> usize {
        self.blocks.len()
    }

    /// What this model takes with a KV cache of this element type.
    pub fn memory(&self, file: &Gguf, kv: KvType) -> Memory {
        let weights = file.tensors().map(|tensor| tensor.len_bytes() as u64).sum();
        let head = self.vocabulary.saturating_mul(self.width) as u64;
        Memory {
            weights,
            sketch: head / SKETCH_BLOCK as u64 * SKETCH_BYTES as u64,
            // A damaged file may have as many blocks as elements of a head; it is refused later.
            kv_per_token: (self.layers() as u64).saturating_mul(self.kv_bytes(kv) as u64),
        }
    }

    /// The width as tensors have it.
    pub(crate) fn width_dim(&self) -> Dim {
        Dim::new(self.width, "embedding_length")
    }

    /// Bytes of K and V of one token in one layer.
    pub(crate) fn kv_bytes(&self, kv: KvType) -> usize {
        kv.bytes(self.kv_heads * (self.k_dim + self.v_dim))
    }

    /// A decoder with grouped-query attention, a norm before each half, and the same feed-forward
    /// in every block. Architectures change what they have otherwise.
    pub(crate) fn grouped_query(
        keys: &Keys<'_>,
        architecture: Architecture,
        style: RopeStyle,
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
        let block = Block {
            window: None,
            rope: 0,
            feed_forward,
        };
        Ok(Config {
            architecture,
            width,
            context: keys.size("context_length")?,
            vocabulary: vocabulary(keys)?,
            embedding_scale: 1.0,
            eps: keys.factor("attention.layer_norm_rms_epsilon")?,
            norms: Norms::BEFORE,
            heads,
            kv_heads,
            k_dim,
            v_dim: keys.size_or("attention.value_length", k_dim)?,
            attention_scale: (k_dim as f32).sqrt().recip(),
            qk_norm: false,
            qkv_bias: false,
            output_bias: false,
            sinks: false,
            latent: None,
            ropes: vec![Rope::read(keys, style, k_dim)?],
            activation: Activation::Silu,
            blocks: vec![block; keys.layers()?],
        })
    }
}

impl FeedForward {
    /// One gated MLP, as wide as the metadata says.
    pub(crate) fn dense(keys: &Keys<'_>) -> Result<FeedForward, LoadError> {
        let hidden = keys.size("feed_forward_length")?;
        Ok(FeedForward::Dense { hidden })
    }

    /// Hidden widths of a dense or shared MLP, and what is chosen from: 0 where there is none.
    pub(crate) fn sizes(&self) -> (usize, Option<Mixture>) {
        match *self {
            FeedForward::Dense { hidden } => (hidden, None),
            FeedForward::Experts(mixture) => {
                let hidden = mixture.shared.map_or(0, |shared| shared.hidden);
                (hidden, Some(mixture))
            }
        }
    }
}

impl Mixture {
    /// Experts under a softmax, `hidden` wide each, weighed as they are.
    pub(crate) fn softmax(keys: &Keys<'_>, hidden: usize) -> Result<Mixture, LoadError> {
        let experts = keys.size("expert_count")?;
        let used = keys.size("expert_used_count")?;
        if used > experts {
            let problem = format!("the model has only {experts} experts");
            return Err(keys.refuse(&keys.full("expert_used_count"), used, &problem));
        }
        Ok(Mixture {
            experts,
            used,
            hidden,
            scoring: Scoring::Softmax,
            selection_bias: false,
            normalise: false,
            scale: keys.factor_or("expert_weights_scale", 1.0)?,
            groups: None,
            biases: false,
            shared: None,
        })
    }
}

/// Rows of the embedding table, which `vocab_size` must not contradict.
fn vocabulary(keys: &Keys<'_>) -> Result<usize, LoadError> {
    const TABLE: &str = "token_embd.weight";
    const STATED: &str = "vocab_size";
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let metadata = keys.file.metadata();
    let stated = metadata.optional_u32(&keys.full(STATED))?;
    let file = keys.file.file_of(TABLE);
    let name = keys.file.called(TABLE).into_owned();
    let width = Dim::new(keys.size("embedding_length")?, "embedding_length");
    let rows = stated.map(|rows| Dim::new(rows as usize, STATED));
    let Some(table) = keys.file.tensor(TABLE) else {
        let tokens = metadata.optional_strings(TOKENS)?;
        let tokens = Dim::new(tokens.map_or(0, <[String]>::len), TOKENS);
        let shape = [rows.unwrap_or(tokens), width];
        return Err(LoadError::MissingTensor {
            file,
            name,
            architecture: keys.architecture.to_owned(),
            wanted: wanted(keys.file, &shape),
        });
    };
    let rows = match (table.shape, rows) {
        (&[rows, _], None) => return Ok(rows),
        (&[found, _], Some(stated)) if found == stated.size => return Ok(found),
        (_, Some(stated)) => stated,
        (shape, None) => Dim::new(shape[0], STATED),
    };
    let shape = [rows, width];
    Err(LoadError::TensorShape {
        file,
        name,
        found: table.shape.to_vec(),
        wanted: wanted(keys.file, &shape),
    })
}
