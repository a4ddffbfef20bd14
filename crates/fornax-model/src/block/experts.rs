//! A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): a router and many small MLPs.

use fornax_backend::{Activation, Backend, ExpertsSpec, RouteSpec, Scoring};

use crate::activations::Activations;
use crate::loader::Loader;
use crate::{Config, FeedForward, LoadError};

/// The weighted sum of the experts that the router picks for each token.
pub(crate) struct Experts<B: Backend> {
    /// `[experts, width]`
    router: B::Weight,
    /// Gate and up joined. `[experts, 2 * hidden, width]`
    gate_up: B::Weight,
    /// `[experts, width, hidden]`
    down: B::Weight,
    experts: usize,
    used: usize,
    hidden: usize,
    activation: Activation,
}

impl<B: Backend> Experts<B> {
    /// Loads block `index`.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        index: usize,
        activation: Activation,
    ) -> Result<Self, LoadError> {
        let FeedForward::Experts {
            experts,
            used,
            hidden,
        } = config.feed_forward
        else {
            unreachable!("invariant: an architecture with experts configures experts")
        };
        let width = config.width;
        let name = |part: &str| format!("blk.{index}.ffn_{part}.weight");
        let gate_up = [experts, hidden, width];
        Ok(Self {
            router: loader.matrix(&name("gate_inp"), [experts, width])?,
            gate_up: loader
                .join(&[(&name("gate_exps"), &gate_up), (&name("up_exps"), &gate_up)])?,
            down: loader.join(&[(&name("down_exps"), &[experts, width, hidden])])?,
            experts,
            used,
            hidden,
            activation,
        })
    }

    /// `delta = experts(normed)` for `n` tokens.
    pub fn forward(
        &self,
        backend: &mut B,
        config: &Config,
        activations: &mut Activations<B>,
        n: usize,
    ) {
        let a = activations;
        let experts = ExpertsSpec {
            experts: self.experts,
            used: self.used,
            width: config.width,
            hidden: self.hidden,
            activation: self.activation,
            biases: None,
        };
        let route = RouteSpec {
            experts: self.experts,
            used: self.used,
            scoring: Scoring::Softmax,
            selection_bias: None,
            normalise: true,
            scale: 1.0,
            groups: None,
        };
        backend.linear(&mut a.router_logits, &self.router, None, &a.normed, n);
        backend.route(
            &mut a.expert_ids,
            &mut a.expert_weights,
            &a.router_logits,
            route,
            n,
        );
        backend.experts(
            &mut a.delta,
            &a.normed,
            &a.expert_ids,
            &a.expert_weights,
            &self.gate_up,
            &self.down,
            experts,
            n,
        );
    }
}
