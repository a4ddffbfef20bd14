//! Which experts a token goes to.
//!
//! Must not know what experts compute.

use fornax_backend::{RouteSpec, Scoring};

use super::Cuda;
use crate::operation::{Operation, Route, RouteTable};
use crate::step::Buffer;
use crate::weight::Weight;

impl Cuda {
    /// Chooses experts by their logits.
    pub(super) fn choose(
        &mut self,
        ids: &mut Buffer,
        weights: &mut Buffer,
        logits: &Buffer,
        spec: &RouteSpec<'_, Weight>,
        n: usize,
    ) {
        let RouteSpec { experts, used, .. } = *spec;
        assert!(used <= experts, "route: more used than there are");
        let groups = spec
            .groups
            .map_or([0; 3], |groups| [groups.count, groups.open, groups.summed]);
        let [groups, open, summed] = groups.map(|number| number as u32);
        let table = RouteTable {
            ids: ids.indices(n * used),
            weights: weights.floats(n * used),
            logits: logits.floats(n * experts),
            bias: spec.selection_bias.map_or(0, |bias| bias.vector(experts)),
            scale: spec.scale,
            experts: experts as u32,
            used: used as u32,
            scoring: match spec.scoring {
                Scoring::Softmax => 0,
                Scoring::Sigmoid => 1,
            },
            normalise: u32::from(spec.normalise),
            groups,
            open,
            summed,
        };
        self.push(Operation::Route(Route { table, n }));
    }
}
