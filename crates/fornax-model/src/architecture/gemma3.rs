//! Gemma 3, text: norms before and after each half (the file's weights have their +1 in them),
//! normalised query and key heads, embeddings scaled by the root of the width, GELU, and five
//! blocks with a window and a RoPE of their own to one that sees everything.
//! Source: Gemma 3 Technical Report (arXiv:2503.19786).

use fornax_backend::{Activation, RopeStyle};

use crate::keys::Keys;
use crate::{Architecture, Block, Config, FeedForward, LoadError, Norms, Rope, Scaling};

/// One block in so many sees everything, where the file does not say which.
const PERIOD: usize = 6;
/// RoPE base of blocks with a window, where the file says nothing: that of every Gemma 3.
const WINDOWED_BASE: f32 = 1e4;
/// Blocks of the 27 B model, whose scores alone are scaled by the width over the heads.
const LARGEST: usize = 62;

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    keys.absent(
        "final_logit_softcapping",
        "caps on the logits are not supported",
    )?;
    let style = RopeStyle::HalfSplit;
    let feed_forward = FeedForward::dense(keys)?;
    let config = Config::grouped_query(keys, Architecture::Gemma3, style, feed_forward)?;
    let everywhere = config.ropes[0];
    // Only blocks that see everything were stretched.
    let windowed = Rope {
        base: keys.factor_or("rope.freq_base_swa", WINDOWED_BASE)?,
        scaling: Scaling::None,
        ..everywhere
    };
    let window = keys.window()?;
    let pattern = keys.windowed(config.layers(), PERIOD)?;
    let block = |has_window: bool| match (window, has_window) {
        (Some(window), true) => Block {
            window: Some(window),
            rope: 1,
            feed_forward,
        },
        _ => Block {
            window: None,
            rope: 0,
            feed_forward,
        },
    };
    let squared = match config.layers() {
        LARGEST => config.width / config.heads,
        _ => config.k_dim,
    };
    Ok(Config {
        embedding_scale: (config.width as f32).sqrt(),
        attention_scale: (squared as f32).sqrt().recip(),
        norms: Norms {
            after: true,
            ..Norms::BEFORE
        },
        qk_norm: true,
        activation: Activation::GeluTanh,
        ropes: vec![everywhere, windowed],
        blocks: pattern.into_iter().map(block).collect(),
        ..config
    })
}
