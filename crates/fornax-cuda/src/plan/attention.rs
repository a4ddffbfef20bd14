//! Which kernel attends: one for a few rows of single tokens, one for many of them, one for many
//! tokens of a row, one for all else.

use fornax_backend::BackendError;

use super::{Action, Plan};
use crate::kernels::{
    Module,
    attend_stream::{MOST_BLOCKS, ROWS, SLICE, Stream},
};
use crate::launch::Launch;
use crate::operation::{Attend, AttendTable, Operation, Turn};

/// Query heads that one block takes at most, of a few rows and of many.
const MOST_HEADS: usize = 4;
const MOST_HEADS_OF_MANY: usize = 8;
/// Rows and KV heads that all blocks share alike, of as many multiprocessors: of several rows; and of one, which a
/// chain may attend to otherwise, or of those beside prompts, which may be none.
const SHARE_OF_SEVERAL: usize = 12;
const SHARE_OF_ONE: usize = 5;
/// Blocks that split a row at most.
const MOST_SPLITS: usize = 8;
/// As in the kernels.
const ROW_THREADS: usize = 256;
const THREADS: usize = 128;
const TILE: usize = 64;
/// What all rows before each row cost, a `Start`, and sines and cosines for the longest heads.
const BEFORE_BYTES: usize = (4 * (ROWS + 1)).next_multiple_of(16);
const START_BYTES: usize = 32;
/// Elements of heads that there are kernels for.
const FAST: [usize; 2] = [64, LONGEST];
const LONGEST: usize = 128;
const TURNS_BYTES: usize = ROWS * 4 * LONGEST;

impl Plan<'_> {
    pub(super) fn attend(
        &mut self,
        mut attend: Attend,
        behind: &[Operation],
    ) -> Result<(), BackendError> {
        let table = attend.table;
        let (n, heads, dim) = (table.n as usize, table.q_count as usize, table.dim as usize);
        let (width, single) = (heads * table.v_dim as usize, self.is_single(&attend));
        let most_parts = if single { 2 } else { 1 };
        let rounding = self.rounded_for(table.out, width, n, most_parts, behind)?;
        attend.table.dense = rounding.at;
        attend.table.dense_apart = rounding.apart as u64;
        if single {
            return match self.streams(&table, n) {
                true => self.attend_stream(attend.table),
                false => self.attend_rows(&attend.table),
            };
        }
        if self.takes_tiles(&attend) {
            if self.has_rows_apart(&attend) {
                attend.table.apart = 1;
                let rows = attend.rows as u32;
                self.attend_stream(AttendTable {
                    n: rows,
                    ..attend.table
                })?;
            }
            let device = &self.shop.device;
            // The queries, and for each group three tiles of K or V, in halves.
            let shared = |groups: usize| (1 + 3 * groups) * TILE * dim * 2;
            let few = attend.tiles * heads <= 2 * device.multiprocessors() as usize;
            let groups = match few && shared(2) <= device.shared_memory() {
                true => 2,
                false => 1,
            };
            let module = Module::AttendTiles {
                head: dim,
                kv: table.kind as usize,
                groups,
                plain: table.is_plain(),
            };
            let kernel = self.shop.kernels.kernel(module, "attend_tiles")?;
            let (shared, grid) = (shared(groups), [attend.tiles, heads, 1]);
            let launch = Launch::new(kernel, grid, groups * THREADS);
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
        // Where blocks that share a KV head are not in step, none may store alone.
        let alone = !self.streams(table, table.n as usize)
            || heads_a_block(table, MOST_HEADS_OF_MANY) == group(table);
        let same = table.q == turn.qkv && table.keys == turn.keys && table.n == turn.n;
        self.is_single(attend) && same && alone && turn.v_dim == table.v_dim
    }

    /// Whether the attention that comes next does so, and reads rows in single precision.
    pub(super) fn is_turned_by(&self, turn: &Turn, behind: &[Operation]) -> bool {
        matches!(behind, [Operation::Attend(attend), ..] if self.turns_on_the_way(turn, attend))
    }

    /// What turns queries, into halves where attention comes next that would only round them.
    pub(super) fn narrowed(&self, turn: &Turn, behind: &mut [Operation]) -> Turn {
        let mut turn = *turn;
        if let [Operation::Attend(attend), ..] = behind
            && self.takes_tiles(attend)
            && attend.table.q == turn.qkv
            && attend.table.n == turn.n
            // Halves may then lie over queries that were read, and over nothing else.
            && turn.q_offset == 0
            && attend.table.scale != 0.0
        {
            attend.table.narrow = 1;
            turn.query_scale = match attend.table.cap > 0.0 {
                true => attend.table.scale,
                false => attend.table.scale * std::f32::consts::LOG2_E,
            };
        }
        turn
    }

    fn takes_tiles(&self, attend: &Attend) -> bool {
        // A thread copies up to eight positions that lie on one page.
        let together = attend.table.page_size.is_multiple_of(8);
        !self.is_single(attend) && is_fast(&attend.table) && together && attend.tiles > 0
    }

    fn is_single(&self, attend: &Attend) -> bool {
        attend.single && is_fast(&attend.table)
    }

    /// Whether rows with one new token are attended to apart from those with many, for whom a tile of
    /// queries would be one query.
    fn has_rows_apart(&self, attend: &Attend) -> bool {
        self.takes_tiles(attend) && self.shares(&attend.table, attend.rows, SHARE_OF_ONE)
    }

    /// Whether so many rows of one token each are shared by all blocks alike, instead of having a cluster
    /// each: two rows of eight KV heads gain by it, behind a few positions and behind many.
    pub(super) fn streams(&self, table: &AttendTable, rows: usize) -> bool {
        let share = match rows {
            1 => SHARE_OF_ONE,
            _ => SHARE_OF_SEVERAL,
        };
        self.shares(table, rows, share)
    }

    fn shares(&self, table: &AttendTable, rows: usize, share: usize) -> bool {
        let page = table.page_size as usize;
        let device = &self.shop.device;
        let blocks = rows * table.q_count as usize / heads_a_block(table, MOST_HEADS_OF_MANY);
        is_fast(table)
            && page.is_multiple_of(SLICE)
            && table.q_offset.is_multiple_of(8)
            && table.q_stride.is_multiple_of(4)
            && rows <= ROWS
            && share * blocks >= device.multiprocessors() as usize
            && stream_of(table).shared() <= device.shared_memory()
    }

    /// Attends to many rows.
    fn attend_stream(&mut self, mut table: AttendTable) -> Result<(), BackendError> {
        let blocks = self.stream_blocks(&table);
        table.pieces = self.shop.pieces.grown(&self.shop.device, 0)?;
        self.deal(&mut table)?;
        let stream = stream_of(&table);
        let kernel = self
            .shop
            .kernels
            .kernel(Module::AttendStream(stream), "attend_stream")?;
        let launch =
            Launch::new(kernel, [blocks, 1, 1], 32 * stream.warps()).shared(stream.shared());
        self.actions.push(Action::Launch(launch.structure(&table)));
        Ok(())
    }

    /// Points to the shares of the blocks and to how rows are turned, found for all layers that attend alike.
    fn deal(&mut self, table: &mut AttendTable) -> Result<(), BackendError> {
        let alike = Alike::of(table);
        let known = self.deals.iter().position(|deal| deal.alike == alike);
        let index = known.unwrap_or(self.deals.len());
        let blocks = self.stream_blocks(table);
        let all = self.shop.shares.grown(&self.shop.device, 0)?;
        table.before = all + (index * self.deal_bytes()) as u64;
        table.turns = table.before + BEFORE_BYTES as u64;
        table.starts = table.turns + TURNS_BYTES as u64;
        if known.is_none() {
            let module = Module::AttendStream(stream_of(table));
            let kernel = self.shop.kernels.kernel(module, "deal_shares")?;
            let pairs = match table.frequencies {
                0 => 0,
                _ => (table.n * table.dim) as usize / 2,
            };
            let launch = Launch::new(kernel, [1 + pairs.div_ceil(ROWS), 1, 1], ROWS);
            let launch = launch.structure(table).number(blocks);
            self.deals.push(Deal { alike, launch });
        }
        Ok(())
    }

    /// Bytes of a deal: what rows cost, how they are turned, and where each block begins.
    fn deal_bytes(&self) -> usize {
        BEFORE_BYTES
            + TURNS_BYTES
            + MOST_BLOCKS * self.shop.device.multiprocessors() as usize * START_BYTES
    }

    /// Makes what blocks that share rows need, before anything points there.
    pub(super) fn make_room_for_pieces(
        &mut self,
        operations: &[Operation],
    ) -> Result<(), BackendError> {
        let (mut pieces, mut alike) = (0, Vec::new());
        let before = [None].into_iter().chain(operations.iter().map(Some));
        for (before, operation) in before.zip(operations) {
            if let Operation::Attend(attend) = operation
                && (attend.single && self.streams(&attend.table, attend.rows)
                    || self.has_rows_apart(attend))
            {
                let table = &attend.table;
                let heads = heads_a_block(table, MOST_HEADS_OF_MANY);
                // A block leaves at most one piece: of the head inside of which it begins.
                let words = self.stream_blocks(table) * heads * (table.dim as usize + 4);
                pieces = pieces.max(4 * words);
                let shape = match before {
                    Some(Operation::Turn(turn)) if self.turns_on_the_way(turn, attend) => {
                        Alike::of(&attend.turning(turn).table)
                    }
                    _ => Alike::of(table),
                };
                if !alike.contains(&shape) {
                    alike.push(shape);
                }
            }
        }
        let shares = alike.len() * self.deal_bytes();
        self.shop.shares.grown(&self.shop.device, shares)?;
        self.shop.pieces.grown(&self.shop.device, pieces)?;
        Ok(())
    }

    /// As many as run at once: one that waits for what those behind it leave is not to wait for their beginning.
    fn stream_blocks(&self, table: &AttendTable) -> usize {
        const RESERVED: usize = 1 << 10; // of each block's memory, by the system
        let (device, stream) = (&self.shop.device, stream_of(table));
        let room = (device.shared_memory() + RESERVED) / (stream.shared() + RESERVED);
        stream.blocks().min(room) * device.multiprocessors() as usize
    }

    fn attend_rows(&mut self, table: &AttendTable) -> Result<(), BackendError> {
        let device = &self.shop.device;
        let processors = device.multiprocessors() as usize;
        let (n, q_count) = (table.n as usize, table.q_count as usize);
        // Heads share what a block reads; alone in theirs they are done sooner, where there is room.
        let heads = match n * q_count * MOST_SPLITS <= processors {
            true => 1,
            false => heads_a_block(table, MOST_HEADS),
        };
        let across = q_count / heads;
        let blocks = n * across;
        let splits = match device.is_hopper() {
            true => (processors / blocks).clamp(1, MOST_SPLITS),
            false => 1,
        };
        // The largest power of two in it.
        let splits = 1 << splits.ilog2();
        let module = Module::AttendRows {
            head: table.dim as usize,
            group: heads,
            kv: table.kind as usize,
            // Parts of a row are short, and a smaller kernel begins beside the one before it.
            together: if splits == MOST_SPLITS { 2 } else { 4 },
            plain: table.is_plain(),
        };
        let kernel = self.shop.kernels.kernel(module, "attend_rows")?;
        let grid = [splits, table.n as usize, across];
        let launch = Launch::new(kernel, grid, ROW_THREADS)
            .cluster(splits)
            .structure(table);
        self.attentions.push((self.actions.len(), *table));
        self.actions.push(Action::Launch(launch));
        Ok(())
    }
}

/// What decides the shares of blocks: layers that have it in common attend alike.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Alike {
    step: [u64; 2],
    sizes: [u32; 6],
    /// Of what turns on the way: zeros where nothing does.
    frequencies: u64,
    magnitude: u32,
    rotary: u32,
}

impl Alike {
    fn of(table: &AttendTable) -> Self {
        let AttendTable {
            n,
            window,
            kind,
            dim,
            q_count,
            kv_heads,
            frequencies,
            magnitude,
            rotary,
            ..
        } = *table;
        Self {
            step: [table.tokens, table.rows],
            sizes: [n, window, kind, dim, q_count, kv_heads],
            frequencies,
            magnitude: magnitude.to_bits(),
            rotary,
        }
    }
}

/// A launch that deals shares, and for whom.
pub(super) struct Deal {
    alike: Alike,
    pub launch: Launch,
}

/// What `attend_stream` is compiled for.
fn stream_of(table: &AttendTable) -> Stream {
    Stream {
        head: table.dim as usize,
        group: heads_a_block(table, MOST_HEADS_OF_MANY),
        kv: table.kind as usize,
        plain: table.is_plain(),
    }
}

/// Whether there are kernels for heads of this size and this type of cache.
fn is_fast(table: &AttendTable) -> bool {
    table.dim == table.v_dim
        && FAST.contains(&(table.dim as usize))
        && table.kind > 0
        && table.page_size.is_power_of_two()
        && table.q_offset.is_multiple_of(2)
        && table.q_stride.is_multiple_of(2)
}

/// Query heads of a KV head.
fn group(table: &AttendTable) -> usize {
    (table.q_count / table.kv_heads) as usize
}

/// The most query heads of one KV head that a block takes at once, up to `most`.
pub(super) fn heads_a_block(table: &AttendTable, most: usize) -> usize {
    let group = group(table);
    let fits = |heads: &usize| group.is_multiple_of(*heads);
    (1..=most).rev().find(fits).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::chain::tests::ATTENTION_TABLE;

    #[test]
    fn layers_that_turn_or_see_otherwise_are_dealt_apart() {
        let alike = |other: AttendTable| Alike::of(&other) == Alike::of(&ATTENTION_TABLE);
        let table = ATTENTION_TABLE;
        assert!(alike(AttendTable { keys: 77, ..table }));
        let window = table.window + 1;
        assert!(!alike(AttendTable { window, ..table }));
        let frequencies = table.frequencies + 256;
        assert!(!alike(AttendTable {
            frequencies,
            ..table
        }));
        let magnitude = table.magnitude + 0.5;
        assert!(!alike(AttendTable { magnitude, ..table }));
        let rotary = table.rotary + 2;
        assert!(!alike(AttendTable { rotary, ..table }));
    }
}
