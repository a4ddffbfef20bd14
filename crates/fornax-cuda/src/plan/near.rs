//! What products bring into the device's cache for the attention behind them: while they multiply,
//! memory is idle for most of the time.

use crate::operation::{AttendTable, Operation};

use super::Plan;

/// Products from one attention to the next, each of which brings its part.
const PRODUCTS: u32 = 4;

/// Bytes of K and V that all products between two layers' attention bring near: what memory gives beside their
/// weights, for they take longer with more tokens, and at most a part of the cache.
fn bytes(n: usize) -> usize {
    ((8 << 20) + (n << 18)).min(32 << 20)
}

/// `struct Near` of the kernel; nothing where `positions` is zero.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Near {
    keys: u64,
    values: u64,
    tokens: u64,
    rows: u64,
    tables: u64,
    kv_heads: u32,
    page_size: u32,
    row_bytes: u32,
    window: u32,
    positions: u32,
    part: u32,
    parts: u32,
    /// Up to a multiple of eight bytes.
    spare: u32,
}

impl Near {
    /// The part of the `ahead`-th product before an attention, the first being 0.
    fn of(attend: &AttendTable, ahead: u32) -> Self {
        let row_bytes = match attend.kind {
            3 => attend.dim,
            _ => 2 * attend.dim,
        };
        let n = attend.n as usize;
        let of_position = 2 * n * (attend.kv_heads * row_bytes) as usize;
        Self {
            keys: attend.keys,
            values: attend.values,
            tokens: attend.tokens,
            rows: attend.rows,
            tables: attend.tables,
            kv_heads: attend.kv_heads,
            page_size: attend.page_size,
            row_bytes,
            window: attend.window,
            positions: (bytes(n) / of_position) as u32,
            part: ahead,
            parts: PRODUCTS,
            spare: 0,
        }
    }
}

impl Plan<'_> {
    /// What a product brings near, where the next attention is one of many rows and soon enough.
    pub(super) fn near(&self, behind: &[Operation]) -> Near {
        let mut products = 0;
        for operation in behind {
            match operation {
                Operation::Linear(_) => products += 1,
                Operation::Attend(attend)
                    if products < PRODUCTS
                        && attend.single
                        && self.streams(&attend.table, attend.rows) =>
                {
                    return Near::of(&attend.table, products);
                }
                Operation::Attend(_) => break,
                _ => {}
            }
        }
        Near::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::tests::ATTENTION_TABLE;
    use super::*;

    #[test]
    fn the_structure_is_as_long_as_the_kernels() {
        assert_eq!(std::mem::size_of::<Near>(), 72);
    }

    #[test]
    fn heads_have_as_many_positions_as_there_is_time_for() {
        for (n, kv_heads, dim, kind) in [
            (2, 2, 64, 2),
            (16, 8, 128, 2),
            (130, 8, 128, 2),
            (130, 8, 128, 3),
            (256, 16, 128, 1),
            (384, 64, 128, 2),
        ] {
            let attend = AttendTable {
                n,
                kv_heads,
                dim,
                kind,
                ..ATTENTION_TABLE
            };
            let parts = [0, 1, 2, 3].map(|ahead| Near::of(&attend, ahead));
            for (ahead, near) in (0..).zip(&parts) {
                assert_eq!((near.part, near.parts), (ahead, 4));
                assert_eq!(near.positions, parts[0].positions);
                // As the copy engine wants it.
                assert!(near.row_bytes.is_multiple_of(16));
            }
            let position = (2 * n * kv_heads * parts[0].row_bytes) as usize;
            let (all, most) = (parts[0].positions as usize * position, bytes(n as usize));
            assert!(all <= most && all + position > most, "{n} rows: {all}");
        }
    }
}
