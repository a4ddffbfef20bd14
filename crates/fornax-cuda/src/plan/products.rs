//! Which kernel multiplies: one for a few rows and one for some dozens (`gemm.rs`), both fused with
//! their neighbours, the library for many (`large.rs`), plain loops where none of them can.

use fornax_backend::BackendError;
use fornax_gguf::DType;

use super::gemm::MOST_TOKENS;
use super::norms::{Before, adds};
use super::{Action, Plan};
use crate::kernels::{Kernel, Module};
use crate::launch::Launch;
use crate::matrix;
use crate::operation::{Linear, Operation, activation_numbers};
use crate::sampler::MOST_PARTS;
use crate::weight::Part;

/// Rows that the kernel for a few takes at most.
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
    ahead: u64,
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
    ahead_bytes: u32,
}

/// How many products further on the one is whose weights are brought near.
const AHEAD: usize = 1;
/// Bytes that are brought near at most: a part of the cache.
const MOST_AHEAD: usize = 16 << 20;

/// A planned launch of the fused kernel.
pub(super) struct Stream {
    /// Which of the plan's actions.
    action: usize,
    kernel: Kernel,
    blocks: usize,
    shared: usize,
    /// Bytes of its weights.
    bytes: usize,
    table: Table,
}

impl Stream {
    fn launch(&self) -> Launch {
        Launch::new(self.kernel, [self.blocks, 1, 1], 32 * WARPS + 32)
            .shared(self.shared)
            .structure(&self.table)
    }
}

/// How a part of a matrix is streamed through shared memory.
struct Ring {
    blocks: usize,
    stages: usize,
    stage_pitch: usize,
    shared: usize,
}

impl Plan<'_> {
    /// Whether the kernel for a few rows multiplies.
    pub(super) fn is_small(&self, linear: &Linear) -> bool {
        let parts = &linear.matrix.parts;
        linear.n <= FEW
            && parts
                .iter()
                .all(|part| self.ring(linear, part, part.rows, 1).is_some())
    }

    /// Whether the kernel for dozens of rows multiplies: where a copy in bf16 would have to be made, for
    /// on one the library is as fast or faster.
    pub(super) fn is_middle(&self, linear: &Linear) -> bool {
        let matrix = &linear.matrix;
        linear.n <= MOST_TOKENS
            && self.shop.dense.is_some()
            && matrix.dense.is_none()
            && matrix.parts.iter().all(|part| part.format != DType::F32)
            && !self.is_small(linear)
    }

    /// Whether the library multiplies.
    pub(super) fn is_large(&self, linear: &Linear) -> bool {
        let matrix = &linear.matrix;
        let dense = matrix.dense.is_some() || (self.shop.decodes && matrix.is_decodable());
        linear.n > FEW && dense && self.shop.dense.is_some()
    }

    /// A product, with a norm before it and what may be done behind it; says how many operations
    /// that were.
    pub(super) fn linear(
        &mut self,
        linear: &Linear,
        before: Option<Before>,
        behind: &mut [Operation],
    ) -> Result<usize, BackendError> {
        assert_eq!(linear.matrix.experts, 1, "linear: a stack of experts");
        if self.is_small(linear) {
            return self.small(linear, before, behind);
        }
        if self.is_middle(linear) {
            return self.middle(linear, before, behind);
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
        before: Option<Before>,
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
            ahead: 0,
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
            ahead_bytes: 0,
        };
        if let Some(Before { norm, pick, kept }) = before {
            table.x = norm.x;
            table.norm = norm.weight;
            table.eps = norm.eps;
            table.pick = pick.unwrap_or(0);
            table.normed = if kept { norm.out } else { 0 };
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
        self.streams.push(Stream {
            action: self.actions.len(),
            kernel,
            blocks: ring.blocks,
            shared: ring.shared,
            bytes: rows * of_tile * part.pitch,
            table,
        });
        let launch = self.streams[self.streams.len() - 1].launch();
        self.actions.push(Action::Launch(launch));
        Ok(ring.blocks)
    }

    /// Lets every streaming product bring weights of one to come into the device's cache: its own
    /// launch begins to read them only once there is room for its blocks, which is late.
    pub(super) fn bring_near(&mut self) {
        for index in 0..self.streams.len().saturating_sub(AHEAD) {
            let (weight, bytes) = {
                let next = &self.streams[index + AHEAD];
                (next.table.weight, next.bytes.min(MOST_AHEAD))
            };
            let stream = &mut self.streams[index];
            stream.table.ahead = weight;
            stream.table.ahead_bytes = bytes as u32;
            self.actions[stream.action] = Action::Launch(stream.launch());
        }
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
        // Nearly a block for each multiprocessor is made one: the launches behind would put two of
        // their own where none of ours is.
        let blocks = match tiles > processors / 2 {
            true => tiles.max(processors).min(most).min(MOST_PARTS),
            false => tiles,
        };
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
}
