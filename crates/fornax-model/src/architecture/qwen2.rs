//! Qwen2 and Qwen2.5, dense: grouped-query attention with biases on Q, K and V, half-split RoPE,
//! gated MLP; the head is tied where the file has no `output.weight`.
//! Source: Qwen2 Technical Report (arXiv:2407.10671).

use fornax_backend::RopeStyle;

use crate::keys::Keys;
use crate::{Architecture, Config, FeedForward, LoadError};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    keys.no_window()?;
    let style = RopeStyle::HalfSplit;
    let feed_forward = FeedForward::dense(keys)?;
    let config = Config::grouped_query(keys, Architecture::Qwen2, style, feed_forward)?;
    Ok(Config {
        qkv_bias: true,
        ..config
    })
}
