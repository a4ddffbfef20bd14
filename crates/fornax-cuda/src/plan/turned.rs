//! Q, K and V of many tokens on Hopper: their product, which ends with norms, rotation and what is kept of them.
//!
//! Must not know when such a product is wanted.

use fornax_backend::BackendError;

use super::broad::{Broad, HALF};
use super::{Action, Plan};
use crate::dense::Product;
use crate::kernels::{Module, SKINNY_ROWS};
use crate::launch::Launch;
use crate::operation::{Operation, Turn};

/// Bytes of a token's slot, and of each of its pairs: a sine and a cosine.
const SLOT_BYTES: usize = 4;
const PAIR_BYTES: usize = 8;
/// Threads of a block that finds them.
const THREADS: usize = 256;

/// `struct Turned` of the kernel.
#[derive(Clone, Copy)]
#[repr(C)]
struct Table {
    product: Broad,
    queries: u64,
    keys: u64,
    values: u64,
    q_norm: u64,
    k_norm: u64,
    turns: u64,
    slots_of: u64,
    slots: u64,
    eps: f32,
    query_scale: f32,
    pitch: u32,
    q_count: u32,
    kv_heads: u32,
    page_size: u32,
    /// Up to a multiple of 64 bytes.
    spare: [u32; 10],
}

/// What decides slots and turns of a step's tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Alike {
    step: [u64; 3],
    sizes: [u32; 4],
    frequencies: u64,
    magnitude: u32,
}

impl Alike {
    fn of(turn: &Turn) -> Self {
        Self {
            step: [turn.tokens, turn.rows, turn.tables],
            sizes: [turn.n, turn.kv_heads, turn.page_size, turn.dim],
            frequencies: turn.frequencies,
            magnitude: turn.magnitude.to_bits(),
        }
    }

    /// Bytes of all turns, and of slots behind them, up to where others may begin.
    fn bytes(&self) -> [usize; 2] {
        let [n, _, _, dim] = self.sizes.map(|size| size as usize);
        [
            n * dim / 2 * PAIR_BYTES,
            (n * SLOT_BYTES).next_multiple_of(16),
        ]
    }
}

/// Turns and slots that a launch finds, and for whom.
pub(super) struct Found {
    alike: Alike,
    at: u64,
    pub launch: Launch,
}

impl Plan<'_> {
    /// Norms, turns and keeps what a product makes, of which each row is one of `turn`'s and nobody else reads any; says
    /// whether this kernel can do it.
    pub(super) fn turned(&mut self, product: &Product, turn: &Turn) -> Result<bool, BackendError> {
        // Attention reads queries in 16 bits, and all heads lie one behind the other.
        if turn.query_scale == 0.0 || !lies_close(turn) {
            return Ok(false);
        }
        let Some(launch) = self.broad(product, module_of(turn), "turned")? else {
            return Ok(false);
        };
        let [turns, slots_of] = self.found(turn)?;
        let table = Table {
            product: Broad::new(&self.shop.device, product, [2 * HALF, HALF])?,
            queries: turn.qkv,
            keys: turn.keys,
            values: turn.values,
            q_norm: turn.q_norm,
            k_norm: turn.k_norm,
            turns,
            slots_of,
            slots: turn.slots,
            eps: turn.eps,
            query_scale: turn.query_scale,
            pitch: 2 * turn.stride,
            q_count: turn.q_count,
            kv_heads: turn.kv_heads,
            page_size: turn.page_size,
            spare: [0; 10],
        };
        self.actions.push(Action::Launch(launch.structure(&table)));
        Ok(true)
    }

    /// Where turns and slots of a step's tokens are, which are found once, before all else.
    fn found(&mut self, turn: &Turn) -> Result<[u64; 2], BackendError> {
        let alike = Alike::of(turn);
        let [turns, _] = alike.bytes();
        if let Some(found) = self.found.iter().find(|found| found.alike == alike) {
            return Ok([found.at, found.at + turns as u64]);
        }
        let at = match self.found.last() {
            None => self.shop.turns.grown(&self.shop.device, 0)?,
            Some(last) => last.at + last.alike.bytes().iter().sum::<usize>() as u64,
        };
        let slots_of = at + turns as u64;
        let kernel = self.shop.kernels.kernel(module_of(turn), "find_turns")?;
        let pairs = (turn.n * turn.dim) as usize / 2;
        let launch = Launch::new(kernel, [pairs.div_ceil(THREADS), 1, 1], THREADS)
            .wide(at)
            .wide(slots_of)
            .wide(turn.tokens)
            .wide(turn.rows)
            .wide(turn.tables)
            .wide(turn.frequencies)
            .float(turn.magnitude)
            .number(turn.n as usize)
            .number(turn.kv_heads as usize)
            .number(turn.page_size as usize);
        self.found.push(Found { alike, at, launch });
        Ok([at, slots_of])
    }

    /// Makes room for turns and slots, before anything points there.
    pub(super) fn make_room_for_turns(
        &mut self,
        operations: &[Operation],
    ) -> Result<(), BackendError> {
        if !self.shop.device.is_only_hopper() {
            return Ok(());
        }
        let mut all = Vec::new();
        for operation in operations {
            if let Operation::Turn(turn) = operation
                && turn.is_fast()
                && turn.n as usize > SKINNY_ROWS[SKINNY_ROWS.len() - 1]
                && !all.contains(&Alike::of(turn))
            {
                all.push(Alike::of(turn));
            }
        }
        let bytes = all.iter().flat_map(Alike::bytes).sum();
        self.shop.turns.grown(&self.shop.device, bytes)?;
        Ok(())
    }
}

fn module_of(turn: &Turn) -> Module {
    Module::Turned {
        head: turn.dim as usize,
        kv: turn.kind as usize,
        style: turn.style as usize,
    }
}

/// Whether queries, keys and values are all that there is in a row, in this order.
fn lies_close(turn: &Turn) -> bool {
    let Turn {
        q_count,
        kv_heads,
        dim,
        ..
    } = *turn;
    turn.q_offset == 0
        && turn.k_offset == q_count * dim
        && turn.v_offset == (q_count + kv_heads) * dim
        && turn.stride == (q_count + 2 * kv_heads) * dim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Table>(), 448);
        assert_eq!(std::mem::offset_of!(Table, eps), 384);
    }
    #[test]
    fn layers_that_turn_or_keep_otherwise_have_turns_of_their_own() {
        let turn = Turn {
            qkv: 1,
            keys: 2,
            values: 3,
            q_norm: 4,
            k_norm: 5,
            frequencies: 6,
            tokens: 7,
            rows: 8,
            tables: 9,
            slots: 10,
            eps: 1e-6,
            magnitude: 1.0,
            query_scale: 1.0,
            n: 300,
            stride: 5 * 128,
            q_offset: 0,
            q_count: 3,
            dim: 128,
            k_offset: 3 * 128,
            v_offset: 4 * 128,
            v_dim: 128,
            kv_heads: 1,
            kind: 2,
            page_size: 64,
            rotary: 128,
            style: 0,
        };
        assert!(lies_close(&turn));
        let moved = turn.k_offset + 128;
        assert!(!lies_close(&Turn {
            k_offset: moved,
            ..turn
        }));
        let alike = |other: Turn| Alike::of(&other) == Alike::of(&turn);
        assert!(alike(Turn {
            keys: 70,
            values: 71,
            q_norm: 72,
            ..turn
        }));
        assert!(!alike(Turn { tables: 70, ..turn }));
        assert!(!alike(Turn {
            frequencies: 70,
            ..turn
        }));
        assert!(!alike(Turn {
            magnitude: 1.5,
            ..turn
        }));
        assert!(!alike(Turn { n: 301, ..turn }));
        assert!(!alike(Turn {
            kv_heads: 2,
            ..turn
        }));
        assert!(!alike(Turn {
            page_size: 32,
            ..turn
        }));
        assert!(!alike(Turn { dim: 64, ..turn }));
        assert_eq!(Alike::of(&turn).bytes(), [300 * 64 * 8, 1200]);
    }
}
