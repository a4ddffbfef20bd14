//! A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router, many small MLPs, and
//! where a model has it one more that runs for every token (DeepSeekMoE, arXiv:2401.06066).

use fornax_backend::{Activation, Backend, ExpertBiases, ExpertsSpec, RouteSpec};

use super::mlp::{Mlp, MlpBuffers};
use crate::activations::Activations;
use crate::config::Mixture;
use crate::loader::{Device, Dim, Loader};
use crate::{Config, LoadError};

/// The weighted sum of the experts that the router picks for each token.
pub(crate) struct Experts<D: Device> {
    /// `[experts, width]`
    router: D::Weight,
    /// `[experts]`
    router_bias: Option<D::Weight>,
    /// Added to the scores for the choice alone. `[experts]`
    selection_bias: Option<D::Weight>,
    /// Gate and up joined. `[experts, 2 * hidden, width]`
    gate_up: D::Weight,
    /// `[experts, width, hidden]`
    down: D::Weight,
    /// Behind gate and up `[experts * 2 * hidden]`, and behind down `[experts * width]`
    biases: Option<(D::Weight, D::Weight)>,
    shared: Option<Shared<D>>,
    mixture: Mixture,
    width: usize,
    activation: Activation,
}

/// The MLP that runs for every token.
struct Shared<D: Device> {
    mlp: Mlp<D>,
    /// Its gate. `[1, width]`
    gate: Option<D::Weight>,
}

impl<D: Device> Experts<D> {
    /// Loads block `index`.
    pub fn load(
        loader: &mut Loader<'_, D>,
        config: &Config,
        index: usize,
        mixture: Mixture,
    ) -> Result<Self, LoadError> {
        let width = config.width_dim();
        let experts = Dim::new(mixture.experts, "expert_count");
        let hidden = Dim::new(mixture.hidden, "expert_feed_forward_length");
        let name = |part: &str| format!("blk.{index}.{part}");
        let (router, router_bias) = (name("ffn_gate_inp.weight"), name("ffn_gate_inp.bias"));
        Ok(Self {
            router: loader.matrix(&router, [experts, width])?,
            router_bias: match mixture.biases {
                true => Some(loader.vector(&router_bias, experts)?),
                false => None,
            },
            selection_bias: match mixture.selection_bias {
                true => Some(loader.vector(&name("exp_probs_b.bias"), experts)?),
                false => None,
            },
            gate_up: gate_up(loader, index, [experts, hidden, width])?,
            down: loader.join(&[(&name("ffn_down_exps.weight"), &[experts, width, hidden])])?,
            biases: match mixture.biases {
                true => Some(biases(loader, index, [experts, hidden, width])?),
                false => None,
            },
            shared: Shared::load(loader, config, index, &mixture)?,
            mixture,
            width: config.width,
            activation: config.activation,
        })
    }
}

impl<B: Backend> Experts<B> {
    /// `delta = experts(normed)` for `n` tokens.
    pub fn forward(&self, backend: &mut B, activations: &mut Activations<B>, n: usize) {
        let a = activations;
        let Mixture {
            experts,
            used,
            hidden,
            scoring,
            normalise,
            scale,
            groups,
            ..
        } = self.mixture;
        let route = RouteSpec {
            experts,
            used,
            scoring,
            selection_bias: self.selection_bias.as_ref(),
            normalise,
            scale,
            groups,
        };
        let biases = self.biases.as_ref();
        let spec = ExpertsSpec {
            experts,
            used,
            width: self.width,
            hidden,
            activation: self.activation,
            biases: biases.map(|(gate_up, down)| ExpertBiases { gate_up, down }),
        };
        let (bias, logits) = (self.router_bias.as_ref(), &mut a.router_logits);
        backend.linear(logits, &self.router, bias, &a.normed, n);
        let (ids, weights) = (&mut a.expert_ids, &mut a.expert_weights);
        backend.route(ids, weights, &a.router_logits, route, n);
        backend.experts(
            &mut a.delta,
            &a.normed,
            &a.expert_ids,
            &a.expert_weights,
            &self.gate_up,
            &self.down,
            spec,
            n,
        );
        if let Some(shared) = &self.shared {
            shared.add(backend, a, self.width, n);
        }
    }
}

impl<D: Device> Shared<D> {
    fn load(
        loader: &mut Loader<'_, D>,
        config: &Config,
        index: usize,
        mixture: &Mixture,
    ) -> Result<Option<Self>, LoadError> {
        let Some(shared) = mixture.shared else {
            return Ok(None);
        };
        let gate = format!("blk.{index}.ffn_gate_inp_shexp.weight");
        Ok(Some(Self {
            gate: match shared.gated {
                true => Some(loader.row(&gate, config.width_dim())?),
                false => None,
            },
            mlp: {
                let of = match shared.gated {
                    true => "expert_shared_feed_forward_length",
                    false => "expert_shared_count × expert_feed_forward_length",
                };
                let hidden = Dim::new(shared.hidden, of);
                Mlp::load(loader, config, index, "_shexp", hidden)?
            },
        }))
    }
}

impl<B: Backend> Shared<B> {
    /// `delta += shared(normed)`, under its gate.
    fn add(&self, backend: &mut B, a: &mut Activations<B>, width: usize, n: usize) {
        let buffers = MlpBuffers {
            out: &mut a.beside,
            projected: &mut a.projected,
            activated: &mut a.activated,
            x: &a.normed,
        };
        self.mlp.forward(backend, buffers, n);
        match &self.gate {
            None => backend.add(&mut a.delta, &a.beside, width, n),
            Some(gate) => {
                backend.linear(&mut a.gate, gate, None, &a.normed, n);
                backend.add_gated(&mut a.delta, &a.beside, &a.gate, width, n);
            }
        }
    }
}

/// Gate and up of all experts, which newer files have in one tensor.
fn gate_up<D: Device>(
    loader: &mut Loader<'_, D>,
    index: usize,
    [experts, hidden, width]: [Dim; 3],
) -> Result<D::Weight, LoadError> {
    let name = |part: &str| format!("blk.{index}.ffn_{part}_exps.weight");
    match loader.has(&name("gate_up")) {
        true => {
            let both = Dim::new(2 * hidden.size, "2 × expert_feed_forward_length");
            loader.join(&[(&name("gate_up"), &[experts, both, width])])
        }
        false => {
            let shape = [experts, hidden, width];
            loader.join(&[(&name("gate"), &shape), (&name("up"), &shape)])
        }
    }
}

/// The biases of all experts, gate and up of each side by side.
fn biases<D: Device>(
    loader: &mut Loader<'_, D>,
    index: usize,
    [experts, hidden, width]: [Dim; 3],
) -> Result<(D::Weight, D::Weight), LoadError> {
    let name = |part: &str| format!("blk.{index}.ffn_{part}_exps.bias");
    let gate = loader.host(&name("gate"), &[experts, hidden])?;
    let up = loader.host(&name("up"), &[experts, hidden])?;
    let down = loader.host(&name("down"), &[experts, width])?;
    let by_turns = || {
        let (gate, up) = (gate.decode(), up.decode());
        let experts = gate.chunks_exact(hidden.size);
        let experts = experts.zip(up.chunks_exact(hidden.size));
        experts.flat_map(|(gate, up)| [gate, up].concat()).collect()
    };
    Ok((
        loader.computed(&[2 * gate.elements()], by_turns)?,
        loader.computed(&[down.elements()], || down.decode())?,
    ))
}
