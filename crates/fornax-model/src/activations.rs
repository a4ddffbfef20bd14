//! The buffers that a step's hidden states pass through, made once for the largest step.

use fornax_backend::{Backend, BackendError, Element, SAMPLE_WORDS};

use crate::Config;

/// Scratch of the forward pass. Every buffer is row-major; only the rows of the step are used.
pub(crate) struct Activations<B: Backend> {
    /// The residual stream. `[tokens, width]`
    pub residual: B::Buffer,
    /// The residual stream after a norm: what a block's half reads. `[tokens, width]`
    pub normed: B::Buffer,
    /// What a block's half adds to the residual stream. `[tokens, width]`
    pub delta: B::Buffer,
    /// What a block's half works out beside `delta`: the shared expert's part, or `delta` under a
    /// norm of its own. `[tokens, width]`
    pub beside: B::Buffer,
    /// Q, K and V side by side. `[tokens, heads * k_dim + kv_heads * (k_dim + v_dim)]`; with latent
    /// attention queries alone. `[tokens, heads * (rotary + plain)]`
    pub qkv: B::Buffer,
    /// Values weighed by attention. `[tokens, heads * v_dim]`
    pub attended: B::Buffer,
    /// The same of the tokens that go to the head. `[tokens, heads * v_dim]`
    pub attended_outputs: B::Buffer,
    /// Buffers of latent attention, empty without: compressed queries, before and after their
    /// norm. `[tokens, q_rank]`
    pub short: B::Buffer,
    /// `[tokens, q_rank]`
    pub short_normed: B::Buffer,
    /// The turned part of the key, and K and V compressed. `[tokens, rotary + kv_rank]`
    pub compressed: B::Buffer,
    /// Queries as they meet the cache. `[tokens, heads * k_dim]`
    pub absorbed: B::Buffer,
    /// Values expanded. `[tokens, heads * value]`
    pub values: B::Buffer,
    /// Gate and up of a dense or shared MLP. `[tokens, 2 * hidden]`
    pub projected: B::Buffer,
    /// Their gated product. `[tokens, hidden]`
    pub activated: B::Buffer,
    /// The shared expert's gate. `[tokens]`
    pub gate: B::Buffer,
    /// The router's logits. `[tokens, experts]`, empty without
    pub router_logits: B::Buffer,
    /// Chosen experts. `u32 [tokens, used]`, empty without
    pub expert_ids: B::Buffer,
    /// Their weights. `[tokens, used]`, empty without
    pub expert_weights: B::Buffer,
    /// Hidden states that go to the head. `[tokens, width]`
    pub outputs: B::Buffer,
    /// `[tokens, vocabulary]`; a backend on the CPU touches only the pages it writes
    pub logits: B::Buffer,
    /// Encoded answers. `u32 [rows, SAMPLE_WORDS]`
    pub samples: B::Buffer,
    /// Pooled hidden states. `[rows, width]`
    pub pooled: B::Buffer,
}

impl<B: Backend> Activations<B> {
    /// Makes room for steps of up to `tokens` new tokens in up to `rows` sequences.
    pub fn new(
        backend: &mut B,
        config: &Config,
        tokens: usize,
        rows: usize,
    ) -> Result<Self, BackendError> {
        let sizes = config.blocks.iter().map(|block| block.feed_forward.sizes());
        let hidden = sizes.clone().map(|(hidden, _)| hidden).max();
        let mixture = sizes.filter_map(|(_, mixture)| mixture).next();
        let (experts, used) = mixture.map_or((0, 0), |mixture| (mixture.experts, mixture.used));
        let hidden = hidden.unwrap_or(0);
        let widths = Widths::of(config);
        let mut float = |elements: usize| backend.alloc(Element::F32, tokens * elements);
        Ok(Self {
            residual: float(config.width)?,
            normed: float(config.width)?,
            delta: float(config.width)?,
            beside: float(config.width)?,
            qkv: float(widths.qkv)?,
            attended: float(config.heads * config.v_dim)?,
            attended_outputs: float(config.heads * config.v_dim)?,
            short: float(widths.short)?,
            short_normed: float(widths.short)?,
            compressed: float(widths.compressed)?,
            absorbed: float(widths.absorbed)?,
            values: float(widths.values)?,
            projected: float(2 * hidden)?,
            activated: float(hidden)?,
            gate: float(1)?,
            router_logits: float(experts)?,
            expert_weights: float(used)?,
            outputs: float(config.width)?,
            logits: float(config.vocabulary)?,
            pooled: backend.alloc(Element::F32, rows * config.width)?,
            expert_ids: backend.alloc(Element::U32, tokens * used)?,
            samples: backend.alloc(Element::U32, rows * SAMPLE_WORDS)?,
        })
    }
}

impl Config {
    /// Bytes that steps of up to `tokens` new tokens in up to `rows` sequences take for hidden states
    /// and logits, in single precision.
    pub fn activation_bytes(&self, tokens: usize, rows: usize) -> u64 {
        let sizes = self.blocks.iter().map(|block| block.feed_forward.sizes());
        let hidden = sizes.clone().map(|(hidden, _)| hidden).max().unwrap_or(0);
        let mixture = sizes.filter_map(|(_, mixture)| mixture).next();
        let routed = mixture.map_or(0, |mixture| mixture.experts + 2 * mixture.used);
        let Widths {
            qkv,
            short,
            compressed,
            absorbed,
            values,
        } = Widths::of(self);
        let attention =
            qkv + 2 * self.heads * self.v_dim + 2 * short + compressed + absorbed + values;
        let each = 5 * self.width + attention + 3 * hidden + 1 + routed + self.vocabulary;
        4 * (tokens * each + rows * (self.width + SAMPLE_WORDS)) as u64
    }
}

/// Elements a token of the buffers that depend on the kind of attention.
struct Widths {
    qkv: usize,
    short: usize,
    compressed: usize,
    absorbed: usize,
    values: usize,
}

impl Widths {
    fn of(config: &Config) -> Self {
        let Config {
            heads,
            kv_heads,
            k_dim,
            v_dim,
            ..
        } = *config;
        match config.latent {
            None => Self {
                qkv: heads * k_dim + kv_heads * (k_dim + v_dim),
                short: 0,
                compressed: 0,
                absorbed: 0,
                values: 0,
            },
            Some(latent) => Self {
                qkv: heads * (latent.rotary + latent.plain),
                short: latent.q_rank.unwrap_or(0),
                compressed: k_dim,
                absorbed: heads * k_dim,
                values: heads * latent.value,
            },
        }
    }
}
