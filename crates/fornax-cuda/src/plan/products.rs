//! Which kernel multiplies: one that is fused with its neighbours for few rows, the library for
//! many, plain loops where neither can.

use fornax_backend::BackendError;
use fornax_gguf::DType;

use super::{Action, Plan, adds};
use crate::dense;
use crate::kernels::Module;
use crate::launch::Launch;
use crate::matrix;
use crate::operation::{Linear, Norm, Operation, activation_numbers};
use crate::sampler::MOST_PARTS;
use crate::weight::Part;

/// Rows that the fused kernel takes at most.
const FEW: usize = 8;
/// As in `kernels/gemv.cu`.
const ROWS: usize = 8;
const WARPS: usize = 8;
const GROUP: usize = 4;
const MOST_STAGES: usize = 32;
/// Shared memory of a block, so that the next launch's blocks fit beside it.
const HALF_OF_SHARED: usize = 110 << 10;
/// What the kernel itself keeps there.
const OWN_SHARED: usize = 2 << 10;

/// `struct Product` of `kernels/gemv.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table {
    out: u64,
    residual: u64,
    weight: u64,
    bias: u64,
    x: u64,
    norm: u64,
    normed: u64,
    best: u64,
    pick: u64,
    eps: f32,
    alpha: f32,
    limit: f32,
    n: u32,
    rows: u32,
    cols: u32,
    padded: u32,
    pitch: u32,
    stride: u32,
    column: u32,
    second: u32,
    activation: u32,
    stages: u32,
    stage_pitch: u32,
}

/// How a part of a matrix is streamed through shared memory.
struct Ring {
    blocks: usize,
    stages: usize,
    stage_pitch: usize,
    shared: usize,
}

impl Plan<'_> {
    /// Whether the fused kernel multiplies.
    pub(super) fn is_small(&self, linear: &Linear) -> bool {
        let parts = &linear.matrix.parts;
        linear.n <= FEW
            && parts
                .iter()
                .all(|part| self.ring(linear, part, part.rows, 1).is_some())
    }

    /// Whether the library multiplies.
    pub(super) fn is_large(&self, linear: &Linear) -> bool {
        linear.n > FEW && linear.matrix.dense.is_some() && self.shop.dense.is_some()
    }

    /// A product, with a norm before it and what may be done behind it; says how many operations
    /// that were.
    pub(super) fn linear(
        &mut self,
        linear: &Linear,
        norm: Option<(Norm, Option<u64>)>,
        behind: &mut [Operation],
    ) -> Result<usize, BackendError> {
        assert_eq!(linear.matrix.experts, 1, "linear: a stack of experts");
        if self.is_small(linear) {
            return self.small(linear, norm, behind);
        }
        if self.is_large(linear) {
            return self.large(linear, behind);
        }
        let mut column = 0;
        for part in &linear.matrix.parts {
            let kernel = self
                .shop
                .kernels
                .kernel(Module::Product(part.format), "linear")?;
            let grid = [part.rows.div_ceil(8), linear.n.div_ceil(8), 1];
            let launch = Launch::new(kernel, grid, 256)
                .wide(linear.out)
                .number(linear.matrix.rows)
                .number(column)
                .wide(part.pointer)
                .wide(part.pitch as u64)
                .number(linear.matrix.padded())
                .wide(linear.bias.map_or(0, |bias| bias + 4 * column as u64))
                .wide(linear.x)
                .number(linear.n)
                .number(part.rows)
                .number(linear.matrix.cols);
            self.actions.push(Action::Launch(launch));
            column += part.rows;
        }
        Ok(1)
    }

    fn small(
        &mut self,
        linear: &Linear,
        norm: Option<(Norm, Option<u64>)>,
        behind: &mut [Operation],
    ) -> Result<usize, BackendError> {
        let Linear {
            out,
            ref matrix,
            bias,
            x,
            n,
        } = *linear;
        let mut table = Table {
            out,
            residual: 0,
            weight: 0,
            bias: 0,
            x,
            norm: 0,
            normed: 0,
            best: 0,
            pick: 0,
            eps: 0.0,
            alpha: 0.0,
            limit: 0.0,
            n: n as u32,
            rows: 0,
            cols: matrix.cols as u32,
            padded: matrix.padded() as u32,
            pitch: 0,
            stride: matrix.rows as u32,
            column: 0,
            second: 0,
            activation: 0,
            stages: 0,
            stage_pitch: 0,
        };
        if let Some((norm, pick)) = norm {
            table.x = norm.x;
            table.norm = norm.weight;
            table.eps = norm.eps;
            table.pick = pick.unwrap_or(0);
            table.normed = if pick.is_none() { norm.out } else { 0 };
        }
        let one = matrix.parts.len() == 1;
        let mut done = 1;
        match behind {
            [Operation::Norm(norm), ..] if adds(linear, norm) => {
                let residual = norm
                    .residual
                    .take()
                    .expect("invariant: there is one to add to");
                norm.x = residual;
                table.residual = residual;
                table.out = 0;
            }
            [
                Operation::Glu {
                    out,
                    gate_up,
                    activation,
                    width,
                    n,
                },
                ..,
            ] if *gate_up == linear.out
                && *n == linear.n
                && 2 * *width == matrix.rows
                && one
                && bias.is_none()
                && self.ring(linear, &matrix.parts[0], *width, 2).is_some() =>
            {
                table.out = *out;
                table.stride = *width as u32;
                table.second = *width as u32;
                (table.activation, table.alpha, table.limit) = activation_numbers(*activation);
                done = 2;
            }
            [Operation::Sample(sampling), ..]
                if sampling.table.logits == out
                    && sampling.n <= n
                    && one
                    && sampling.table.vocabulary as usize == matrix.rows =>
            {
                let sampling = *sampling;
                table.best = sampling.table.best;
                let blocks = self.fused(linear, &matrix.parts[0], table, 0)?;
                self.sample(sampling, blocks)?;
                return Ok(2);
            }
            _ => {}
        }
        let mut column = 0;
        for part in &matrix.parts {
            table.column = column as u32;
            self.fused(
                linear,
                part,
                table,
                bias.map_or(0, |bias| bias + 4 * column as u64),
            )?;
            table.normed = 0;
            column += part.rows;
        }
        Ok(done)
    }

    /// Launches the fused kernel for a part; says how many blocks it has.
    fn fused(
        &mut self,
        linear: &Linear,
        part: &Part,
        mut table: Table,
        bias: u64,
    ) -> Result<usize, BackendError> {
        let (rows, of_tile, name) = match table.second {
            0 => (part.rows, 1, "gemv"),
            second => (second as usize, 2, "gemv_pair"),
        };
        let ring = self
            .ring(linear, part, rows, of_tile)
            .expect("invariant: it was seen to fit");
        table.weight = part.pointer;
        table.bias = bias;
        table.rows = rows as u32;
        table.pitch = part.pitch as u32;
        table.stages = ring.stages as u32;
        table.stage_pitch = ring.stage_pitch as u32;
        let kernel = self
            .shop
            .kernels
            .kernel(Module::Product(part.format), name)?;
        let launch = Launch::new(kernel, [ring.blocks, 1, 1], 32 * WARPS + 32);
        self.actions
            .push(Action::Launch(launch.shared(ring.shared).structure(&table)));
        Ok(ring.blocks)
    }

    /// How `rows` rows of a part, or pairs of rows, are streamed; `None` where they do not fit.
    fn ring(&self, linear: &Linear, part: &Part, rows: usize, of_tile: usize) -> Option<Ring> {
        if part.format == DType::F32 {
            return None;
        }
        let device = &self.shop.device;
        let tiles = rows.div_ceil(ROWS);
        let processors = device.multiprocessors() as usize;
        // Where a block goes through its ring many times, two of them hide one another's waits.
        let most = match tiles > 2 * GROUP * processors {
            true => 2 * processors,
            false => processors,
        };
        let blocks = tiles.min(most).min(MOST_PARTS);
        let stage_pitch = matrix::stage_pitch(part.format, part.pitch);
        let stage = of_tile * ROWS * stage_pitch;
        let left = 4 * linear.n * linear.matrix.padded();
        let sums = 4 * GROUP * of_tile * WARPS * linear.n * ROWS;
        let wanted = tiles.div_ceil(blocks).min(MOST_STAGES);
        let room = |all: usize| {
            let room = all.checked_sub(OWN_SHARED + left + sums)?;
            let stages = (room / stage).min(wanted);
            (stages >= wanted.min(2)).then_some(stages)
        };
        let stages = room(HALF_OF_SHARED.min(device.shared_memory()))
            .or_else(|| room(device.shared_memory()))?;
        Some(Ring {
            blocks,
            stages,
            stage_pitch,
            shared: stages * stage + left + sums,
        })
    }

    fn large(&mut self, linear: &Linear, behind: &mut [Operation]) -> Result<usize, BackendError> {
        let Linear {
            out,
            ref matrix,
            bias,
            x,
            n,
        } = *linear;
        let weight = matrix.dense.expect("invariant: it was seen to be there");
        let (padded, width) = (matrix.padded(), matrix.cols);
        let rounded = self.rounded_memory()?;
        if self.rounded != Some(x) {
            self.rows_kernel("round_rows", [n, 1, 1], 256, |launch| {
                launch.wide(rounded).wide(x).number(width).number(padded)
            })?;
            self.rounded = Some(x);
        }
        let mut product = dense::Product {
            out,
            stride: matrix.rows,
            narrow: false,
            adds: false,
            weight,
            x: rounded,
            n,
            rows: matrix.rows,
            cols: padded,
        };
        match behind {
            [Operation::Norm(norm), ..] if adds(linear, norm) => {
                let residual = norm
                    .residual
                    .take()
                    .expect("invariant: there is one to add to");
                norm.x = residual;
                product.out = residual;
                product.adds = true;
            }
            [
                Operation::Glu {
                    out: activated,
                    gate_up,
                    activation,
                    width,
                    n: all,
                },
                Operation::Linear(next),
                ..,
            ] if *gate_up == out
                && *all == n
                && 2 * *width == matrix.rows
                && bias.is_none()
                && next.x == *activated
                && next.n == n
                && width.is_multiple_of(32)
                && self.is_large(next) =>
            {
                product.narrow = true;
                self.product(product)?;
                let (activated, width) = (*activated, *width);
                let (kind, alpha, limit) = activation_numbers(*activation);
                self.rows_kernel(
                    "glu_dense",
                    [(width / 2).div_ceil(256), n, 1],
                    256,
                    |launch| {
                        let launch = launch.wide(rounded).wide(out).number(width);
                        launch.number(kind as usize).float(alpha).float(limit)
                    },
                )?;
                self.rounded = Some(activated);
                return Ok(2);
            }
            _ => {}
        }
        self.product(product)?;
        if let Some(bias) = bias {
            let (to, rows) = (product.out, matrix.rows);
            self.rows_kernel("add_bias", [n, 1, 1], 256, |launch| {
                launch
                    .wide(to)
                    .number(rows)
                    .number(0)
                    .wide(bias)
                    .number(rows)
            })?;
        }
        Ok(1)
    }

    fn product(&mut self, product: dense::Product) -> Result<(), BackendError> {
        let dense = self
            .shop
            .dense
            .as_mut()
            .expect("invariant: it was seen to be there");
        dense.prepare(&product)?;
        self.actions.push(Action::Product(product));
        Ok(())
    }
}
