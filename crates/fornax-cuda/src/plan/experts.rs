//! Experts: each of their products for every pair of a token and an expert it chose.

use fornax_backend::BackendError;

use super::{Action, Plan, Shop};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::operation::{Experts, activation_numbers};
use crate::weight::Layout;

impl Plan<'_> {
    pub(super) fn experts(&mut self, experts: &Experts) -> Result<(), BackendError> {
        let Experts {
            out,
            x,
            ids,
            weights,
            ref gate_up,
            ref down,
            biases,
            used,
            activation,
            n,
        } = *experts;
        let (pairs, hidden, width) = (n * used, down.cols, down.rows);
        let bytes = 4 * pairs * (3 * hidden + width);
        let projected = Shop::grown(&self.shop.device, &mut self.shop.between, bytes)?;
        let activated = projected + 8 * (pairs * hidden) as u64;
        let answers = activated + 4 * (pairs * hidden) as u64;
        let (first_bias, second_bias) = biases.unwrap_or((0, 0));
        self.expert_product(projected, gate_up, first_bias, x, used, ids, pairs)?;
        let (kind, alpha, limit) = activation_numbers(activation);
        self.rows_kernel("glu", [pairs, 1, 1], 256, |launch| {
            let launch = launch.wide(activated).wide(projected).number(hidden);
            launch
                .number(kind as usize)
                .float(alpha)
                .float(limit)
                .wide(0)
                .number(0)
        })?;
        self.expert_product(answers, down, second_bias, activated, 1, ids, pairs)?;
        self.rows_kernel("expert_sum", [n, 1, 1], 256, |launch| {
            launch
                .wide(out)
                .wide(answers)
                .wide(weights)
                .number(used)
                .number(width)
        })
    }

    /// `x` has a row for each `share` pairs.
    #[allow(clippy::too_many_arguments)]
    fn expert_product(
        &mut self,
        out: u64,
        matrix: &Layout,
        bias: u64,
        x: u64,
        share: usize,
        ids: u64,
        pairs: usize,
    ) -> Result<(), BackendError> {
        let mut column = 0;
        for part in &matrix.parts {
            let kernel = self
                .shop
                .kernels
                .kernel(Module::Product(part.format), "expert_linear")?;
            let launch = Launch::new(kernel, [part.rows.div_ceil(8), pairs, 1], 256)
                .wide(out)
                .number(matrix.rows)
                .number(column)
                .wide(part.pointer)
                .wide((part.rows * part.pitch) as u64)
                .wide(part.pitch as u64)
                .number(matrix.padded())
                .wide(bias)
                .wide(x)
                .number(share)
                .wide(ids)
                .number(part.rows)
                .number(matrix.cols);
            self.actions.push(Action::Launch(launch));
            column += part.rows;
        }
        Ok(())
    }
}
