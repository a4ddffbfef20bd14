//! Parameter structs that outlive a call: a spec without its weights, and the weights' indices.
//!
//! Each `map` visits the weights of its spec in the same order every time.

use super::Handle;
use crate::{AttentionSpec, ExpertBiases, ExpertsSpec, QkvSpec, RopeSpec, RouteSpec};

/// Notes the index of each weight, and leaves nothing in its place.
pub(super) fn note<W>(indices: &mut Vec<usize>) -> impl FnMut(&Handle<W>) -> &'static () {
    |weight| {
        indices.push(weight.index);
        &()
    }
}

/// Puts the weights back in the order in which they were noted.
pub(super) fn restore<'b, W>(
    indices: &[usize],
    weights: &'b [W],
) -> impl FnMut(&'static ()) -> &'b W {
    let mut indices = indices.iter();
    move |()| {
        let index = indices.next().expect("invariant: a weight was noted");
        &weights[*index]
    }
}

impl<'a, W> RopeSpec<'a, W> {
    /// The same spec over other weights.
    pub(super) fn map<'b, V>(self, mut weight: impl FnMut(&'a W) -> &'b V) -> RopeSpec<'b, V> {
        RopeSpec {
            style: self.style,
            rotary: self.rotary,
            frequencies: weight(self.frequencies),
            magnitude: self.magnitude,
        }
    }
}

impl<'a, W> QkvSpec<'a, W> {
    /// The same spec over other weights.
    pub(super) fn map<'b, V>(self, mut weight: impl FnMut(&'a W) -> &'b V) -> QkvSpec<'b, V> {
        QkvSpec {
            group: self.group,
            q: self.q,
            k: self.k,
            v: self.v,
            norms: self.norms.map(|(q, k)| (weight(q), weight(k))),
            eps: self.eps,
            rope: self.rope.map(weight),
        }
    }
}

impl<'a, W> AttentionSpec<'a, W> {
    /// The same spec over other weights.
    pub(super) fn map<'b, V>(self, weight: impl FnMut(&'a W) -> &'b V) -> AttentionSpec<'b, V> {
        AttentionSpec {
            group: self.group,
            queries: self.queries,
            q: self.q,
            kv_heads: self.kv_heads,
            v_dim: self.v_dim,
            scale: self.scale,
            window: self.window,
            soft_cap: self.soft_cap,
            sinks: self.sinks.map(weight),
        }
    }
}

impl<'a, W> RouteSpec<'a, W> {
    /// The same spec over other weights.
    pub(super) fn map<'b, V>(self, weight: impl FnMut(&'a W) -> &'b V) -> RouteSpec<'b, V> {
        RouteSpec {
            experts: self.experts,
            used: self.used,
            scoring: self.scoring,
            selection_bias: self.selection_bias.map(weight),
            normalise: self.normalise,
            scale: self.scale,
            groups: self.groups,
        }
    }
}

impl<'a, W> ExpertsSpec<'a, W> {
    /// The same spec over other weights.
    pub(super) fn map<'b, V>(self, mut weight: impl FnMut(&'a W) -> &'b V) -> ExpertsSpec<'b, V> {
        ExpertsSpec {
            experts: self.experts,
            used: self.used,
            width: self.width,
            hidden: self.hidden,
            activation: self.activation,
            biases: self.biases.map(|biases| ExpertBiases {
                gate_up: weight(biases.gate_up),
                down: weight(biases.down),
            }),
        }
    }
}
