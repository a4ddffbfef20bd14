//! What decoders are made of: attention of two kinds, a gated MLP, experts.
//!
//! A block's half reads `normed` and leaves what it adds to the residual stream in `delta`.

mod attention;
mod experts;
mod latent;
mod mlp;

use fornax_backend::{Backend, Queries, RopeSpec};

use crate::activations::Activations;
use crate::config::Block;
use crate::loader::{Device, Dim, Loader};
use crate::{Config, FeedForward, LoadError};

use attention::GroupedQuery;
use experts::Experts;
use latent::LatentAttention;
use mlp::{Mlp, MlpBuffers};

/// One decoder block: attention and feed-forward, each after a norm and added to the stream.
pub(crate) struct Layer<D: Device> {
    /// `[width]`
    pub attention_norm: D::Weight,
    attention: Attention<D>,
    /// Norm of what attention adds, where the architecture has it. `[width]`
    pub after_attention: Option<D::Weight>,
    /// `[width]`
    pub feed_forward_norm: D::Weight,
    feed_forward: FeedForwardBlock<D>,
    /// Norm of what the feed-forward adds, where the architecture has it. `[width]`
    pub after_feed_forward: Option<D::Weight>,
}

/// The first half of a block.
enum Attention<D: Device> {
    GroupedQuery(GroupedQuery<D>),
    Latent(LatentAttention<D>),
}

/// The second half of a block.
enum FeedForwardBlock<D: Device> {
    Dense(Mlp<D>),
    Experts(Box<Experts<D>>),
}

/// Where in the model and in the step a block runs.
pub(crate) struct Place<'a, B: Backend> {
    pub config: &'a Config,
    pub block: &'a Block,
    /// Radians per position of each pair that turns in this block. `[rotary / 2]`
    pub frequencies: &'a B::Weight,
    pub step: &'a B::Step,
    /// New tokens of the step.
    pub n: usize,
    /// Which of them attend.
    pub queries: Queries,
}

impl<'a, B: Backend> Place<'a, B> {
    /// How this block's queries and keys turn.
    pub fn rope(&self) -> RopeSpec<'a, B::Weight> {
        let rope = &self.config.ropes[self.block.rope];
        RopeSpec {
            style: rope.style,
            rotary: rope.rotary,
            frequencies: self.frequencies,
            magnitude: rope.magnitude(),
        }
    }
}

impl<D: Device> Layer<D> {
    /// Loads block `index`.
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &Config,
        index: usize,
    ) -> Result<Self, LoadError> {
        let norm = |name: &str| format!("blk.{index}.{name}.weight");
        let width = config.width_dim();
        let after = |loader: &mut Loader<'_, D>, name| match config.norms.after {
            true => loader.vector(&norm(name), width).map(Some),
            false => Ok(None),
        };
        let before = norm(config.norms.before_feed_forward);
        Ok(Self {
            attention_norm: loader.vector(&norm("attn_norm"), width)?,
            attention: match config.latent {
                None => Attention::GroupedQuery(GroupedQuery::load(loader, config, index)?),
                Some(latent) => {
                    Attention::Latent(LatentAttention::load(loader, config, index, latent)?)
                }
            },
            after_attention: after(loader, "post_attention_norm")?,
            feed_forward_norm: loader.vector(&before, width)?,
            feed_forward: match config.blocks[index].feed_forward {
                FeedForward::Dense { hidden } => {
                    let hidden = Dim::new(hidden, "feed_forward_length");
                    FeedForwardBlock::Dense(Mlp::load(loader, config, index, "", hidden)?)
                }
                FeedForward::Experts(mixture) => {
                    let experts = Experts::load(loader, config, index, mixture)?;
                    FeedForwardBlock::Experts(Box::new(experts))
                }
            },
            after_feed_forward: after(loader, "post_ffw_norm")?,
        })
    }
}

impl<B: Backend> Layer<B> {
    /// `attended` = what attention collects for `normed` of the tokens that attend; K and V of all enter
    /// the cache.
    pub fn attend(
        &self,
        backend: &mut B,
        activations: &mut Activations<B>,
        kv: &mut B::Kv,
        place: &Place<'_, B>,
    ) {
        match &self.attention {
            Attention::GroupedQuery(attention) => attention.attend(backend, activations, kv, place),
            Attention::Latent(attention) => attention.attend(backend, activations, kv, place),
        }
    }

    /// `delta` = what attention adds for `n` tokens, of `attended`.
    pub fn project(&self, backend: &mut B, activations: &mut Activations<B>, n: usize) {
        match &self.attention {
            Attention::GroupedQuery(attention) => attention.project(backend, activations, n),
            Attention::Latent(attention) => attention.project(backend, activations, n),
        }
    }

    /// `delta = feed_forward(normed)` for `n` tokens.
    pub fn feed_forward(&self, backend: &mut B, activations: &mut Activations<B>, n: usize) {
        let a = activations;
        match &self.feed_forward {
            FeedForwardBlock::Experts(experts) => experts.forward(backend, a, n),
            FeedForwardBlock::Dense(mlp) => {
                let buffers = MlpBuffers {
                    out: &mut a.delta,
                    projected: &mut a.projected,
                    activated: &mut a.activated,
                    x: &a.normed,
                };
                mlp.forward(backend, buffers, n);
            }
        }
    }
}
