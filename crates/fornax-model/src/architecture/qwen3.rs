//! Qwen3, dense: grouped-query attention with normalised query and key heads, half-split RoPE,
//! gated MLP; the head is tied where the file has no `output.weight`.
//! Source: Qwen3 Technical Report (arXiv:2505.09388).

use fornax_backend::RopeStyle;

use crate::keys::Keys;
use crate::{Architecture, Config, FeedForward, LoadError};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    keys.no_window()?;
    let style = RopeStyle::HalfSplit;
    let feed_forward = FeedForward::dense(keys)?;
    let config = Config::grouped_query(keys, Architecture::Qwen3, style, feed_forward)?;
    Ok(Config {
        qk_norm: true,
        ..config
    })
}
