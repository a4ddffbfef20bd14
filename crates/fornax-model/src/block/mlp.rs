//! The gated MLP (Shazeer 2020, arXiv:2002.05202).

use fornax_backend::{Activation, Backend};

use crate::loader::{Device, Dim, Loader};
use crate::{Config, LoadError};

/// `down(activation(gate(x)) * up(x))`.
pub(crate) struct Mlp<D: Device> {
    /// Gate and up joined. `[2 * hidden, width]`
    gate_up: D::Weight,
    /// `[width, hidden]`
    down: D::Weight,
    activation: Activation,
    hidden: usize,
}

/// The buffers that an MLP passes through; see [`Activations`](crate::activations::Activations).
pub(crate) struct MlpBuffers<'a, B: Backend> {
    /// What it adds to the stream. `[n, width]`
    pub out: &'a mut B::Buffer,
    /// `[n, 2 * hidden]`
    pub projected: &'a mut B::Buffer,
    /// `[n, hidden]`
    pub activated: &'a mut B::Buffer,
    /// What it reads. `[n, width]`
    pub x: &'a B::Buffer,
}

impl<D: Device> Mlp<D> {
    /// Loads the one of block `index` whose tensors' names end in `suffix`.
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &Config,
        index: usize,
        suffix: &str,
        hidden: Dim,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{index}.ffn_{part}{suffix}.weight");
        let (width, gate_up) = (config.width_dim(), [hidden, config.width_dim()]);
        Ok(Self {
            gate_up: loader.join(&[(&name("gate"), &gate_up), (&name("up"), &gate_up)])?,
            down: loader.matrix(&name("down"), [width, hidden])?,
            activation: config.activation,
            hidden: hidden.size,
        })
    }
}

impl<B: Backend> Mlp<B> {
    /// `out = mlp(x)` for `n` tokens.
    pub fn forward(&self, backend: &mut B, buffers: MlpBuffers<'_, B>, n: usize) {
        backend.mlp(
            buffers.out,
            buffers.projected,
            buffers.activated,
            buffers.x,
            &self.gate_up,
            &self.down,
            self.activation,
            self.hidden,
            n,
        );
    }
}
