//! The gated MLP (Shazeer 2020, arXiv:2002.05202).

use fornax_backend::{Activation, Backend};

use crate::activations::Activations;
use crate::loader::Loader;
use crate::{Config, FeedForward, LoadError};

/// `down(activation(gate(x)) * up(x))`.
pub(crate) struct Mlp<B: Backend> {
    /// Gate and up joined. `[2 * hidden, width]`
    gate_up: B::Weight,
    /// `[width, hidden]`
    down: B::Weight,
    activation: Activation,
    hidden: usize,
}

impl<B: Backend> Mlp<B> {
    /// Loads block `index`.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        index: usize,
        activation: Activation,
    ) -> Result<Self, LoadError> {
        let FeedForward::Dense { hidden } = config.feed_forward else {
            unreachable!("invariant: a dense architecture configures a dense feed-forward")
        };
        let name = |part: &str| format!("blk.{index}.ffn_{part}.weight");
        let gate_up = [hidden, config.width];
        Ok(Self {
            gate_up: loader.join(&[(&name("gate"), &gate_up), (&name("up"), &gate_up)])?,
            down: loader.matrix(&name("down"), [config.width, hidden])?,
            activation,
            hidden,
        })
    }

    /// `delta = mlp(normed)` for `n` tokens.
    pub fn forward(&self, backend: &mut B, activations: &mut Activations<B>, n: usize) {
        let a = activations;
        backend.mlp(
            &mut a.delta,
            &mut a.projected,
            &mut a.activated,
            &a.normed,
            &self.gate_up,
            &self.down,
            self.activation,
            self.hidden,
            n,
        );
    }
}
