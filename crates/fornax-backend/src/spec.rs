//! Parameter structs: what architectures differ in, handed to an operation by value.
//!
//! Shapes are row-major, outermost first. Holds numbers only: no buffer, no behaviour.

use fornax_gguf::DType;

use crate::BackendError;

/// Heads side by side in the rows of an activation matrix: columns
/// `offset .. offset + count * dim` of rows that are `stride` long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Heads {
    /// Elements from one token's row to the next.
    pub stride: usize,
    /// Column of the first head.
    pub offset: usize,
    /// Number of heads.
    pub count: usize,
    /// Elements of one head.
    pub dim: usize,
}

/// How rotary position embedding (Su et al. 2021, arXiv:2104.09864) pairs a head's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element `i` turns with element `i + rotary / 2`: Qwen, Gemma, GPT-NeoX.
    HalfSplit,
    /// Element `2i` turns with element `2i + 1`: Llama as GGUF stores it.
    AdjacentPairs,
}

/// Rotary position embedding of some heads.
#[derive(Debug)]
pub struct RopeSpec<'a, W> {
    /// Which elements pair up.
    pub style: RopeStyle,
    /// Leading elements of a head that turn; the rest stay.
    pub rotary: usize,
    /// Radians per position of each pair. `[rotary / 2]`
    pub frequencies: &'a W,
    /// Factor on sine and cosine (YaRN's attention scaling); 1 otherwise.
    pub magnitude: f32,
}

/// What happens to a fused Q, K and V projection before attention.
#[derive(Debug)]
pub struct QkvSpec<'a, W> {
    /// Which page tables of the step the cache goes by.
    pub group: usize,
    /// Where Q lies in the fused rows.
    pub q: Heads,
    /// Where K lies.
    pub k: Heads,
    /// Where V lies.
    pub v: Heads,
    /// RMS norm weights of each Q head and of each K head, where the model has them. `[q.dim]`, `[k.dim]`
    pub norms: Option<(&'a W, &'a W)>,
    /// Epsilon of those norms.
    pub eps: f32,
    /// Rotation of Q and K.
    pub rope: RopeSpec<'a, W>,
}

/// Which of the step's new tokens attend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queries {
    /// All of them.
    #[default]
    All,
    /// Those of [`StepRows::outputs`](crate::StepRows::outputs); what others are given is undefined.
    Outputs,
}

/// Causal attention of the step's new tokens over their sequences' pages.
#[derive(Debug)]
pub struct AttentionSpec<'a, W> {
    /// Which page tables of the step the cache goes by.
    pub group: usize,
    /// Which tokens attend.
    pub queries: Queries,
    /// Where Q lies in its buffer. Query head `h` reads KV head `h / (q.count / kv_heads)`.
    pub q: Heads,
    /// Heads of the cache; divides `q.count`.
    pub kv_heads: usize,
    /// Elements of a V head, and so of an output head.
    pub v_dim: usize,
    /// Factor on the scores, usually `1 / sqrt(q.dim)`.
    pub scale: f32,
    /// A query at position `p` sees positions above `p - window`; `None` sees all up to `p`.
    pub window: Option<usize>,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One more logit a head in the softmax, with no value behind it. `[q.count]`
    pub sinks: Option<&'a W>,
}

/// The nonlinearity of a gated linear unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`
    Silu,
    /// `gelu(gate) * up` with the tanh approximation.
    GeluTanh,
    /// gpt-oss: `gate` capped above and `up` both ways by `limit`,
    /// then `gate * sigmoid(alpha * gate) * (up + 1)`.
    ClampedSwiglu {
        /// Slope of the sigmoid.
        alpha: f32,
        /// Largest value let through.
        limit: f32,
    },
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// Choice of experts for each token.
#[derive(Debug)]
pub struct RouteSpec<'a, W> {
    /// Experts to choose from.
    pub experts: usize,
    /// Experts chosen a token.
    pub used: usize,
    /// How logits become scores.
    pub scoring: Scoring,
    /// Added to the scores for the choice alone, not to the weights. `[experts]`
    pub selection_bias: Option<&'a W>,
    /// Whether the chosen scores are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights at the end.
    pub scale: f32,
    /// Whether only some groups of experts are open to a token.
    pub groups: Option<ExpertGroups>,
}

/// Experts in groups side by side, all of one size. Those of the groups that rank highest are open
/// to a token; groups rank by the sum of their highest (biased) scores, ties by lower index
/// (DeepSeek-V2, arXiv:2405.04434, sums one; DeepSeek-V3, arXiv:2412.19437, two).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups that there are; divides the experts.
    pub count: usize,
    /// Groups that are open; together they have at least as many experts as are used.
    pub open: usize,
    /// Scores of a group that are summed, at most its experts.
    pub summed: usize,
}

/// The feed-forward of the chosen experts.
#[derive(Debug)]
pub struct ExpertsSpec<'a, W> {
    /// Experts of the layer.
    pub experts: usize,
    /// Experts chosen a token.
    pub used: usize,
    /// Width of the model.
    pub width: usize,
    /// Hidden width of one expert.
    pub hidden: usize,
    /// Its nonlinearity.
    pub activation: Activation,
    /// Added behind the projections, where the model has them.
    pub biases: Option<ExpertBiases<'a, W>>,
}

/// Biases of all experts of a layer, one expert after another; each is a vector to a backend.
#[derive(Debug)]
pub struct ExpertBiases<'a, W> {
    /// Of gate, then of up. `[experts * 2 * hidden]`
    pub gate_up: &'a W,
    /// `[experts * width]`
    pub down: &'a W,
}

/// Heads that each go through a matrix of their own, but for what passes as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadLinearSpec {
    /// Number of heads.
    pub heads: usize,
    /// Leading elements of a head that pass.
    pub passed: usize,
    /// Elements of a head behind them that are multiplied.
    pub inputs: usize,
    /// Elements that come out of it.
    pub outputs: usize,
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 4 bytes.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// Signed bytes under a half-precision scale for every 32 elements of a head, whose size that
    /// divides: `fornax_gguf::quant::Q8_0`.
    Q8_0,
}

impl KvType {
    /// Elements that share a scale of [`Q8_0`](Self::Q8_0).
    pub const BLOCK: usize = 32;

    /// Bytes of this many elements side by side.
    pub fn bytes(self, elements: usize) -> usize {
        match self {
            KvType::F32 => 4 * elements,
            KvType::F16 | KvType::Bf16 => 2 * elements,
            KvType::Q8_0 => DType::Q8_0.block_bytes() * elements.div_ceil(Self::BLOCK),
        }
    }

    /// Whether heads of this size can be kept so.
    pub fn fits(self, dim: usize) -> bool {
        self != KvType::Q8_0 || dim.is_multiple_of(Self::BLOCK)
    }
}

/// The pages of one layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Pages of the pool.
    pub pages: usize,
    /// Tokens of a page.
    pub page_size: usize,
    /// K and V heads.
    pub kv_heads: usize,
    /// Elements of a K head.
    pub k_dim: usize,
    /// Elements of a V head.
    pub v_dim: usize,
    /// How an element is kept.
    pub element: KvType,
}

/// Specs are copied whatever their weights are: they only borrow them.
macro_rules! copied {
    ($($spec:ident)*) => {$(
        impl<W> Clone for $spec<'_, W> {
            fn clone(&self) -> Self {
                *self
            }
        }
        impl<W> Copy for $spec<'_, W> {}
    )*};
}

copied! { RopeSpec QkvSpec AttentionSpec RouteSpec ExpertsSpec ExpertBiases }

impl KvShape {
    /// Says what is wrong where the heads cannot be kept in this type.
    ///
    /// # Errors
    /// A head that is not whole blocks.
    pub fn check(&self) -> Result<(), BackendError> {
        for (name, dim) in [("K", self.k_dim), ("V", self.v_dim)] {
            if !self.element.fits(dim) {
                return Err(BackendError(format!(
                    "a {name} head of {dim} elements is not whole blocks of {}, as a cache in q8_0 needs; choose f16",
                    KvType::BLOCK
                )));
            }
        }
        Ok(())
    }
}
