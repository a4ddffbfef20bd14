//! Llama 2 and 3, SmolLM, Mistral and their kin: grouped-query attention, RoPE over adjacent pairs
//! (GGUF stores Q and K with their rows permuted for it), gated MLP; the head is tied where the
//! file has no `output.weight`. Mistral's first model has a window. Sources: Llama 2
//! (arXiv:2307.09288), Llama 3 (arXiv:2407.21783), Mistral 7B (arXiv:2310.06825).

use fornax_backend::RopeStyle;

use crate::keys::Keys;
use crate::{Architecture, Block, Config, FeedForward, LoadError};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    keys.absent("expert_count", "Mixtral's experts are not supported")?;
    let style = RopeStyle::AdjacentPairs;
    let feed_forward = FeedForward::dense(keys)?;
    let config = Config::grouped_query(keys, Architecture::Llama, style, feed_forward)?;
    let window = keys.window()?;
    let windowed = |block: &Block| Block { window, ..*block };
    Ok(Config {
        blocks: config.blocks.iter().map(windowed).collect(),
        qkv_bias: keys.file.tensor("blk.0.attn_q.bias").is_some(),
        output_bias: keys.file.tensor("blk.0.attn_output.bias").is_some(),
        ..config
    })
}
