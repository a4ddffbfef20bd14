//! Which experts a token goes to.
//!
//! Must not know what experts compute.

use fornax_backend::{RouteSpec, Scoring};

use super::Cuda;
use crate::kernels::Module;
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
        let (ids, weights) = (ids.indices(n * used), weights.floats(n * used));
        let logits = logits.floats(n * experts);
        let bias = spec.selection_bias.map_or(0, |bias| bias.vector(experts));
        let scoring = match spec.scoring {
            Scoring::Softmax => 0,
            Scoring::Sigmoid => 1,
        };
        let groups = spec
            .groups
            .map_or([0; 3], |groups| [groups.count, groups.open, groups.summed]);
        self.launch(Module::Rows, "route", [n, 1, 1], 32, |launch| {
            let launch = launch.shared(4 * (2 * experts + groups[0]));
            let launch = launch
                .wide(ids)
                .wide(weights)
                .wide(logits)
                .number(experts)
                .number(used);
            let launch = launch
                .number(scoring)
                .wide(bias)
                .number(usize::from(spec.normalise));
            let launch = launch.float(spec.scale);
            launch.number(groups[0]).number(groups[1]).number(groups[2])
        });
    }
}
