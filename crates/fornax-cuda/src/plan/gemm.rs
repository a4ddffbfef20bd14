//! Products of some dozens of tokens, and those of experts: weights in their own format, unpacked on
//! the way to the tensor cores.
//!
//! Must not know when these are better than others.

use fornax_backend::{Activation, BackendError};
use fornax_gguf::DType;

use super::norms::{Before, adds};
use super::{Action, Plan, Rounded};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::matrix;
use crate::operation::{Linear, Operation, activation_numbers};
use crate::weight::Part;

/// Tokens that a block takes at most.
pub(super) const MOST_TOKENS: usize = 64;
/// As in `kernels/gemm.cu`.
const THREADS: usize = 256;
const TILE_ROWS: usize = 64;
const CHUNK: usize = 32;
const SUM_PITCH: usize = TILE_ROWS + 8;
const MOST_SPLITS: usize = 8;

/// `struct Gemm` of `kernels/gemm.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Table {
    pub out: u64,
    pub residual: u64,
    pub weight: u64,
    pub bias: u64,
    pub x: u64,
    pub norm: u64,
    pub order: u64,
    pub tiles: u64,
    pub expert_bytes: u64,
    pub eps: f32,
    pub alpha: f32,
    pub limit: f32,
    pub n: u32,
    pub rows: u32,
    pub cols: u32,
    pub padded: u32,
    pub pitch: u32,
    pub stride: u32,
    pub column: u32,
    pub second: u32,
    pub bias_stride: u32,
    pub activation: u32,
    pub share: u32,
    pub rounded: u32,
    pub narrow: u32,
}

impl Table {
    /// Rows are pairs of a gate's and an up's row.
    pub fn gated(&mut self, activation: Activation, width: usize) {
        self.second = width as u32;
        (self.activation, self.alpha, self.limit) = activation_numbers(activation);
    }
}

/// Which of the kernel's numbers of tokens holds so many.
pub(super) fn tokens_at_once(tokens: usize) -> usize {
    tokens.next_power_of_two().clamp(16, MOST_TOKENS)
}

impl Plan<'_> {
    /// A product, with a norm before it and what may be done behind it; says how many operations
    /// that were.
    pub(super) fn middle(
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
            ..
        } = *linear;
        let mut table = Table {
            out,
            x,
            n: n as u32,
            cols: matrix.cols as u32,
            padded: matrix.padded() as u32,
            stride: matrix.rows as u32,
            bias_stride: matrix.rows as u32,
            share: 1,
            ..Table::default()
        };
        if let Some(Before { norm, .. }) = before {
            (table.x, table.norm, table.eps) = (norm.x, norm.weight, norm.eps);
        }
        if before.is_none() {
            if self.rounded_of(x, 1).is_none() && !matrix.cols.is_multiple_of(4) {
                self.round(x, n, matrix.cols, 1)?;
            }
            if let Some(rounded) = self.rounded_of(x, 1) {
                assert!(
                    rounded.halved.is_none(),
                    "invariant: norms are halved for other kernels"
                );
                (table.x, table.rounded) = (rounded.at, 1);
            }
        }
        let mut done = 1;
        match behind {
            [Operation::Norm(norm), ..] if adds(linear, norm) => {
                table.residual = self.sum_before(norm);
            }
            [
                Operation::Glu {
                    out: activated,
                    gate_up,
                    activation,
                    width,
                    n: all,
                },
                rest @ ..,
            ] if *gate_up == out
                && *all == n
                && 2 * *width == matrix.rows
                && matrix.parts.len() == 1 =>
            {
                let (activated, width) = (*activated, *width);
                table.gated(*activation, width);
                (table.out, table.stride) = (activated, width as u32);
                // What is read cannot be written.
                if table.rounded == 0 {
                    let rounding = self.rounded_for(activated, width, n, 1, rest)?;
                    if rounding.at > 0 {
                        (table.out, table.stride, table.narrow) =
                            (rounding.at, rounding.padded as u32, 1);
                    }
                } else {
                    self.written(activated);
                }
                done = 2;
            }
            _ => {}
        }
        let mut column = 0;
        for part in &matrix.parts {
            table.column = column as u32;
            table.bias = bias.map_or(0, |bias| bias + 4 * column as u64);
            self.gemm(part, table, tokens_at_once(n), 1)?;
            column += part.rows;
        }
        Ok(done)
    }

    /// Launches the kernel for a part and so many tiles of tokens.
    pub(super) fn gemm(
        &mut self,
        part: &Part,
        mut table: Table,
        tokens: usize,
        tiles: usize,
    ) -> Result<(), BackendError> {
        assert!(part.format != DType::F32, "invariant: no product of f32");
        let device = &self.shop.device;
        let (rows, outs) = match table.second {
            0 => (part.rows, TILE_ROWS),
            second => (second as usize, TILE_ROWS / 2),
        };
        let row_tiles = rows.div_ceil(outs);
        let blocks = table.padded as usize / 32;
        let mut splits = 1;
        // A block for each multiprocessor at most, so that the next launch's blocks come beside them,
        // each with work for all of its warps.
        while device.is_hopper()
            && 2 * splits * row_tiles * tiles <= device.multiprocessors() as usize
            && 2 * splits <= MOST_SPLITS.min(blocks / 4)
        {
            splits *= 2;
        }
        let columns = blocks.div_ceil(splits).min(CHUNK);
        let left = tokens * (64 * columns + 64 * (1 - columns % 2));
        let slices = if tokens == MOST_TOKENS { 2 } else { 4 };
        let sums = 4 * slices * tokens * SUM_PITCH;
        let sent = if splits > 1 {
            4 * tokens * TILE_ROWS
        } else {
            0
        };
        table.weight = part.pointer;
        table.rows = rows as u32;
        table.pitch = part.pitch as u32;
        let name = match tokens {
            16 => "gemm_16",
            32 => "gemm_32",
            _ => "gemm_64",
        };
        let kernel = self.shop.kernels.kernel(Module::Gemm(part.format), name)?;
        let launch = Launch::new(kernel, [splits, row_tiles, tiles], THREADS)
            .cluster(splits)
            .shared(left.max(sums) + sent)
            .structure(&table);
        self.actions.push(Action::Launch(launch));
        Ok(())
    }

    /// Rounds rows to bf16 where the next product finds them, or splits them.
    pub(super) fn round(
        &mut self,
        x: u64,
        n: usize,
        width: usize,
        parts: usize,
    ) -> Result<Rounded, BackendError> {
        let (at, padded) = (self.rounded_memory()?, matrix::padded(width));
        if parts == 1 {
            self.rows_kernel("round_rows", [n, 1, 1], 256, |launch| {
                launch.wide(at).wide(x).number(width).number(padded)
            })?;
        } else {
            self.rows_kernel("split_rows", [n, 1, 1], 256, |launch| {
                launch.wide(at).wide(x).number(width)
            })?;
        }
        let rounded = Rounded {
            of: x,
            at,
            parts,
            halved: None,
        };
        Ok(*self.rounded.insert(rounded))
    }
}
