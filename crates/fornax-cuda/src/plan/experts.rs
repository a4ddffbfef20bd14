//! Experts: those of a single token, or of each of them all pairs with tokens that chose it at once, or each pair by
//! itself where results are to be those of single precision.

use fornax_backend::BackendError;
use fornax_gguf::DType;

use super::gemm::{Table, tokens_at_once};
use super::norms::adds_rows;
use super::products::{WARPS, token_bytes};
use super::{Action, Plan};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::matrix;
use crate::operation::{Experts, Linear, Norm, Operation, Route, RouteTable, activation_numbers};
use crate::weight::Layout;

/// Blocks of a cluster that choose experts together.
const CLUSTER: usize = 8;
/// Bytes of the largest router that every cluster reads for itself, an eighth of it a block: beyond them that was
/// estimated, not measured, to take longer than launches of its own.
const MOST_ROUTER: usize = 1 << 20;

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

/// `struct Experts` of `kernels/experts.cu`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct OfOneToken {
    out: u64,
    residual: u64,
    weight: u64,
    bias: u64,
    x: u64,
    weights: u64,
    ids: u64,
    expert_bytes: u64,
    alpha: f32,
    limit: f32,
    used: u32,
    rows: u32,
    cols: u32,
    padded: u32,
    pitch: u32,
    activation: u32,
}

/// What chooses experts with the norm before it: `struct Router` of `kernels/experts.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Router {
    x: u64,
    weight: u64,
    bias: u64,
    norm: u64,
    normed: u64,
    route: RouteTable,
    eps: f32,
    pitch: u32,
}

impl Router {
    /// `kept` says whether what the norm gives is written down too.
    pub fn new(norm: &Norm, router: &Linear, route: &Route, kept: bool) -> Self {
        let part = &router.matrix.parts[0];
        Self {
            x: norm.x,
            weight: part.pointer,
            bias: router.bias.unwrap_or(0),
            norm: norm.weight,
            normed: if kept { norm.out } else { 0 },
            route: route.table,
            eps: norm.eps,
            pitch: part.pitch as u32,
        }
    }

    /// Bytes of shared memory for logits, the choice by them, sums of every warp and what is chosen.
    fn shared(route: &RouteTable) -> usize {
        let (experts, used) = (route.experts as usize, route.used as usize);
        route.scores() + 4 * (experts + (experts.div_ceil(CLUSTER) + 1) * WARPS + 2 * used)
    }
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
    /// The experts of each token, and what chooses those of a single one where they do so themselves.
    pub(super) fn experts(
        &mut self,
        experts: &Experts,
        router: Option<Router>,
        behind: &mut [Operation],
    ) -> Result<(), BackendError> {
        let Experts {
            out,
            weights,
            used,
            n,
            ..
        } = *experts;
        self.written(out);
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
                if let Some(shared) = self.of_one_token(experts, &experts.gate_up, 1) {
                    self.gated_of_one(experts, router, &first, between.activated, shared)?;
                } else {
                    self.each_pair(&first, experts)?;
                    self.expert_glu(experts, &between, false)?;
                }
                if let Some(shared) = self.of_one_token(experts, &experts.down, used) {
                    return self.down_of_one(experts, &second, shared, behind);
                }
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

    /// Bytes of shared memory with which the kernels of a single token multiply a matrix of some experts, of whose
    /// inputs they keep so many; `None` where they cannot.
    fn of_one_token(&self, experts: &Experts, matrix: &Layout, inputs: usize) -> Option<usize> {
        let [part] = &matrix.parts[..] else {
            return None;
        };
        let bytes = inputs * token_bytes(part.format, matrix.padded());
        let fits = bytes <= self.shop.device.shared_memory();
        (experts.n == 1 && part.format != DType::F32 && fits).then_some(bytes)
    }

    /// Whether a token's experts are chosen where they begin, with the norm before that: by blocks that tell one another
    /// what a router gives. That is written nowhere then.
    pub(super) fn choose_themselves(
        &self,
        norm: &Norm,
        router: &Linear,
        route: &Route,
        experts: &Experts,
    ) -> bool {
        let [part] = &router.matrix.parts[..] else {
            return false;
        };
        let RouteTable {
            ids,
            weights,
            logits,
            experts: count,
            used,
            ..
        } = route.table;
        let cols = router.matrix.cols;
        let room = self.of_one_token(experts, &experts.gate_up, 1);
        let fits = |bytes| bytes + Router::shared(&route.table) <= self.shop.device.shared_memory();
        self.shop.device.is_hopper()
            && [norm.n, router.n, route.n] == [1; 3]
            && [norm.width, experts.gate_up.cols] == [cols; 2]
            && [router.matrix.rows, experts.used] == [count as usize, used as usize]
            && [router.x, experts.x] == [norm.out; 2]
            && [router.out, experts.ids, experts.weights] == [logits, ids, weights]
            && part.format == DType::F32
            && part.rows * part.pitch <= MOST_ROUTER
            && cols.is_multiple_of(4)
            && room.is_some_and(fits)
    }

    /// Gates and ups of a token's experts, activated.
    fn gated_of_one(
        &mut self,
        experts: &Experts,
        router: Option<Router>,
        half: &Half<'_>,
        out: u64,
        shared: usize,
    ) -> Result<(), BackendError> {
        let hidden = experts.down.cols;
        let (activation, alpha, limit) = activation_numbers(experts.activation);
        let table = OfOneToken {
            out,
            rows: hidden as u32,
            activation,
            alpha,
            limit,
            ..one_token_table(half, experts)
        };
        // Two of them for each warp.
        let blocks = (experts.used * hidden).div_ceil(2 * WARPS);
        let launch = match router {
            None => self.launch_of_one(half, "experts_gated", table, [blocks, 1], shared)?,
            Some(router) => {
                let shared = shared + Router::shared(&router.route);
                let blocks = [blocks, CLUSTER];
                self.launch_of_one(half, "experts_routed", table, blocks, shared)?
                    .structure(&router)
            }
        };
        self.actions.push(Action::Launch(launch));
        Ok(())
    }

    /// What a token's experts add to it, with the sum behind them where that is all a norm does with it first.
    fn down_of_one(
        &mut self,
        experts: &Experts,
        half: &Half<'_>,
        shared: usize,
        behind: &mut [Operation],
    ) -> Result<(), BackendError> {
        let rows = experts.down.rows;
        let mut table = OfOneToken {
            out: experts.out,
            rows: rows as u32,
            ..one_token_table(half, experts)
        };
        if let [Operation::Norm(norm), ..] = behind
            && adds_rows(experts.out, [1, rows], norm)
        {
            table.residual = self.sum_before(norm);
            table.out = 0;
        }
        let blocks = rows.div_ceil(WARPS);
        let launch = self.launch_of_one(half, "experts_down", table, [blocks, 1], shared)?;
        self.actions.push(Action::Launch(launch));
        Ok(())
    }

    /// A launch of so many blocks, clusters of some of them, but of two a multiprocessor at most, of whom each has a part
    /// of the rows then.
    fn launch_of_one(
        &mut self,
        half: &Half<'_>,
        name: &'static str,
        table: OfOneToken,
        [blocks, cluster]: [usize; 2],
        shared: usize,
    ) -> Result<Launch, BackendError> {
        let module = Module::Gemv {
            format: half.matrix.parts[0].format,
            one: true,
        };
        let kernel = self.shop.kernels.kernel(module, name)?;
        let most = 2 * self.shop.device.multiprocessors() as usize;
        let blocks = blocks
            .next_multiple_of(cluster)
            .min(most / cluster * cluster);
        let launch = Launch::new(kernel, [blocks, 1, 1], 32 * WARPS).cluster(cluster);
        Ok(launch.shared(shared).structure(&table))
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

fn one_token_table(half: &Half<'_>, experts: &Experts) -> OfOneToken {
    let part = &half.matrix.parts[0];
    OfOneToken {
        weight: part.pointer,
        bias: half.bias,
        x: half.x,
        weights: experts.weights,
        ids: experts.ids,
        expert_bytes: (part.rows * part.pitch) as u64,
        used: experts.used as u32,
        cols: half.matrix.cols as u32,
        padded: half.matrix.padded() as u32,
        pitch: part.pitch as u32,
        ..OfOneToken::default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<OfOneToken>(), 96);
        assert_eq!(size_of::<RouteTable>(), 64);
        assert_eq!(size_of::<Router>(), 112);
        assert_eq!(std::mem::offset_of!(Router, route), 40);
    }
}
