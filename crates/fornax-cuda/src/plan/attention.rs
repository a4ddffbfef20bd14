//! Which kernel attends: one for rows of single tokens, one for many tokens, one for all else.

use fornax_backend::BackendError;

use super::{Action, Plan};
use crate::kernels::Module;
use crate::launch::Launch;
use crate::operation::{Attend, AttendTable, Operation, Turn};

/// Query heads that one block takes at most.
const MOST_HEADS: usize = 4;
/// Blocks that split a row at most.
const MOST_SPLITS: usize = 8;
/// As in `kernels/attention.cu`.
const ROW_THREADS: usize = 256;
const THREADS: usize = 128;
const TILE: usize = 64;

impl Plan<'_> {
    pub(super) fn attend(
        &mut self,
        mut attend: Attend,
        behind: &[Operation],
    ) -> Result<(), BackendError> {
        let table = attend.table;
        let (n, heads, dim) = (table.n as usize, table.q_count as usize, table.dim as usize);
        let (dense, _) = self.rounded_for(table.out, heads * table.v_dim as usize, n, behind)?;
        attend.table.dense = dense;
        if self.is_single(&attend) {
            return self.attend_rows(&attend.table);
        }
        if is_fast(&table) && attend.tiles > 0 {
            let module = module(&table, 1);
            let kernel = self.shop.kernels.kernel(module, "attend_tiles")?;
            // Two tiles of K and two of V in halves.
            let shared = 4 * TILE * dim * 2;
            let launch = Launch::new(kernel, [attend.tiles, heads, 1], THREADS);
            self.actions.push(Action::Launch(
                launch.shared(shared).structure(&attend.table),
            ));
            return Ok(());
        }
        let kernel = self.shop.kernels.kernel(Module::AttendAny, "attend_any")?;
        let launch = Launch::new(kernel, [(n * heads).div_ceil(4), 1, 1], THREADS);
        self.actions
            .push(Action::Launch(launch.structure(&attend.table)));
        Ok(())
    }

    /// Whether attention also norms, turns and stores.
    pub(super) fn turns_on_the_way(&self, turn: &Turn, attend: &Attend) -> bool {
        let table = &attend.table;
        // Where some heads' rows are split over several blocks, one alone may store.
        let alone = heads_a_block(table) == group(table);
        let same = table.q == turn.qkv && table.keys == turn.keys && table.n == turn.n;
        self.is_single(attend) && same && alone && turn.v_dim == table.v_dim
    }

    fn is_single(&self, attend: &Attend) -> bool {
        attend.single && is_fast(&attend.table)
    }

    fn attend_rows(&mut self, table: &AttendTable) -> Result<(), BackendError> {
        let heads = heads_a_block(table);
        let across = table.q_count as usize / heads;
        let blocks = table.n as usize * across;
        let device = &self.shop.device;
        let splits = match device.is_hopper() {
            true => (device.multiprocessors() as usize / blocks).clamp(1, MOST_SPLITS),
            false => 1,
        };
        // The largest power of two in it.
        let splits = 1 << splits.ilog2();
        let kernel = self
            .shop
            .kernels
            .kernel(module(table, heads), "attend_rows")?;
        let grid = [splits, table.n as usize, across];
        let launch = Launch::new(kernel, grid, ROW_THREADS)
            .cluster(splits)
            .structure(table);
        self.actions.push(Action::Launch(launch));
        Ok(())
    }
}

/// Whether there are kernels for heads of this size and this type of cache.
fn is_fast(table: &AttendTable) -> bool {
    table.dim == table.v_dim
        && [64, 128].contains(&table.dim)
        && table.kind > 0
        && table.page_size.is_power_of_two()
        && table.q_offset.is_multiple_of(2)
        && table.q_stride.is_multiple_of(2)
}

/// Query heads of a KV head.
fn group(table: &AttendTable) -> usize {
    (table.q_count / table.kv_heads) as usize
}

/// The most query heads of one KV head that a block takes at once.
fn heads_a_block(table: &AttendTable) -> usize {
    let group = group(table);
    let fits = |heads: &usize| group.is_multiple_of(*heads);
    (1..=MOST_HEADS).rev().find(fits).unwrap_or(1)
}

fn module(table: &AttendTable, group: usize) -> Module {
    Module::Attend {
        head: table.dim as usize,
        group,
        kv: table.kind as usize,
    }
}
