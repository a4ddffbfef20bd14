//! Qwen3 with experts: Qwen3's attention, then a softmax router whose chosen weights are
//! normalised to sum to one. Source: Qwen3 Technical Report (arXiv:2505.09388).

use fornax_backend::{Activation, Backend, RopeStyle};

use crate::block::{Experts, Layer};
use crate::keys::Keys;
use crate::loader::Loader;
use crate::{Architecture, Config, FeedForward, LoadError};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let experts = keys.size("expert_count")?;
    let used = keys.size("expert_used_count")?;
    if used > experts {
        let problem = format!("the model has only {experts} experts");
        return Err(keys.refuse(&keys.full("expert_used_count"), used, &problem));
    }
    let hidden = keys.size("expert_feed_forward_length")?;
    let feed_forward = FeedForward::Experts {
        experts,
        used,
        hidden,
    };
    Config::grouped_query(
        keys,
        Architecture::Qwen3Moe,
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
    let feed_forward = Experts::load(loader, config, index, Activation::Silu)?;
    Layer::pre_norm(loader, config, index, feed_forward.into())
}
