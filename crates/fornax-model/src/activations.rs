//! The buffers that a step's hidden states pass through, made once for the largest step.

use fornax_backend::{Backend, BackendError, Element, SAMPLE_WORDS};

use crate::{Config, FeedForward};

/// Scratch of the forward pass. Every buffer is row-major; only the rows of the step are used.
pub(crate) struct Activations<B: Backend> {
    /// The residual stream. `[tokens, width]`
    pub residual: B::Buffer,
    /// The residual stream after a norm: what a block's half reads. `[tokens, width]`
    pub normed: B::Buffer,
    /// What a block's half adds to the residual stream. `[tokens, width]`
    pub delta: B::Buffer,
    /// Q, K and V side by side. `[tokens, heads * k_dim + kv_heads * (k_dim + v_dim)]`
    pub qkv: B::Buffer,
    /// Values weighed by attention. `[tokens, heads * v_dim]`
    pub attended: B::Buffer,
    /// Gate and up of a dense MLP. `[tokens, 2 * hidden]`, empty with experts
    pub projected: B::Buffer,
    /// Their gated product. `[tokens, hidden]`, empty with experts
    pub activated: B::Buffer,
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
        let (hidden, experts, used) = match config.feed_forward {
            FeedForward::Dense { hidden } => (hidden, 0, 0),
            FeedForward::Experts { experts, used, .. } => (0, experts, used),
        };
        let mut float = |elements: usize| backend.alloc(Element::F32, elements);
        let qkv = config.heads * config.k_dim + config.kv_heads * (config.k_dim + config.v_dim);
        Ok(Self {
            residual: float(tokens * config.width)?,
            normed: float(tokens * config.width)?,
            delta: float(tokens * config.width)?,
            qkv: float(tokens * qkv)?,
            attended: float(tokens * config.heads * config.v_dim)?,
            projected: float(tokens * 2 * hidden)?,
            activated: float(tokens * hidden)?,
            router_logits: float(tokens * experts)?,
            expert_weights: float(tokens * used)?,
            outputs: float(tokens * config.width)?,
            logits: float(tokens * config.vocabulary)?,
            pooled: float(rows * config.width)?,
            expert_ids: backend.alloc(Element::U32, tokens * used)?,
            samples: backend.alloc(Element::U32, rows * SAMPLE_WORDS)?,
        })
    }
}
