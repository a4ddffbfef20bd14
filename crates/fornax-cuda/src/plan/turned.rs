//! Q, K and V of many tokens on Hopper: their product, which ends with norms, rotation and what is kept of them.
//!
//! Must not know when such a product is wanted.

use fornax_backend::BackendError;

use super::broad::Broad;
use super::{Action, Plan};
use crate::dense::Product;
use crate::kernels::{Module, SKINNY_ROWS};
use crate::launch::Launch;
use crate::operation::{Operation, Turn};

// As in `kernels/broad.cu`.
const HALF: usize = 128;
/// Bytes of a token's place: its position and its slot.
const PLACE_BYTES: usize = 8;
/// Threads of a block that finds places.
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
    frequencies: u64,
    places: u64,
    slots: u64,
    eps: f32,
    magnitude: f32,
    query_scale: f32,
    pitch: u32,
    q_count: u32,
    kv_heads: u32,
    page_size: u32,
    style: u32,
    /// Up to a multiple of 64 bytes.
    spare: [u32; 8],
}

/// What decides the places of a step's tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Alike {
    step: [u64; 3],
    sizes: [u32; 3],
}

impl Alike {
    fn of(turn: &Turn) -> Self {
        Self {
            step: [turn.tokens, turn.rows, turn.tables],
            sizes: [turn.n, turn.kv_heads, turn.page_size],
        }
    }
}

impl Plan<'_> {
    /// Norms, turns and keeps what a product makes, which nobody else reads; says whether this kernel can do it.
    pub(super) fn turned(&mut self, product: &Product, turn: &Turn) -> Result<bool, BackendError> {
        let (head, kv) = (turn.dim as usize, turn.kind as usize);
        // Attention reads queries in 16 bits, and all heads lie one behind the other.
        if turn.query_scale == 0.0 || !lies_close(turn) || turn.stride as usize != product.rows {
            return Ok(false);
        }
        let Some(launch) = self.broad(product, Module::Turned { head, kv }, "turned")? else {
            return Ok(false);
        };
        let table = Table {
            product: Broad::new(&self.shop.device, product, [2 * HALF, HALF])?,
            queries: turn.qkv,
            keys: turn.keys,
            values: turn.values,
            q_norm: turn.q_norm,
            k_norm: turn.k_norm,
            frequencies: turn.frequencies,
            places: self.places(turn)?,
            slots: turn.slots,
            eps: turn.eps,
            magnitude: turn.magnitude,
            query_scale: turn.query_scale,
            pitch: 2 * turn.stride,
            q_count: turn.q_count,
            kv_heads: turn.kv_heads,
            page_size: turn.page_size,
            style: turn.style,
            spare: [0; 8],
        };
        self.actions.push(Action::Launch(launch.structure(&table)));
        Ok(true)
    }

    /// Where the places of a step's tokens are, which are found once, before all else.
    fn places(&mut self, turn: &Turn) -> Result<u64, BackendError> {
        let (alike, n) = (Alike::of(turn), turn.n as usize);
        let known = self.found.iter().position(|(found, _)| *found == alike);
        let index = known.unwrap_or(self.found.len());
        let all = self.shop.places.grown(&self.shop.device, 0)?;
        let at = all + (index * n * PLACE_BYTES) as u64;
        if known.is_none() {
            let module = Module::Turned {
                head: turn.dim as usize,
                kv: turn.kind as usize,
            };
            let kernel = self.shop.kernels.kernel(module, "find_places")?;
            let launch = Launch::new(kernel, [n.div_ceil(THREADS), 1, 1], THREADS)
                .wide(at)
                .wide(turn.tokens)
                .wide(turn.rows)
                .wide(turn.tables)
                .number(n)
                .number(turn.kv_heads as usize)
                .number(turn.page_size as usize);
            self.found.push((alike, launch));
        }
        Ok(at)
    }

    /// Makes room for places, before anything points there.
    pub(super) fn make_room_for_places(
        &mut self,
        operations: &[Operation],
    ) -> Result<(), BackendError> {
        let (mut alike, mut most) = (Vec::new(), 0);
        for operation in operations {
            if let Operation::Turn(turn) = operation
                && turn.n as usize > SKINNY_ROWS[SKINNY_ROWS.len() - 1]
            {
                most = most.max(turn.n as usize);
                if !alike.contains(&Alike::of(turn)) {
                    alike.push(Alike::of(turn));
                }
            }
        }
        let bytes = alike.len() * most * PLACE_BYTES;
        self.shop.places.grown(&self.shop.device, bytes)?;
        Ok(())
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
}
