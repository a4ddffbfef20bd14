//! Llama 2 and 3, SmolLM and their kin: grouped-query attention, RoPE over adjacent pairs
//! (GGUF stores Q and K with their rows permuted for it), gated MLP; the head is tied where the
//! file has no `output.weight`. Source: Llama 2 (arXiv:2307.09288), Llama 3 (arXiv:2407.21783).

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
        Architecture::Llama,
        RopeStyle::AdjacentPairs,
        false,
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
