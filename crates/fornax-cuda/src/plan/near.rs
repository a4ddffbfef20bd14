//! What products bring into the device's cache for the attention behind them: while they multiply,
//! memory is idle for most of the time.

use crate::operation::{AttendTable, Operation};

use super::Plan;

/// Products from one attention to the next, each of which brings its part.
const PRODUCTS: usize = 4;
/// Positions of a head that are asked for at once, at most: no page is shorter.
const CHUNK: usize = 16;

/// Bytes of K and V that all products between two layers' attention bring near: what memory gives beside their
/// weights, for they take longer with more tokens, and at most a part of the cache.
fn bytes(n: usize) -> usize {
    ((8 << 20) + (n << 18)).min(32 << 20)
}

/// `struct Near` of the kernel; nothing where `chunks` is zero.
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
    first: u32,
    chunk: u32,
    chunks: u32,
    /// Up to a multiple of eight bytes.
    spare: u32,
}

impl Near {
    /// The part of the `ahead`-th product before an attention, the first being 0.
    fn of(attend: &AttendTable, ahead: usize) -> Self {
        let row_bytes = match attend.kind {
            3 => attend.dim,
            _ => 2 * attend.dim,
        };
        let n = attend.n as usize;
        let of_position = 2 * n * (attend.kv_heads * row_bytes) as usize;
        let positions = bytes(n) / of_position / PRODUCTS;
        let chunks = positions.div_ceil(CHUNK);
        let chunk = positions / chunks.max(1);
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
            first: (ahead * chunk * chunks) as u32,
            chunk: chunk as u32,
            chunks: chunks as u32,
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
    fn parts_lie_one_behind_the_other_and_are_as_long_as_there_is_time_for() {
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
            let each = parts[0].chunk * parts[0].chunks;
            for (ahead, part) in (0..).zip(&parts) {
                assert_eq!(part.first, ahead * each);
                assert!(part.chunk as usize <= CHUNK);
                // As the copy engine wants it.
                assert!((part.chunk * part.row_bytes).is_multiple_of(16));
            }
            let position = (2 * n * kv_heads * parts[0].row_bytes) as usize;
            let (all, most) = (PRODUCTS * each as usize * position, bytes(n as usize));
            assert!(all <= most, "{n} rows: {all}");
            // A position of each head more in each chunk would be too much.
            let more = PRODUCTS * parts[0].chunks.max(1) as usize * position;
            assert!(all + more > most, "{n} rows: {all}");
        }
    }
}
