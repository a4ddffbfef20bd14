//! Qwen1.5 and Qwen2 with experts: Qwen2's attention, then a softmax router whose chosen weights
//! are taken as they are, and beside the experts one that runs for every token under a gate of its
//! own. Source: Qwen2 Technical Report (arXiv:2407.10671).

use fornax_backend::RopeStyle;

use crate::keys::Keys;
use crate::{Architecture, Config, FeedForward, LoadError, Mixture, SharedExpert};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    keys.no_window()?;
    let shared = SharedExpert {
        hidden: keys.size("expert_shared_feed_forward_length")?,
        gated: true,
    };
    let mixture = Mixture {
        shared: Some(shared),
        ..Mixture::softmax(keys, keys.size("expert_feed_forward_length")?)?
    };
    let style = RopeStyle::HalfSplit;
    let feed_forward = FeedForward::Experts(mixture);
    let config = Config::grouped_query(keys, Architecture::Qwen2Moe, style, feed_forward)?;
    Ok(Config {
        qkv_bias: true,
        ..config
    })
}
