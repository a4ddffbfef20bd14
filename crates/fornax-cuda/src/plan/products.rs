//! Which kernel multiplies: one for a few rows and one for some dozens (`gemm.rs`), both fused with their neighbours,
//! others on a copy in bf16 (`large.rs`), plain loops where none of them can.

use fornax_backend::BackendError;
use fornax_gguf::DType;

use super::gemm::MOST_TOKENS;
use super::norms::{Before, adds};
use super::{Action, Plan, Searched};
use crate::kernels::{Kernel, Module};
use crate::launch::Launch;
use crate::matrix;
use crate::operation::{Linear, Operation, Sampling, activation_numbers};
use crate::sampler::MOST_PARTS;
use crate::ways::ways;
use crate::weight::Part;

/// Rows that the kernel for a few takes at most.
pub(super) const FEW: usize = 8;
/// As in `kernels/gemv.cu`, `kernels/one_token.cu` and `kernels/links.cu`.
const ROWS: usize = 8;
pub(super) const WARPS: usize = 8;
const ABREAST: usize = 4;
const MOST_STAGES: usize = 32;
/// Shared memory of a block, so that the next launch's blocks fit beside it.
const HALF_OF_SHARED: usize = 110 << 10;
/// What the kernel itself keeps there.
const OWN_SHARED: usize = 2 << 10;
/// Bytes of a product with one token of which two blocks a multiprocessor are faster, for each waits for its own tiles.
const MUCH: usize = 8 << 20;
/// Bytes of a stage at most, if a tile of fewer rows can be shorter: some are on their way at once.
const LONGEST_STAGE: usize = 36 << 10;

/// `struct Product` of `kernels/stream.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Table {
    pub out: u64,
    pub residual: u64,
    pub weight: u64,
    pub bias: u64,
    pub x: u64,
    pub norm: u64,
    pub normed: u64,
    pub best: u64,
    pub pick: u64,
    pub ahead: u64,
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
    pub activation: u32,
    pub stages: u32,
    pub stage_pitch: u32,
    pub ahead_bytes: u32,
    pub tile_rows: u32,
}

/// How many products further on the one is whose weights are brought near.
const AHEAD: usize = 1;
/// Bytes that are brought near at most: a part of the cache.
const MOST_AHEAD: usize = 16 << 20;

/// A planned launch of the fused kernel.
pub(super) struct Stream {
    /// Which of the plan's actions.
    pub action: usize,
    pub format: DType,
    pub blocks: usize,
    pub table: Table,
    kernel: Kernel,
    shared: usize,
    /// Bytes of its weights.
    bytes: usize,
}

impl Stream {
    fn launch(&self) -> Launch {
        Launch::new(self.kernel, [self.blocks, 1, 1], 32 * WARPS + 32)
            .shared(self.shared)
            .structure(&self.table)
    }

    /// Whether one single token is multiplied, which nothing else reads normed.
    pub fn is_of_one_token(&self) -> bool {
        let table = &self.table;
        table.n == 1 && table.normed == 0 && table.cols.is_multiple_of(8)
    }

    /// Whether it gives all numbers of its result.
    pub fn is_whole(&self) -> bool {
        self.table.column == 0 && self.table.rows == self.table.stride
    }

    /// The first number of its result, where a part in another format goes before it.
    pub fn column(&self) -> usize {
        self.table.column as usize
    }

    /// Which buffer it reads, and how many numbers.
    pub fn input(&self) -> (u64, usize) {
        (self.table.x, self.table.cols as usize)
    }

    /// Which buffer it writes, and up to which of its numbers.
    pub fn output(&self) -> (u64, usize) {
        let table = &self.table;
        let to = self.adds_to().unwrap_or(table.out);
        (to, (table.column + table.rows) as usize)
    }

    /// Which buffer it adds to, if any.
    pub fn adds_to(&self) -> Option<u64> {
        (self.table.residual != 0).then_some(self.table.residual)
    }

    /// Numbers of a row with the zeros behind it.
    pub fn padded(&self) -> usize {
        self.table.padded as usize
    }

    /// Rows that belong together: a gate's and an up's, or one.
    pub fn of_tile(&self) -> usize {
        if self.table.second == 0 { 1 } else { 2 }
    }

    /// Bytes of a tile's rows, with nothing between them.
    pub fn tile_bytes(&self) -> usize {
        self.of_tile() * (self.table.tile_rows * self.table.pitch) as usize
    }

    /// Eights of rows, of which the last may be less.
    pub fn eights(&self) -> usize {
        (self.table.rows as usize).div_ceil(ROWS)
    }
}

/// How a part of a matrix is streamed through shared memory.
struct Ring {
    blocks: usize,
    /// Rows, or pairs of them, of a stage.
    tile_rows: usize,
    stages: usize,
    stage_pitch: usize,
    shared: usize,
}

impl Plan<'_> {
    /// Whether the kernel for a few rows multiplies.
    pub(super) fn is_small(&self, linear: &Linear) -> bool {
        let parts = &linear.matrix.parts;
        linear.n <= FEW
            && self.parts(linear) == 1
            && !self.prefers_copy(linear)
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

    /// Whether a copy in bf16 is multiplied, or what is decoded to it.
    pub(super) fn is_large(&self, linear: &Linear) -> bool {
        let matrix = &linear.matrix;
        let dense = matrix.dense.is_some() || (self.shop.decodes && matrix.is_decodable());
        let large = linear.n > FEW || self.parts(linear) > 1 || self.prefers_copy(linear);
        large && dense && self.shop.dense.is_some()
    }

    /// Whether a few tokens are multiplied with the copy in bf16, as more of them are: with matrices all of whose
    /// parts would be decoded otherwise, which takes up to five times as long as to read what is decoded already.
    /// Both sides are rounded to 8 bits then, where one token alone keeps 16 of its numbers and all of the weights.
    fn prefers_copy(&self, linear: &Linear) -> bool {
        let matrix = &linear.matrix;
        linear.n > 1
            && self.shop.dense.is_some()
            && matrix.dense.is_some()
            && matrix.parts.iter().all(|part| ways(part.format).decoded)
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
        self.written(linear.out);
        if self.is_small(linear) {
            return self.small(linear, before, behind);
        }
        if let Some(head) = linear.matrix.head
            && self.is_of_head(linear)
        {
            return self.vocabulary(linear, head, behind);
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
            ..
        } = *linear;
        let mut table = Table {
            out,
            x,
            n: n as u32,
            cols: matrix.cols as u32,
            padded: matrix.padded() as u32,
            stride: matrix.rows as u32,
            ..Table::default()
        };
        if let Some(Before { norm, pick, kept }) = before {
            table.x = norm.x;
            table.norm = norm.weight;
            table.eps = norm.eps;
            table.pick = pick.unwrap_or(0);
            table.normed = if kept { norm.out } else { 0 };
        }
        if let Some(sketch) = self.sketch_of(linear) {
            return self.largest(linear, &sketch, table, behind);
        }
        let one = matrix.parts.len() == 1;
        let mut done = 1;
        match behind {
            [Operation::Norm(norm), ..] if adds(linear, norm) => {
                table.residual = self.sum_before(norm);
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
                self.written(*out);
                table.out = *out;
                table.stride = *width as u32;
                table.second = *width as u32;
                (table.activation, table.alpha, table.limit) = activation_numbers(*activation);
                done = 2;
            }
            [Operation::Sample(_), ..] if one && let Some(sampling) = draw_of(linear, behind) => {
                table.best = sampling.table.best;
                let blocks = self.fused(linear, &matrix.parts[0], table, 0)?;
                self.sample(sampling, Searched::Apart(blocks))?;
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
        table.tile_rows = ring.tile_rows as u32;
        let module = Module::Gemv {
            format: part.format,
            one: linear.n == 1,
        };
        let kernel = self.shop.kernels.kernel(module, name)?;
        self.streams.push(Stream {
            action: self.actions.len(),
            format: part.format,
            blocks: ring.blocks,
            table,
            kernel,
            shared: ring.shared,
            bytes: rows * of_tile * part.pitch,
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
        let one = linear.n == 1;
        let stage_pitch = matrix::stage_pitch(part.format, part.pitch);
        let tile_rows = match one {
            true => tile_rows(part, of_tile),
            false => ROWS,
        };
        let tiles = rows.div_ceil(tile_rows);
        let stage = of_tile * tile_rows * stage_pitch;
        let padded = linear.matrix.padded();
        let left = match one {
            true => token_bytes(part.format, padded),
            false => 4 * linear.n * padded,
        };
        let sums = 4 * ABREAST * of_tile * WARPS * linear.n * ROWS;
        let processors = device.multiprocessors() as usize;
        // Nearly a block for each multiprocessor is made one: the launches behind would put two of
        // their own where none of ours is.
        let blocks_of = |most: usize| match tiles > processors / 2 {
            true => tiles.max(processors).min(most).min(MOST_PARTS),
            false => tiles,
        };
        let stages_in = |all: usize, blocks: usize| {
            let wanted = tiles.div_ceil(blocks).min(MOST_STAGES);
            let room = all.checked_sub(OWN_SHARED + left + sums)?;
            let stages = (room / stage).min(wanted);
            (stages >= wanted.min(2)).then_some(stages)
        };
        let half = HALF_OF_SHARED.min(device.shared_memory());
        // Where a block goes through its ring many times, two of them hide one another's waits.
        let two = blocks_of(2 * processors);
        let is_much = one && rows * of_tile * part.pitch >= MUCH && stages_in(half, two).is_some();
        let blocks = match is_much || tiles > 2 * ABREAST * processors {
            true => two,
            false => blocks_of(processors),
        };
        let stages =
            stages_in(half, blocks).or_else(|| stages_in(device.shared_memory(), blocks))?;
        Some(Ring {
            blocks,
            tile_rows,
            stages,
            stage_pitch,
            shared: stages * stage + left + sums,
        })
    }
}

/// Rows of a tile for a single token, or pairs of them: so many that its stage is no longer than it may be.
pub(super) fn tile_rows(part: &Part, of_tile: usize) -> usize {
    let stage_pitch = matrix::stage_pitch(part.format, part.pitch);
    let fits = |rows: &usize| of_tile * rows * stage_pitch <= LONGEST_STAGE;
    let rows = [ROWS, ROWS / 2, ROWS / 4].into_iter().find(fits);
    rows.unwrap_or(1)
}

/// Bytes of a single token of so many numbers as it is multiplied with weights of a format.
pub(super) fn token_bytes(format: DType, padded: usize) -> usize {
    match ways(format).bytes {
        true => 5 * padded / 2,
        false => 4 * padded,
    }
}

/// The draw behind a product whose logits it reads.
pub(super) fn draw_of(linear: &Linear, behind: &[Operation]) -> Option<Sampling> {
    match behind {
        [Operation::Sample(sampling), ..]
            if sampling.table.logits == linear.out
                && sampling.n <= linear.n
                && sampling.table.vocabulary as usize == linear.matrix.rows =>
        {
            Some(*sampling)
        }
        _ => None,
    }
}

/// A product of a single token for tests of what comes of it: buffers, rows or pairs of them, columns.
#[cfg(test)]
pub(super) struct Shape {
    pub x: u64,
    pub out: u64,
    pub residual: u64,
    pub rows: u32,
    pub cols: u32,
    pub normed: bool,
    pub pair: bool,
}

#[cfg(test)]
pub(super) fn stream_for_test(shape: &Shape, format: DType) -> Stream {
    let table = Table {
        out: shape.out,
        residual: shape.residual,
        weight: 5,
        x: shape.x,
        norm: if shape.normed { 6 } else { 0 },
        n: 1,
        rows: shape.rows,
        cols: shape.cols,
        padded: shape.cols,
        pitch: matrix::row_bytes(format, shape.cols as usize) as u32,
        stride: shape.rows,
        second: if shape.pair { shape.rows } else { 0 },
        tile_rows: ROWS as u32,
        ..Table::default()
    };
    Stream {
        action: 0,
        format,
        blocks: 1,
        table,
        kernel: Kernel {
            function: std::ptr::null_mut(),
            name: "gemv",
        },
        shared: 0,
        bytes: 0,
    }
}
