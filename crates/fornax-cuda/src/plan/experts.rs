//! Experts: of each of them all pairs with tokens that chose it at once, or each pair by itself where
//! results are to be those of single precision.

use fornax_backend::BackendError;
use fornax_gguf::DType;

use super::gemm::{Table, tokens_at_once};
use super::{Action, Plan};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::matrix;
use crate::operation::{Experts, activation_numbers};
use crate::weight::Layout;

/// Where things lie between the launches.
struct Between {
    /// Pairs expert by expert. `[pairs]`
    order: u64,
    /// Tiles of them. `[tiles, 4]`
    tiles: u64,
    /// Gates and ups. `[pairs, 2 hidden]`
    projected: u64,
    /// What goes into the second product: `[pairs, hidden]`, or in bf16 `[pairs, padded]`.
    activated: u64,
    /// What each pair gives. `[pairs, width]`
    answers: u64,
}

/// One of the two products.
struct Half<'a> {
    out: u64,
    matrix: &'a Layout,
    bias: u64,
    x: u64,
    /// Pairs that have a row of `x` in common.
    share: usize,
}

impl Plan<'_> {
    pub(super) fn experts(&mut self, experts: &Experts) -> Result<(), BackendError> {
        let Experts {
            out,
            weights,
            used,
            n,
            ..
        } = *experts;
        let between = self.between(experts)?;
        let (first_bias, second_bias) = experts.biases.unwrap_or((0, 0));
        let first = Half {
            out: between.projected,
            matrix: &experts.gate_up,
            bias: first_bias,
            x: experts.x,
            share: used,
        };
        let second = Half {
            out: between.answers,
            matrix: &experts.down,
            bias: second_bias,
            x: between.activated,
            share: 1,
        };
        match self.groups(experts) {
            true => self.grouped(experts, &between, &first, &second)?,
            false => {
                self.each_pair(&first, experts)?;
                self.expert_glu(experts, &between, false)?;
                self.each_pair(&second, experts)?;
            }
        }
        self.rows_kernel("expert_sum", [n, 1, 1], 256, |launch| {
            launch
                .wide(out)
                .wide(between.answers)
                .wide(weights)
                .number(used)
                .number(experts.down.rows)
        })
    }

    /// Whether the products of all experts run at once: those of more than one token, where what is
    /// multiplied may be rounded.
    fn groups(&self, experts: &Experts) -> bool {
        let mut parts = experts.gate_up.parts.iter().chain(&experts.down.parts);
        self.shop.dense.is_some()
            && experts.n > 1
            && experts.gate_up.cols.is_multiple_of(4)
            && parts.all(|part| part.format != DType::F32)
    }

    /// Memory for what lies between the launches, each beginning at a multiple of 16 bytes.
    fn between(&mut self, experts: &Experts) -> Result<Between, BackendError> {
        let (pairs, hidden) = (experts.n * experts.used, experts.down.cols);
        let sizes = [
            4 * pairs,
            16 * pairs,
            8 * pairs * hidden,
            4 * pairs * hidden,
            4 * pairs * experts.down.rows,
        ];
        let sizes = sizes.map(|size| size.next_multiple_of(16));
        let bytes = sizes.iter().sum();
        let mut next = self.shop.between.grown(&self.shop.device, bytes)?;
        let [order, tiles, projected, activated, answers] = sizes.map(|size| {
            let at = next;
            next += size as u64;
            at
        });
        Ok(Between {
            order,
            tiles,
            projected,
            activated,
            answers,
        })
    }

    /// One launch for each product, of all experts.
    fn grouped(
        &mut self,
        experts: &Experts,
        between: &Between,
        first: &Half<'_>,
        second: &Half<'_>,
    ) -> Result<(), BackendError> {
        let (pairs, hidden) = (experts.n * experts.used, experts.down.cols);
        let (ids, count) = (experts.ids, experts.gate_up.experts);
        let tokens = tokens_at_once(pairs.div_ceil(count));
        let tiles = pairs.min(pairs / tokens + count);
        let kernel = self.shop.kernels.kernel(Module::Rows, "group_pairs")?;
        let launch = Launch::new(kernel, [1, 1, 1], 1024)
            .shared(8 * count)
            .wide(between.order)
            .wide(between.tiles)
            .wide(ids)
            .number(pairs)
            .number(count)
            .number(tokens)
            .number(tiles);
        self.actions.push(Action::Launch(launch));
        let mut table = expert_table(first, between, pairs);
        if first.matrix.parts.len() == 1 {
            table.gated(experts.activation, hidden);
            table.out = between.activated;
            table.stride = matrix::padded(hidden) as u32;
            table.narrow = 1;
            self.expert_parts(first, table, tokens, tiles)?;
        } else {
            self.expert_parts(first, table, tokens, tiles)?;
            self.expert_glu(experts, between, true)?;
        }
        let mut table = expert_table(second, between, pairs);
        table.rounded = 1;
        self.expert_parts(second, table, tokens, tiles)
    }

    fn expert_parts(
        &mut self,
        half: &Half<'_>,
        mut table: Table,
        tokens: usize,
        tiles: usize,
    ) -> Result<(), BackendError> {
        for part in &half.matrix.parts {
            table.expert_bytes = (part.rows * part.pitch) as u64;
            self.gemm(part, table, tokens, tiles)?;
            table.column += part.rows as u32;
            if table.bias > 0 {
                table.bias += 4 * part.rows as u64;
            }
        }
        Ok(())
    }

    /// What goes into the second product; `rounded` to bf16 for one of all experts.
    fn expert_glu(
        &mut self,
        experts: &Experts,
        between: &Between,
        rounded: bool,
    ) -> Result<(), BackendError> {
        let (pairs, hidden) = (experts.n * experts.used, experts.down.cols);
        let (kind, alpha, limit) = activation_numbers(experts.activation);
        let (dense, padded) = match rounded {
            true => (between.activated, matrix::padded(hidden)),
            false => (0, 0),
        };
        self.rows_kernel("glu", [pairs, 1, 1], 256, |launch| {
            let launch = launch.wide(between.activated).wide(between.projected);
            let launch = launch.number(hidden).number(kind as usize);
            let launch = launch.float(alpha).float(limit);
            launch.wide(dense).number(padded)
        })
    }

    /// Every pair by itself, in single precision.
    fn each_pair(&mut self, half: &Half<'_>, experts: &Experts) -> Result<(), BackendError> {
        let (pairs, matrix) = (experts.n * experts.used, half.matrix);
        let mut column = 0;
        for part in &matrix.parts {
            let kernel = self
                .shop
                .kernels
                .kernel(Module::Product(part.format), "expert_linear")?;
            let launch = Launch::new(kernel, [pairs, part.rows.div_ceil(8), 1], 256)
                .wide(half.out)
                .number(matrix.rows)
                .number(column)
                .wide(part.pointer)
                .wide((part.rows * part.pitch) as u64)
                .wide(part.pitch as u64)
                .number(matrix.padded())
                .wide(half.bias)
                .wide(half.x)
                .number(half.share)
                .wide(experts.ids)
                .number(part.rows)
                .number(matrix.cols);
            self.actions.push(Action::Launch(launch));
            column += part.rows;
        }
        Ok(())
    }
}

fn expert_table(half: &Half<'_>, between: &Between, pairs: usize) -> Table {
    Table {
        out: half.out,
        bias: half.bias,
        x: half.x,
        order: between.order,
        tiles: between.tiles,
        n: pairs as u32,
        cols: half.matrix.cols as u32,
        padded: half.matrix.padded() as u32,
        stride: half.matrix.rows as u32,
        bias_stride: half.matrix.rows as u32,
        share: half.share as u32,
        ..Table::default()
    }
}
