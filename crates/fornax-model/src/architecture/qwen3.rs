//! Qwen3, dense: grouped-query attention with normalised query and key heads, half-split RoPE,
//! gated MLP; the head is tied where the file has no `output.weight`.
//! Source: Qwen3 Technical Report (arXiv:2505.09388).

use fornax_backend::{Activation, Backend, RopeStyle};

use crate::block::{Layer, Mlp};
use crate::keys::Keys;
use crate::loader::Loader;
use crate::{Architecture, Config, FeedForward, LoadError};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let feed_forward = FeedForward::Dense {
        hidden: keys.size("feed_forward_length")?,
    };
    Config::grouped_query(
        keys,
        Architecture::Qwen3,
        RopeStyle::HalfSplit,
        true,
        feed_forward,
    )
}

pub(super) fn layer<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    index: usize,
) -> Result<Layer<B>, LoadError> {
    let feed_forward = Mlp::load(loader, config, index, Activation::Silu)?;
    Layer::pre_norm(loader, config, index, feed_forward.into())
}
