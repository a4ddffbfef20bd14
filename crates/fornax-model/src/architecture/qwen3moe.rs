//! Qwen3 with experts: Qwen3's attention, then a softmax router whose chosen weights are
//! normalised to sum to one. Source: Qwen3 Technical Report (arXiv:2505.09388).

use fornax_backend::RopeStyle;

use crate::keys::Keys;
use crate::{Architecture, Config, FeedForward, LoadError, Mixture};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    keys.no_window()?;
    let mixture = Mixture {
        normalise: true,
        ..Mixture::softmax(keys, keys.size("expert_feed_forward_length")?)?
    };
    let style = RopeStyle::HalfSplit;
    let feed_forward = FeedForward::Experts(mixture);
    let config = Config::grouped_query(keys, Architecture::Qwen3Moe, style, feed_forward)?;
    Ok(Config {
        qk_norm: true,
        ..config
    })
}
