//! gpt-oss: biases on every projection, a sink in each head's softmax, every other block with a
//! window, YaRN, and experts with a clamped SwiGLU. What files call the norm after attention stands
//! before the experts. Source: gpt-oss model card (arXiv:2508.10925).

use fornax_backend::{Activation, RopeStyle};

use crate::keys::Keys;
use crate::{Architecture, Block, Config, FeedForward, LoadError, Mixture, Norms, Scaling};

/// One block in so many sees everything, where the file does not say which.
const PERIOD: usize = 2;
/// The published models' nonlinearity; no metadata has it.
const ACTIVATION: Activation = Activation::ClampedSwiglu {
    alpha: 1.702,
    limit: 7.0,
};

pub(super) fn config(keys: &Keys<'_>) -> Result<Config, LoadError> {
    let hidden = keys.size("expert_feed_forward_length")?;
    let mixture = Mixture {
        // The same as a softmax over the chosen ones alone.
        normalise: true,
        biases: true,
        ..Mixture::softmax(keys, hidden)?
    };
    let style = RopeStyle::HalfSplit;
    let feed_forward = FeedForward::Experts(mixture);
    let mut config = Config::grouped_query(keys, Architecture::GptOss, style, feed_forward)?;
    if let Scaling::Yarn(yarn) = &mut config.ropes[0].scaling {
        // Trained so (`truncate` is false in its configuration); no metadata has it.
        yarn.whole_pairs = false;
    }
    let window = keys.size("attention.sliding_window")?;
    let pattern = keys.windowed(config.layers(), PERIOD)?;
    let block = |has_window: bool| Block {
        window: has_window.then_some(window),
        rope: 0,
        feed_forward,
    };
    Ok(Config {
        norms: Norms {
            before_feed_forward: "post_attention_norm",
            after: false,
        },
        qkv_bias: true,
        output_bias: true,
        sinks: true,
        activation: ACTIVATION,
        blocks: pattern.into_iter().map(block).collect(),
        ..config
    })
}
