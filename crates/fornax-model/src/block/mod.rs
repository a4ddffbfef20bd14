//! What decoders are made of: attention, a gated MLP, experts.
//!
//! A block's half reads `normed` and leaves what it adds to the residual stream in `delta`.

mod attention;
mod experts;
mod mlp;

use fornax_backend::Backend;

use crate::activations::Activations;
use crate::loader::Loader;
use crate::{Config, LoadError};

pub(crate) use attention::Attention;
pub(crate) use experts::Experts;
pub(crate) use mlp::Mlp;

/// One decoder block: attention and feed-forward, each after a norm and added to the stream.
pub(crate) struct Layer<B: Backend> {
    /// `[width]`
    pub attention_norm: B::Weight,
    pub attention: Attention<B>,
    /// `[width]`
    pub feed_forward_norm: B::Weight,
    pub feed_forward: FeedForwardBlock<B>,
}

impl<B: Backend> Layer<B> {
    /// Loads block `index` around its second half: a norm before each half and none behind.
    pub fn pre_norm(
        loader: &mut Loader<'_, B>,
        config: &Config,
        index: usize,
        feed_forward: FeedForwardBlock<B>,
    ) -> Result<Self, LoadError> {
        let norm = |half| format!("blk.{index}.{half}_norm.weight");
        Ok(Self {
            attention_norm: loader.vector(&norm("attn"), config.width)?,
            attention: Attention::load(loader, config, index)?,
            feed_forward_norm: loader.vector(&norm("ffn"), config.width)?,
            feed_forward,
        })
    }
}

/// The second half of a block.
pub(crate) enum FeedForwardBlock<B: Backend> {
    Dense(Mlp<B>),
    Experts(Experts<B>),
}

impl<B: Backend> FeedForwardBlock<B> {
    /// `delta = feed_forward(normed)` for `n` tokens.
    pub fn forward(
        &self,
        backend: &mut B,
        config: &Config,
        activations: &mut Activations<B>,
        n: usize,
    ) {
        match self {
            FeedForwardBlock::Dense(mlp) => mlp.forward(backend, activations, n),
            FeedForwardBlock::Experts(experts) => experts.forward(backend, config, activations, n),
        }
    }
}

impl<B: Backend> From<Mlp<B>> for FeedForwardBlock<B> {
    fn from(mlp: Mlp<B>) -> Self {
        FeedForwardBlock::Dense(mlp)
    }
}

impl<B: Backend> From<Experts<B>> for FeedForwardBlock<B> {
    fn from(experts: Experts<B>) -> Self {
        FeedForwardBlock::Experts(experts)
    }
}
